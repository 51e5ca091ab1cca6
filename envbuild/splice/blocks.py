"""Deflate streams without their end, so that more blocks can follow them (RFC 1951).

The bit that ends a stream is the first of its last block, and nothing says where in the stream that block begins. A
decoder shows it: what it takes from a block's header becomes no output, while elsewhere 48 bits are at least one byte.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Protocol

from envbuild.oci.gzip import ALIGNED, LAST, deflate_runs, stored
from envbuild.splice.inflate import stands_for

_STEP = 24
"""Bytes that the decoder is given at once; outside a header they are output, whichever library decodes."""
_NEAR = tuple(kib << 10 for kib in (8, 16, 24, 32, 40, 64, 256))
"""Bytes before the end where the last block's header is looked for, one stretch after the other."""
_SHORTEST, _LONGEST = 56, 288
"""Bytes of a header: shorter ones are found or not as the library has it, so they are left; longer ones cannot be."""
_BEFORE, _AFTER = 36, 24
"""Bytes around the first step without output, between which a header begins; flushes lie between them."""
_INSIDE = _BEFORE + 2 * _AFTER
"""Bytes that a header has to be behind the place where the search begins: nearer ones depend on the library too."""
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_REPEATED = {16: (3, 2), 17: (3, 3), 18: (11, 7)}
"""How often at least the symbols of section 3.2.7 repeat a length, and how many bits say how much more often."""


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, /) -> bytes: ...
    def copy(self) -> "_Decoder": ...


def continued(stream: bytes, content: bytes) -> bytes | None:
    """Return a raw deflate stream without its end, so that more blocks can follow; `content` is what it stands for.

    None for one that cannot be opened so: whose last block is not found, or with bits set behind its end. An empty
    stored block, not final, fills the last byte: its three zero bits are those behind the end, or where too few are
    left, in one more byte (RFC 1951, section 3.2.3). Either form is an error in place of the other, so a trial tells
    them apart.
    """
    at: int | None = 0
    if not stream[0] & 1:
        with suppress(zlib.error):  # another library may read what this one does not
            at = last_block(stream)
    if at is None:
        return None
    opened = stream[: at // 8] + bytes((stream[at // 8] & ~(1 << at % 8),)) + stream[at // 8 + 1 :]
    tails = (ALIGNED, b"\0" + ALIGNED)
    # Codes end with a one more often than not, and what follows them are zeros.
    for tail in tails if opened[-1] < 1 << 5 else tails[::-1]:
        if stands_for(opened + tail + LAST, content):
            return opened + tail
    return None


def last_block(stream: bytes) -> int | None:
    """The bit of a stream of several blocks where the last one begins, if it has codes of its own and is near the end.

    None where it has not, or where its header is too short to stand out; zlib.error for a stream that is damaged.
    """
    decoders, end = [*_decoders(stream)], len(stream)
    first = decoders[0][0]
    for start, decoder in reversed(decoders):
        quiet = _last_quiet(decoder.copy(), stream[start:end])
        if quiet is not None and (quiet >= _BEFORE or not start):
            at = _final_header(stream, start + quiet)
            inside = at is not None and (not first or at >= (first + _INSIDE) * 8)
            return at if at is not None and inside and _begins(stream, at, start, decoder) else None
        end = min(start + _INSIDE + _LONGEST, len(stream))  # a header may lie across the place where two stretches meet
    return None


def _decoders(stream: bytes) -> Iterator[tuple[int, _Decoder]]:
    """Decoders that have taken the stream up to where a stretch begins, with that place."""
    decoder: _Decoder = zlib.decompressobj(-15)
    taken = 0
    for start in sorted({max(len(stream) - near, 0) for near in _NEAR}):
        decoder.decompress(stream[taken:start])
        taken = start
        yield start, decoder.copy()


def _last_quiet(decoder: _Decoder, data: bytes) -> int | None:
    """Where the last of the parts begins that become no output, each of one or more steps."""
    output = [len(decoder.decompress(data[at : at + _STEP])) for at in range(0, len(data) - _STEP + 1, _STEP)]
    if 0 not in output:
        return None
    last = len(output) - 1 - output[::-1].index(0)
    while last and not output[last - 1]:
        last -= 1
    return last * _STEP


def _final_header(stream: bytes, quiet: int) -> int | None:
    """The bit where a final block with codes of its own begins, near a part of the stream that became no output."""
    first, after = max(quiet - _BEFORE, 0), quiet + _AFTER
    bits = int.from_bytes(stream[first:after], "little")
    for at in range((after - first) * 8):
        if bits >> at & 7 == 0b101:
            begins = first + at // 8
            header = int.from_bytes(stream[begins : begins + _LONGEST], "little") >> at % 8
            if _header_size(header) >= _SHORTEST * 8:
                return first * 8 + at
    return None


def _begins(stream: bytes, at: int, start: int, decoder: _Decoder) -> bool:
    """Whether a block begins at a bit, for a decoder that has taken the stream up to `start`.

    Two blocks that hold the same in different ways become the same there, and nowhere else: what they hold is the
    stream's own digest, which nobody can put into it.
    """
    mark, bits = sha256(stream).digest(), at % 8
    before, low = stream[start : at // 8], stream[at // 8] & (1 << bits) - 1
    coded = deflate_runs(mark)
    blocks = (
        (low | int.from_bytes(coded, "little") << bits).to_bytes(len(coded) + (bits > 0), "little"),
        (low | 1 << bits).to_bytes((bits + 10) // 8, "little") + b"".join(stored(mark))[1:],
    )
    one, other = (_ended(decoder.copy(), before + block) for block in blocks)
    return one == other and one.endswith(mark)


def _ended(decoder: _Decoder, data: bytes) -> bytes:
    """What becomes of data that ends a stream; nothing where it does not."""
    try:
        output = decoder.decompress(data)
    except zlib.error:
        return b""
    return output if decoder.eof else b""


def _header_size(bits: int) -> int:
    """How many bits the header of a block with codes of its own takes (section 3.2.7); 0 for what can be none."""
    literals, distances, count = (bits >> 3 & 31) + 257, (bits >> 8 & 31) + 1, (bits >> 13 & 15) + 4
    told, lengths = bits >> 17 & (1 << 3 * count) - 1, [0] * len(_ORDER)
    for number, symbol in enumerate(_ORDER[:count]):
        lengths[symbol] = told >> 3 * number & 7
    if not _complete(lengths):
        return 0
    codes, at = _codes(lengths), 17 + 3 * count
    found: list[int] = []
    while len(found) < literals + distances:
        symbol, size = codes[bits >> at & 127]
        at += size
        least, more = _REPEATED.get(symbol, (1, 0))
        times = least + (bits >> at & (1 << more) - 1)
        found += [symbol if symbol < 16 else found[-1] if symbol == 16 and found else 0] * times
        at += more
    return at if len(found) == literals + distances and _complete(found[:literals]) else 0


def _complete(lengths: Sequence[int]) -> bool:
    """Whether codes of these lengths leave no bits that mean nothing; of no length, a symbol has none."""
    return sum(1 << 15 - length for length in lengths if length) == 1 << 15


def _codes(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """What any seven bits begin with: a symbol and the length of its code (section 3.2.2)."""
    table, code = [(0, 0)] * 128, 0
    for length in range(1, 8):
        for symbol in (symbol for symbol, its in enumerate(lengths) if its == length):
            reverse = int(f"{code:0{length}b}"[::-1], 2)
            table[reverse :: 1 << length] = [(symbol, length)] * (128 >> length)
            code += 1
        code <<= 1
    return table
