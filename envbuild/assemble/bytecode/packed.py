"""Compressed bytecode in a zip archive, so that a layer is spliced from it as it is from a wheel.

The compressor is libdeflate in one exact release, as the PyPI package `deflate` carries it: other than zlib, zlib-ng
and ISA-L it takes no other way on another processor. It is asked once for a known answer, so that another release,
which a distribution may have put in its place, is refused and makes no other layer.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO

from envbuild.errors import MissingComponentError

LEVEL = 6
_DEFLATED, _UTF8, _MADE_BY_UNIX, _VERSION = 8, 0x800, 3 << 8, 20
_TIME, _DATE = 0, 0x21  # 1980-01-01
_MODE = 0o100644 << 16
_MANY = 0xFFFF
"""More files than the old end record can count."""
_KNOWN = "e5477eb89a1edb5d7efe6a50ca87d620c251bc4562548e95da82c99bdd346927"


@dataclass(frozen=True, slots=True)
class Packed:
    """A file that is compressed."""

    data: bytes
    """A raw deflate stream."""
    crc32: int
    """Of the content, as is its size."""
    size: int


def packed(content: bytes) -> Packed:
    """Compress, to bytes that are the same everywhere; MissingComponentError else."""
    check_library()
    return Packed(_deflate(content), zlib.crc32(content), len(content))


def _deflate(data: bytes) -> bytes:
    import deflate  # noqa: PLC0415 - whoever wants no bytecode needs none

    return bytes(deflate.deflate_compress(data, LEVEL))


@cache
def check_library() -> None:
    """Compare what the compressor makes of a fixed text with what it made when this was written."""
    todo = "install the release of `deflate` that envbuild names, from a wheel; or build with --no-bytecode"
    try:
        found = hashlib.sha256(_deflate(_sample())).hexdigest()
    except ImportError as error:
        raise MissingComponentError("bytecode is compressed with `deflate`, which is absent", todo=todo) from error
    if found != _KNOWN:
        what = "the compressor `deflate` makes other bytes than the release that envbuild is made for"
        raise MissingComponentError(what, where=f"sha256 {found}", todo=todo)


def _sample() -> bytes:
    """256 KiB that have something for each part of a compressor: noise, words, runs, far and near repetitions."""
    noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1024))
    words = b" ".join(b"%x" % (byte * byte % 251) for byte in noise)
    return (noise + words + bytes(20_000) + words[::-1] + noise[::3] + words)[: 256 << 10]


class Packer:
    """Writes an archive, file by file, into a new file."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink, self._directory, self._offset = sink, list[bytes](), 0

    def add(self, name: str, file: Packed) -> None:
        """Add a file."""
        encoded = name.encode()
        common = struct.pack(
            "<5H3L2H", _VERSION, _UTF8, _DEFLATED, _TIME, _DATE,
            file.crc32, len(file.data), file.size, len(encoded), 0,
        )  # fmt: skip
        place = struct.pack("<3H2L", 0, 0, 0, _MODE, self._offset)
        self._directory.append(b"PK\1\2" + struct.pack("<H", _MADE_BY_UNIX | _VERSION) + common + place + encoded)
        self._write(b"PK\3\4" + common + encoded)
        self._write(file.data)

    def finish(self) -> None:
        """Write the directory (PKWARE APPNOTE, sections 4.3.12 to 4.3.16); no archive here comes near 4 GiB."""
        start, count = self._offset, len(self._directory)
        for entry in self._directory:
            self._write(entry)
        size, end = self._offset - start, self._offset
        if count >= _MANY:
            large = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
            self._write(large + struct.pack("<4sLQL", b"PK\6\7", 0, end, 1))
        few = min(count, _MANY)
        self._write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, few, few, size, start, 0))

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self._offset += len(data)
