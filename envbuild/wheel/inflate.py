"""Inflating, with the fastest library at hand: what comes out is the same for all of them."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

_IN, _OUT = 1 << 20, 1 << 20
_UNSUSPICIOUS, _EXPANSION = 1 << 30, 200
"""No real wheel or layer above so many bytes is so many times its packed size; deflate expands up to 1032 times."""
_WINDOW = bytes(1 << 15)
"""As much as a distance reaches back (RFC 1951, section 2)."""
GZIP_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
"""What reading a gzip file raises that is damaged."""


class Inflater(Protocol):
    """What zlib and zlib-ng have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes | memoryview, /, max_length: int = 0) -> bytes: ...


class Decoder(Inflater, Protocol):
    """One that can be copied where it stands."""

    def copy(self) -> "Decoder": ...


_library: Any = zlib
_copying: Any = zlib
"""Apart from the other one, as not each library's decoders can be copied."""
_gzip: Any = gzip.GzipFile
# Optional: inflates nearly twice as fast. ISA-L would be a little faster still, but takes streams whose codes are
# incomplete, which zlib refuses, and Go's library, and so every engine that were to unpack the layer.
with suppress(ImportError):
    from zlib_ng import gzip_ng
    from zlib_ng import zlib_ng as _library

    _copying, _gzip = _library, gzip_ng.GzipFile
    GZIP_ERRORS = (*GZIP_ERRORS, _library.error)


def expansion_limit(packed: int) -> int:
    """Return to how many bytes so many packed ones may expand: 200 times as many, or 1 GiB."""
    return max(_UNSUSPICIOUS, _EXPANSION * packed)


def open_gzip(file: BinaryIO) -> BinaryIO:
    """Read a gzip file of one or more members (RFC 1952)."""
    opened: BinaryIO = _gzip(fileobj=file)
    return opened


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """CRC-32 of bytes, going on from that of what came before."""
    checksum: int = _library.crc32(data, before)
    return checksum


class DamagedStreamError(Exception):
    """A deflate stream that is damaged, or does not end where it should."""


def decoder() -> Decoder:
    """What decodes a raw deflate stream from its beginning, can be copied, and takes every distance."""
    made: Decoder = _copying.decompressobj(-15, _WINDOW)
    return made


def inflated(inflater: Inflater, data: bytes | memoryview, most: int = 0) -> bytes:
    """What becomes of data that a decoder gets; at most so many bytes, or 0 for all. Raises DamagedStreamError."""
    try:
        return inflater.decompress(data, most)
    except Exception as error:  # each library has an exception class of its own
        raise DamagedStreamError(f"is damaged: {error}") from error


def inflate(data: memoryview) -> Iterator[tuple[memoryview, bytes]]:
    """Yield the content of a raw deflate stream in bounded pieces, each with the part of `data` that was taken for it.

    The stream must end exactly with `data`.
    """
    inflater, nothing = _inflater(), data[:0]
    for offset in range(0, len(data), _IN):
        taken = data[offset : offset + _IN]
        rest: bytes | memoryview = taken
        while len(rest):
            if inflater.eof:
                raise DamagedStreamError("ends before the archive says")
            piece = inflated(inflater, rest, _OUT)
            rest = inflater.unconsumed_tail
            yield taken, piece
            taken = nothing
    # A few bits at the end may stand for more bytes than one piece takes: all input is in, not all output is out.
    while not inflater.eof and (piece := inflated(inflater, b"", _OUT)):
        yield nothing, piece
    if not inflater.eof or inflater.unused_data:
        raise DamagedStreamError("does not end where the archive says")


def inflate_whole(data: memoryview, size: int) -> bytes:
    """Return the content of a raw deflate stream that must end with `data`; of a longer content than `size`, a part."""
    inflater = _inflater()
    content = inflated(inflater, data, size + 1)
    if len(content) <= size and (not inflater.eof or inflater.unused_data):
        raise DamagedStreamError("does not end where the archive says")
    return content


def stands_for(stream: bytes, content: bytes) -> bool:
    """Whether a raw deflate stream is whole and becomes this content."""
    inflater = _inflater()
    try:
        plain = inflated(inflater, stream, len(content) + 1)
    except DamagedStreamError:
        return False
    return inflater.eof and not inflater.unused_data and plain == content


def _inflater() -> Inflater:
    made: Inflater = _library.decompressobj(-15)
    return made
