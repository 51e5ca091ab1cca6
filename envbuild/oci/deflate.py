"""Deflate streams (RFC 1951): inflated with the fastest library at hand, and opened so that more blocks can follow.

All libraries inflate to the same bytes. The bit that ends a stream is the first of its last block, and nothing shows
where that block begins. A decoder finds it: one that is in the last block already, and then gets only the end of the
stream, reads wrong bytes for a while until codes fall into step, and ends where the stream ends. One before the last
block has the wrong codes. A stored last block is found by its size, and a short one with fixed codes by trying.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import chain, islice
from typing import Any, BinaryIO, Protocol

from envbuild.oci.gzip import ALIGNED, STORED_LIMIT, deflate_runs, stored

_IN, _OUT = 1 << 20, 1 << 20
_UNSUSPICIOUS, _EXPANSION = 1 << 30, 200
"""No real wheel or layer above this many bytes expands this many times; deflate expands up to 1032 times."""
_WINDOW = bytes(1 << 15)
"""The largest distance (RFC 1951, section 2)."""
GZIP_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
"""Exceptions of reading a damaged gzip file."""
_NEAR = tuple(kib << 10 for kib in (16, 64, 320))
"""Bytes before the end at which decoders are kept; a longer last block is not found, but few compressors write any."""
_CLOSE = 64
"""Bytes before the end that are enough to tell how many bits of the last byte belong to the stream."""
_ENDS = (96, 128, 160)
"""Bytes of the end that a decoder gets: codes may fall into step in one of them and not in another."""
_LONGEST = 288
"""Bytes of the longest header: 316 lengths of at most seven bits, and their codes."""
_ABOUT = 32
"""Bits by which the end of the header may differ from the place that the search finds."""
_MOST = 16
"""Headers that are read to their end: random bits have few likely ones, a hostile stream may have many."""
_SHARES = bytes.maketrans(b"01234567", bytes((0, 64, 32, 16, 8, 4, 2, 1)))
"""How many of 128 values of seven bits begin with a code, by its length in octal."""
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_REPEATED = {16: (3, 2), 17: (3, 3), 18: (11, 7)}
"""For symbols of section 3.2.7: the least number of repetitions, and the bits of the number of further ones."""


class Decoder(Protocol):
    """The common part of zlib's and zlib-ng's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes | memoryview, /, max_length: int = 0) -> bytes: ...
    def copy(self) -> "Decoder": ...


_library: Any = zlib
_gzip: Any = gzip.GzipFile
# Optional: inflates nearly twice as fast. ISA-L would be a little faster still, but accepts streams with incomplete
# codes, which zlib and Go's library refuse, and so every engine that unpacks the layer.
with suppress(ImportError):
    from zlib_ng import gzip_ng
    from zlib_ng import zlib_ng as _library

    _gzip = gzip_ng.GzipFile
    GZIP_ERRORS = (*GZIP_ERRORS, _library.error)


def expansion_limit(packed: int) -> int:
    """Return the largest unpacked size for a packed one: 200 times as much, or 1 GiB."""
    return max(_UNSUSPICIOUS, _EXPANSION * packed)


def open_gzip(file: BinaryIO) -> BinaryIO:
    """Read a gzip file of one or more members (RFC 1952)."""
    opened: BinaryIO = _gzip(fileobj=file)
    return opened


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Return the CRC-32 of bytes, continued from that of the bytes before."""
    checksum: int = _library.crc32(data, before)
    return checksum


class DamagedStreamError(Exception):
    """A deflate stream that is damaged, or does not end where it should."""


class LastBlockError(Exception):
    """The last block of a deflate stream is not found, so that nothing can follow the stream."""


def inflate(data: memoryview) -> Iterator[tuple[memoryview, bytes]]:
    """Yield the content of a raw deflate stream in bounded pieces, each with the consumed part of `data`.

    The stream must end exactly with `data`.
    """
    decoder = _decoder()
    yield from _pieces(decoder, data)
    _check_end(decoder)


def _decoder(*window: bytes) -> Decoder:
    new: Decoder = _library.decompressobj(-15, *window)
    return new


def _pieces(decoder: Decoder, data: memoryview) -> Iterator[tuple[memoryview, bytes]]:
    nothing = data[:0]
    for offset in range(0, len(data), _IN):
        taken = data[offset : offset + _IN]
        pending: bytes | memoryview = taken
        while len(pending):
            if decoder.eof:
                raise DamagedStreamError("ends before the archive says")
            piece = _inflated(decoder, pending, _OUT)
            pending = decoder.unconsumed_tail
            yield taken, piece
            taken = nothing
    # A few bits at the end may expand to more bytes than one piece: all input is consumed, but not all output read.
    while not decoder.eof and (piece := _inflated(decoder, b"", _OUT)):
        yield nothing, piece


def _inflated(decoder: Decoder, data: bytes | memoryview, most: int = 0) -> bytes:
    """Inflate data; at most so many bytes, or 0 for all. Raises DamagedStreamError."""
    try:
        return decoder.decompress(data, most)
    except Exception as error:  # each library has an exception class of its own
        raise DamagedStreamError(f"is damaged: {error}") from error


def _check_end(decoder: Decoder) -> None:
    if not decoder.eof or decoder.unused_data:
        raise DamagedStreamError("does not end where the archive says")


def continued(data: memoryview) -> Iterator[tuple[bytes | memoryview, bytes]]:
    """Yield a raw deflate stream without its end, so that more blocks can follow, with its content, in bounded pieces.

    The stream must end exactly with `data`. Its end is changed: the last block's final bit is cleared, and an empty
    stored block, not final, fills the last byte, or one more if that has no three bits left (RFC 1951, section 3.2.3).
    LastBlockError, after the content, if the last block is not found.
    """
    near, close = (max(len(data) - size, 0) for size in (_NEAR[-1], _CLOSE))
    decoder = _decoder()
    yield from _pieces(decoder, data[:near])
    # One from the beginning accepts every distance, so that it can go on with other bytes.
    known = decoder.copy() if near else _decoder(_WINDOW)
    yield from ((b"", piece) for _, piece in _pieces(decoder, data[near:close]))
    before_end, contents = decoder.copy(), []
    for _, piece in _pieces(decoder, data[close:]):
        contents.append(piece)
        yield b"", piece
    _check_end(decoder)
    end = bytearray(data[near:])
    at = 0 if not near and end[0] & 1 else last_block(bytes(end), known)
    if at is None:
        raise LastBlockError
    end[at // 8] ^= 1 << at % 8
    bits = _last_bits(before_end, bytes(data[close:]), b"".join(contents))
    end[-1] &= (1 << bits) - 1
    yield bytes(end) + (ALIGNED if bits <= 5 else b"\0" + ALIGNED), b""


def _last_bits(decoder: Decoder, end: bytes, content: bytes) -> int:
    """Return how many bits of the last byte belong to the stream: other bits behind them change nothing."""

    def enough(bits: int) -> bool:
        return _ended(decoder.copy(), end[:-1] + bytes((end[-1] ^ 0xFF << bits & 0xFF,))) == content

    return next(bits for bits in range(8, 0, -1) if not enough(bits - 1))  # fewer may be enough by chance


def last_block(end: bytes, known: Decoder) -> int | None:
    """Return the bit of `end` where the last block of a stream begins, for a decoder of what is before `end`.

    None if it is not there or not found, as its codes are too regular to fall into step. The result depends on no
    library: each decodes the same bits to the same end.
    """
    decoders, taken = [], 0
    for start in sorted({max(len(end) - near, 0) for near in (*_NEAR, _ENDS[-1])}):
        known = _advanced(known, end[taken:start])
        decoders.append((start, known))
        taken = start
    inside, mark = _first_inside(end, decoders), sha256(end).digest()
    for at in chain(_dynamic(end, inside), _fixed(end, inside), islice(_stored(end), _MOST)):
        before = [pair for pair in decoders if pair[0] <= at // 8]
        if before and _begins(end, mark, at, *before[-1]):
            return at
    return None


def _advanced(decoder: Decoder, data: bytes) -> Decoder:
    """Return a copy of a decoder that has read more."""
    further = decoder.copy()
    for _ in _pieces(further, memoryview(data)):
        pass
    return further


def _first_inside(stream: bytes, decoders: Sequence[tuple[int, Decoder]]) -> int:
    """Return about where the codes of the last block begin, in bytes; 0 if far from the end."""
    outside = [pair for pair in decoders if not _is_inside(stream, *pair)]
    if not outside:
        return 0
    before, latest = outside[-1]
    inside = min((start for start, _ in decoders if start > before), default=len(stream))
    while inside - before > 1:
        middle = (before + inside) // 2
        further = _advanced(latest, stream[before:middle])
        if _is_inside(stream, middle, further):
            inside = middle
        else:
            before, latest = middle, further
    return inside


def _is_inside(stream: bytes, taken: int, known: Decoder) -> bool:
    """Whether a decoder that has read `taken` bytes of the stream is inside its last block."""
    for end in _ENDS:
        further = known.copy()
        if _ended(further, stream[max(len(stream) - end, taken) :]) is not None and not further.unused_data:
            return True
    return False


def _dynamic(stream: bytes, inside: int) -> Iterator[int]:
    """Yield the bits where a final block with dynamic codes may begin, if its codes begin about `inside`."""
    first = max(inside - _LONGEST - _ABOUT // 8, 0)
    bits, end = int.from_bytes(stream[first : inside + _ABOUT // 8], "little"), (inside - first) * 8
    for at in islice(_likely(bits), _MOST):
        size = _header_size(bits >> at)
        if size and abs(at + size - end) <= _ABOUT:
            yield first * 8 + at


def _fixed(stream: bytes, inside: int) -> Iterator[int]:
    """Yield the bits where a final block with fixed codes may begin: near the end, or about `inside`."""
    near, about = max(len(stream) - _ENDS[-1], 0), max(inside - _ABOUT // 8, 0)
    for first, after in ((near, len(stream)), (about, min(inside + _ABOUT // 8, near))):
        bits = int.from_bytes(stream[first:after], "little")
        yield from (first * 8 + at for at in reversed(range(bits.bit_length())) if bits >> at & 7 == 0b011)


def _stored(stream: bytes) -> Iterator[int]:
    """Yield the bits where a final stored block may begin (section 3.2.4), which has its size before its content."""
    for size in range(min(len(stream) - 4, STORED_LIMIT + 1)):
        start = len(stream) - size - 4
        if stream.startswith(struct.pack("<HH", size, size ^ 0xFFFF), start):
            bits = int.from_bytes(stream[start - 2 : start], "little")
            yield from (start * 8 - 16 + at for at in range(6, 14) if bits >> at & 7 == 1)


def _likely(bits: int) -> Iterator[int]:
    """Yield bits where the header of a final block with dynamic codes may begin, the last one first."""
    marks = bits & ~(bits >> 1) & bits >> 2
    while marks:
        at = marks.bit_length() - 1
        marks ^= 1 << at
        if _code_lengths(bits >> at):
            yield at


def _begins(stream: bytes, mark: bytes, at: int, start: int, known: Decoder) -> bool:
    """Whether a block begins at a bit, for a decoder that has read the stream up to `start`.

    Only there do two different encodings of one content decode to the same bytes. The content is the stream's own
    digest, which no stream can contain.
    """
    bits = at % 8
    before, low = _advanced(known, stream[start : at // 8]), stream[at // 8] & (1 << bits) - 1
    coded = deflate_runs(mark)
    blocks = (
        (low | int.from_bytes(coded, "little") << bits).to_bytes(len(coded) + (bits > 0), "little"),
        (low | 1 << bits).to_bytes((bits + 10) // 8, "little") + b"".join(stored(mark))[1:],
    )
    one, other = (_ended(before.copy(), block) for block in blocks)
    return one is not None and one == other and one.endswith(mark)


def _ended(known: Decoder, data: bytes) -> bytes | None:
    """Return the output for data that ends the stream; None if it does not end."""
    try:
        output = _inflated(known, data)
    except DamagedStreamError:
        return None
    return output if known.eof else None


def _header_size(bits: int) -> int:
    """Return the size in bits of a header of dynamic codes (section 3.2.7); 0 if it is invalid."""
    literals, distances, code_lengths = (bits >> 3 & 31) + 257, (bits >> 8 & 31) + 1, _code_lengths(bits)
    if not code_lengths:
        return 0
    lengths = {symbol: length - ord("0") for symbol, length in zip(_ORDER, reversed(code_lengths), strict=False)}
    codes, at = _codes(lengths), 17 + 3 * ((bits >> 13 & 15) + 4)
    found: list[int] = []
    while len(found) < literals + distances:
        symbol, size = codes[bits >> at & 127]
        at += size
        least, more = _REPEATED.get(symbol, (1, 0))
        times = least + (bits >> at & (1 << more) - 1)
        found += [symbol if symbol < 16 else found[-1] if symbol == 16 and found else 0] * times
        at += more
    # Codes are complete if they fill the space; a symbol of length 0 has no code.
    space = sum(1 << 15 - length for length in found[:literals] if length)
    return at if len(found) == literals + distances and space == 1 << 15 else 0


def _code_lengths(bits: int) -> bytes:
    """Return the lengths of a header's length codes, in octal, the last one first; empty if they are invalid.

    Invalid are incomplete codes, and more than 286 or 30 lengths, which no decoder accepts.
    """
    few = bits & (1 << 17 + 3 * len(_ORDER)) - 1
    if few >> 3 & 31 > 29 or few >> 8 & 31 > 29:
        return b""
    lengths = b"%o" % (few >> 17 & (1 << 3 * ((few >> 13 & 15) + 4)) - 1)
    return lengths if sum(lengths.translate(_SHARES)) == 128 else b""


def _codes(lengths: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the symbol and code length that each value of seven bits begins with (section 3.2.2)."""
    table, code = [(0, 0)] * 128, 0
    for length in range(1, 8):
        for symbol in sorted(symbol for symbol, its in lengths.items() if its == length):
            reverse = int(f"{code:0{length}b}"[::-1], 2)
            table[reverse :: 1 << length] = [(symbol, length)] * (128 >> length)
            code += 1
        code <<= 1
    return table
