"""Gzip members whose bytes no compression library decides (RFC 1951, RFC 1952).

zlib, zlib-ng and ISA-L compress the same input to different bytes, so nothing here calls a compressor. A member holds
deflate blocks that exist already (a wheel's), and those of the small encoders below.
"""

import re
import struct
from functools import lru_cache

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The bytes before a member's deflate stream (RFC 1952, section 2.3): no name, no time, unknown system."""
_RUN = re.compile(rb"\0{5,}|0{5,}")
"""Runs in tar headers; a search for runs of any byte would take most of the time."""
STORED_LIMIT = 65535
"""Bytes that one stored block can hold."""
ALIGNED = b"\x00\x00\xff\xff"
"""An empty stored block but for its three bits, all zero: after it a stream goes on with whole bytes."""
LAST = b"\x03\x00"
"""An empty block that ends a stream (RFC 1951, section 3.2.6)."""


def end(crc32: int, size: int) -> bytes:
    """Return the bytes that follow a member's deflate stream: CRC and length modulo 2^32, of the uncompressed data."""
    return struct.pack("<II", crc32, size & 0xFFFFFFFF)


def stored(data: bytes | memoryview, *, final: bool = True) -> list[bytes | memoryview]:
    """Frame `data` as stored deflate blocks (RFC 1951, section 3.2.4): five bytes for each 65,535.

    If it is not final, more blocks follow; the bytes are the same as in one call if `data` is a multiple of 65,535.
    """
    pieces: list[bytes | memoryview] = []
    for offset in range(0, len(data) or 1, STORED_LIMIT):
        chunk = data[offset : offset + STORED_LIMIT]
        last = final and offset + STORED_LIMIT >= len(data)
        pieces += [struct.pack("<BHH", last, len(chunk), len(chunk) ^ 0xFFFF), chunk]
    return pieces


def _bits(code: int, length: int) -> str:
    """Return a Huffman code, whose first bit comes first in the stream; texts are read from the end."""
    return f"{code:0{length}b}"[::-1]


def _length(length: int) -> str:
    """Return the bits of a match of `length` bytes at distance 1 (RFC 1951, section 3.2.5)."""
    distance = "00000"  # distance code 0 means distance 1
    if length == 258:
        return distance + _bits(0xC0 + 5, 8)
    symbol, base, extra = 257, 3, 0
    while length >= base + (1 << extra):
        base += 1 << extra
        symbol += 1
        extra = max(0, (symbol - 261) // 4)
    code = _bits(symbol - 256, 7) if symbol < 280 else _bits(0xC0 + symbol - 280, 8)
    more = f"{length - base:0{extra}b}" if extra else ""  # a number, which goes from its last bit on
    return distance + more + code


_LITERALS = [_bits(0x30 + byte, 8) if byte < 144 else _bits(0x190 + byte - 144, 9) for byte in range(256)]
"""The bits of each literal in the fixed Huffman table (RFC 1951, section 3.2.6)."""
_LENGTHS = {length: _length(length) for length in range(3, 259)}
_SHORT = bytes(int(_LITERALS[byte], 2) if byte < 128 else 0 for byte in range(256))
"""The literals of ASCII, which have eight bits each."""

_Bits = tuple[int, int]
"""A number whose lowest bit comes first in the stream, and how many bits it has there."""


def deflate_runs(data: bytes, *, final: bool = True) -> bytes:
    """Encode as one deflate block with fixed Huffman codes, where only runs of NUL and of the digit 0 are matched.

    If it is not final, an empty stored block fills the last byte, so that more can follow.
    """
    value, size, position = (0b011 if final else 0b010), 3, 0  # the block's end mark; fixed codes
    for run in _RUN.finditer(data):
        first, after = run.span()
        for number, bits in (_literals(data[position : first + 1]), _run(after - first - 1)):
            value |= number << size
            size += bits
        position = after
    literals, bits = _literals(data[position:])
    value |= literals << size
    size += bits + (7 if final else 10)  # the end of the block; the start of a stored block, not final
    return value.to_bytes((size + 7) // 8, "little") + (b"" if final else ALIGNED)


def _literals(data: bytes) -> _Bits:
    if data.isascii():
        return int.from_bytes(data.translate(_SHORT), "little"), 8 * len(data)
    return _number("".join(map(_LITERALS.__getitem__, reversed(data))))


@lru_cache(maxsize=1024)
def _run(length: int) -> _Bits:
    whole, rest = divmod(length, 258)
    if rest in (1, 2) and whole:  # a match is at least three bytes
        return _number(_LENGTHS[3] + _LENGTHS[258 + rest - 3] + _LENGTHS[258] * (whole - 1))
    return _number((_LENGTHS[rest] if rest else "") + _LENGTHS[258] * whole)


def _number(text: str) -> _Bits:
    return (int(text, 2) if text else 0), len(text)
