"""Gzip members whose bytes no compression library decides (RFC 1951, RFC 1952).

zlib, zlib-ng and ISA-L compress the same input to different bytes, so nothing here calls a compressor. A member holds
either a deflate stream that somebody else made (a wheel's), or one made by the small encoders below.
"""

import re
import struct
import zlib

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, unknown system
_RUN = re.compile(rb"(.)\1{4,}", re.DOTALL)
_STORED_LIMIT = 65535


def start() -> bytes:
    """Return the bytes that precede a member's deflate stream (RFC 1952, section 2.3)."""
    return _HEADER


def end(crc32: int, size: int) -> bytes:
    """Return the bytes that follow a member's deflate stream: CRC and length modulo 2^32, of the uncompressed data."""
    return struct.pack("<II", crc32, size & 0xFFFFFFFF)


def member(data: bytes) -> bytes:
    """Encode `data`, headers and other text-like runs of bytes, as one gzip member."""
    return _HEADER + deflate_runs(data) + end(zlib.crc32(data), len(data))


def stored(data: bytes | memoryview) -> list[bytes | memoryview]:
    """Frame `data` as stored deflate blocks (RFC 1951, section 3.2.4): five bytes for each 65,535."""
    pieces: list[bytes | memoryview] = []
    for offset in range(0, len(data) or 1, _STORED_LIMIT):
        chunk = data[offset : offset + _STORED_LIMIT]
        final = offset + _STORED_LIMIT >= len(data)
        pieces += [struct.pack("<BHH", final, len(chunk), len(chunk) ^ 0xFFFF), chunk]
    return pieces


def _reversed(code: int, bits: int) -> int:
    return int(f"{code:0{bits}b}"[::-1], 2)


def _literal(byte: int) -> tuple[int, int]:
    """Return code and length of a literal in the fixed Huffman table (RFC 1951, section 3.2.6)."""
    return (_reversed(0x30 + byte, 8), 8) if byte < 144 else (_reversed(0x190 + byte - 144, 9), 9)


def _length(length: int) -> tuple[int, int]:
    """Return the bits of a match of `length` bytes at distance 1, and how many (RFC 1951, section 3.2.5)."""
    if length == 258:
        return _reversed(0xC0 + 5, 8), 13
    symbol, base, extra = 257, 3, 0
    while length >= base + (1 << extra):
        base += 1 << extra
        symbol += 1
        extra = max(0, (symbol - 261) // 4)
    code = (_reversed(symbol - 256, 7), 7) if symbol < 280 else (_reversed(0xC0 + symbol - 280, 8), 8)
    # distance code 0 means distance 1 and is five zero bits
    return code[0] | (length - base) << code[1], code[1] + extra + 5


_LITERALS = [_literal(byte) for byte in range(256)]
_LENGTHS = {length: _length(length) for length in range(3, 259)}


def deflate_runs(data: bytes) -> bytes:
    """Encode as one deflate block with fixed Huffman codes, where only runs of one byte are matched."""
    bits, count = 0b011, 3  # final block, fixed codes
    position = 0
    pieces: list[tuple[int, int]] = []
    for run in _RUN.finditer(data):
        pieces += [_LITERALS[byte] for byte in data[position : run.start() + 1]]
        pieces += _run(run.end() - run.start() - 1)
        position = run.end()
    pieces += [_LITERALS[byte] for byte in data[position:]]
    for code, length in pieces:
        bits |= code << count
        count += length
    count += 7  # end of block: seven zero bits
    return bits.to_bytes((count + 7) // 8, "little")


def _run(length: int) -> list[tuple[int, int]]:
    whole, rest = divmod(length, 258)
    if rest in (1, 2) and whole:  # a match is at least three bytes
        return [_LENGTHS[258]] * (whole - 1) + [_LENGTHS[258 + rest - 3], _LENGTHS[3]]
    return [_LENGTHS[258]] * whole + ([_LENGTHS[rest]] if rest else [])
