"""A layer of files that nobody has compressed yet, compressed to the same bytes everywhere.

The compressor is libdeflate in one exact release, as the PyPI package `deflate` carries it: other than zlib, zlib-ng
and ISA-L it takes no other way on another processor. It is asked once for a known answer, so that another release,
which a distribution may have put in its place, is refused and makes no other layer.
"""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from functools import cache, partial
from typing import BinaryIO

from envbuild.errors import MissingComponentError
from envbuild.oci import gzip
from envbuild.wheel.blocks import continued
from envbuild.wheel.inflate import crc32
from envbuild.wheel.layer import LayerResult
from envbuild.wheel.parallel import in_order
from envbuild.wheel.stream import HashedStream

_RELEASE, _LEVEL = "0.9.0", 6
_PIECE = 2 << 20
"""Bytes of the tar that are compressed at once, which decides the bytes of a layer."""
_AHEAD = 3
_KNOWN = "e5477eb89a1edb5d7efe6a50ca87d620c251bc4562548e95da82c99bdd346927"


def write_compressed(tarred: Iterable[bytes | memoryview], sink: BinaryIO, pool: Executor) -> LayerResult:
    """Write a layer from its tar; its bytes do not depend on the pool, nor on where the tar is cut into chunks.

    MissingComponentError where the compressor is absent or another one.
    """
    check_library()
    with HashedStream(sink) as blob, HashedStream() as plain:
        jobs, members = (partial(_compressed, piece) for piece in _pieces(tarred)), gzip.Members()
        for part in in_order(pool, jobs, _AHEAD):
            plain.write(part.plain)
            for piece in members.add(part):
                blob.write(piece)
        for piece in members.ended():
            blob.write(piece)
        return LayerResult(blob.digest(), blob.size, plain.digest())


def _pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Cut what comes into pieces of one size."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _PIECE:
            with memoryview(buffer)[:_PIECE] as piece:
                whole = bytes(piece)
            yield whole
            del buffer[:_PIECE]
    if buffer:
        yield bytes(buffer)


def _compressed(piece: bytes) -> gzip.Part:
    stream = _deflate(piece)
    opened = continued(stream, piece)
    return gzip.Part(opened or stream, piece, final=opened is None, crc32=crc32(piece), size=len(piece))


def _deflate(data: bytes) -> bytes:
    import deflate  # noqa: PLC0415 - few layers need it

    return bytes(deflate.deflate_compress(data, _LEVEL))


@cache
def check_library() -> None:
    """Compare what the compressor makes of a fixed text with what it made when this was written."""
    least = "build with --no-bytecode and --no-system-packages"
    todo = f"install deflate {_RELEASE}, from a wheel; or {least}"
    try:
        found = hashlib.sha256(_deflate(_sample())).hexdigest()
    except ImportError as error:
        what = "the compressor of bytecode and system packages, `deflate`, is absent"
        raise MissingComponentError(what, todo=todo) from error
    if found != _KNOWN:
        what = "the compressor `deflate` makes other bytes than the release that envbuild is made for"
        raise MissingComponentError(what, where=f"sha256 {found}", todo=todo)


def _sample() -> bytes:
    """256 KiB that have something for each part of a compressor: noise, words, runs, far and near repetitions."""
    noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1024))
    words = b" ".join(b"%x" % (byte * byte % 251) for byte in noise)
    return (noise + words + bytes(20_000) + words[::-1] + noise[::3] + words)[: 256 << 10]
