"""Inflating, with the fastest library at hand: what comes out is the same for all of them."""

import zlib
from collections.abc import Iterator
from typing import Protocol

_IN, _OUT = 256 << 10, 1 << 20


class Inflater(Protocol):
    """What zlib, zlib-ng and ISA-L have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes | memoryview, /, max_length: int = 0) -> bytes: ...


def _inflater() -> Inflater:
    try:
        from isal import isal_zlib  # noqa: PLC0415 - optional, twice as fast as zlib
    except ImportError:
        return zlib.decompressobj(-15)
    inflater: Inflater = isal_zlib.decompressobj(-15)
    return inflater


class DamagedStreamError(Exception):
    """A deflate stream that is damaged, or does not end where it should."""


def inflate(data: memoryview) -> Iterator[bytes]:
    """Yield the content of a raw deflate stream in bounded pieces; the stream must end exactly with `data`."""
    inflater = _inflater()
    for offset in range(0, len(data), _IN):
        chunk: bytes | memoryview = data[offset : offset + _IN]
        while len(chunk):
            if inflater.eof:
                raise DamagedStreamError("ends before the archive says")
            yield _next(inflater, chunk)
            chunk = inflater.unconsumed_tail
    if not inflater.eof or inflater.unused_data:
        raise DamagedStreamError("does not end where the archive says")


def _next(inflater: Inflater, chunk: bytes | memoryview) -> bytes:
    try:
        return inflater.decompress(chunk, _OUT)
    except Exception as error:  # each library has an exception class of its own
        raise DamagedStreamError(f"is damaged: {error}") from error
