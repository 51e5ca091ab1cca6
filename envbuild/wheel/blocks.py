"""Deflate streams without their end, so that more blocks can follow them (RFC 1951).

The bit that ends a stream is the first of its last block, and nothing says where in the stream that block begins. A
decoder shows it: one that is in the last block already, and then gets no more than the end of the stream, takes wrong
bytes for a while until codes fall into step, and ends where the stream ends. One that is before it has the wrong codes.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice

from envbuild.oci.gzip import ALIGNED, LAST, deflate_runs, stored
from envbuild.wheel.inflate import DamagedStreamError, Decoder, decoder, inflated, stands_for

_NEAR = tuple(kib << 10 for kib in (16, 64, 256))
"""Bytes before the end where decoders are kept to start from; a last block that is longer is not found."""
_ENDS = (96, 128, 160)
"""Bytes of the end that a decoder gets: where codes do not fall into step in one of them, they may in another."""
_LONGEST = 288
"""Bytes that no header is longer than: 316 lengths of at most seven bits, and what says which those are."""
_ABOUT = 32
"""Bits that the end of the header may be away from the place that the search finds."""
_MOST = 16
"""Headers that are read to their end: what is a stream by chance has few likely ones, what is made so may have many."""
_SHARES = bytes.maketrans(b"01234567", bytes((0, 64, 32, 16, 8, 4, 2, 1)))
"""Of 128 values of seven bits, how many begin with a code, by its length in octal."""
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_REPEATED = {16: (3, 2), 17: (3, 3), 18: (11, 7)}
"""How often at least the symbols of section 3.2.7 repeat a length, and how many bits say how much more often."""


def continued(stream: bytes, content: bytes) -> bytes | None:
    """Return a raw deflate stream without its end, so that more blocks can follow; `content` is what it stands for.

    None for one that cannot be opened so: whose last block is not found, or with other bits than zeros behind its end,
    as far as they matter. An empty stored block, not final, fills the last byte: its three zero bits are those behind
    the end, or where too few are left, in one more byte (RFC 1951, section 3.2.3). A trial tells which of the two.
    """
    try:
        at = 0 if stream[0] & 1 else last_block(stream)
    except DamagedStreamError:  # another library may read what this one does not
        at = None
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

    None where it has not, or where it is too short or too regular for codes to fall into step; DamagedStreamError where
    a decoder meets what is no stream. What is found depends on no library: each decodes the same bits to the same end.
    """
    decoders = [*_decoders(stream)]
    inside = _first_inside(stream, decoders)
    for at in _final_headers(stream, inside):
        before = [known for known in decoders if known[0] <= at // 8]
        if before and _begins(stream, at, *before[-1]):
            return at
    return None


_Known = tuple[int, Decoder]
"""How many bytes of a stream a decoder has taken."""


def _decoders(stream: bytes) -> Iterator[_Known]:
    known, taken = decoder(), 0
    for start in sorted({max(len(stream) - near, 0) for near in _NEAR}):
        inflated(known, stream[taken:start])
        taken = start
        yield start, known.copy()


def _first_inside(stream: bytes, decoders: Sequence[_Known]) -> int:
    """About where the codes of the last block begin: how many bytes a decoder takes to be in it; 0 if that is far."""
    outside = [known for known in decoders if not _is_inside(stream, *known)]
    if not outside:
        return 0
    before, latest = outside[-1]
    inside = min((start for start, _ in decoders if start > before), default=len(stream))
    while inside - before > 1:
        middle, further = (before + inside) // 2, latest.copy()
        inflated(further, stream[before:middle])
        if _is_inside(stream, middle, further):
            inside = middle
        else:
            before, latest = middle, further
    return inside


def _is_inside(stream: bytes, taken: int, known: Decoder) -> bool:
    """Whether a decoder that has taken so much of the stream reads the codes of its last block."""
    for end in _ENDS:
        further = known.copy()
        if _ended(further, stream[max(len(stream) - end, taken) :]) is not None and not further.unused_data:
            return True
    return False


def _final_headers(stream: bytes, inside: int) -> Iterator[int]:
    """The bits where a final block with codes of its own may begin whose codes begin about `inside`."""
    first = max(inside - _LONGEST - _ABOUT // 8, 0)
    bits, end = int.from_bytes(stream[first : inside + _ABOUT // 8], "little"), (inside - first) * 8
    for at in islice(_likely(bits), _MOST):
        size = _header_size(bits >> at)
        if size and abs(at + size - end) <= _ABOUT:
            yield first * 8 + at


def _likely(bits: int) -> Iterator[int]:
    """Where a header may be that says final, and codes of its own, the last one first."""
    marks = bits & ~(bits >> 1) & bits >> 2
    while marks:
        at = marks.bit_length() - 1
        marks ^= 1 << at
        if _told(bits >> at):
            yield at


def _begins(stream: bytes, at: int, start: int, known: Decoder) -> bool:
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
    one, other = (_ended(known.copy(), before + block) for block in blocks)
    return one is not None and one == other and one.endswith(mark)


def _ended(known: Decoder, data: bytes) -> bytes | None:
    """What becomes of data that a stream ends in; None where it does not."""
    try:
        output = inflated(known, data)
    except DamagedStreamError:
        return None
    return output if known.eof else None


def _header_size(bits: int) -> int:
    """How many bits the header of a block with codes of its own takes (section 3.2.7); 0 for what can be none."""
    literals, distances, told = (bits >> 3 & 31) + 257, (bits >> 8 & 31) + 1, _told(bits)
    if not told:
        return 0
    lengths = {symbol: length - ord("0") for symbol, length in zip(_ORDER, reversed(told), strict=False)}
    codes, at = _codes(lengths), 17 + 3 * ((bits >> 13 & 15) + 4)
    found: list[int] = []
    while len(found) < literals + distances:
        symbol, size = codes[bits >> at & 127]
        at += size
        least, more = _REPEATED.get(symbol, (1, 0))
        times = least + (bits >> at & (1 << more) - 1)
        found += [symbol if symbol < 16 else found[-1] if symbol == 16 and found else 0] * times
        at += more
    return at if len(found) == literals + distances and _complete(found[:literals]) else 0


def _told(bits: int) -> bytes:
    """The lengths of the codes that a header's own lengths are told in, in octal, the last one first; nothing if wrong.

    Wrong are codes that leave some bits without a meaning, and more than 286 or 30 lengths, which no decoder takes.
    """
    few = bits & (1 << 17 + 3 * len(_ORDER)) - 1
    if few >> 3 & 31 > 29 or few >> 8 & 31 > 29:
        return b""
    told = b"%o" % (few >> 17 & (1 << 3 * ((few >> 13 & 15) + 4)) - 1)
    return told if sum(told.translate(_SHARES)) == 128 else b""


def _complete(lengths: Sequence[int]) -> bool:
    """Whether codes of these lengths leave no bits that mean nothing; of no length, a symbol has none."""
    return sum(1 << 15 - length for length in lengths if length) == 1 << 15


def _codes(lengths: Mapping[int, int]) -> list[tuple[int, int]]:
    """What any seven bits begin with: a symbol and the length of its code (section 3.2.2)."""
    table, code = [(0, 0)] * 128, 0
    for length in range(1, 8):
        for symbol in sorted(symbol for symbol, its in lengths.items() if its == length):
            reverse = int(f"{code:0{length}b}"[::-1], 2)
            table[reverse :: 1 << length] = [(symbol, length)] * (128 >> length)
            code += 1
        code <<= 1
    return table
