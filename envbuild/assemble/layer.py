"""A layer is spliced, not compressed: a wheel's own deflate streams, each framed as a gzip member.

For each file one small member holds the padding of the file before and the tar header, then one member holds the
wheel's bytes as they are. Two digests are computed while they pass: of the blob, and of the tar inside (the diff id).
"""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

from envbuild.assemble.archive import Member, WheelArchive
from envbuild.assemble.inflate import DamagedStreamError, inflate
from envbuild.assemble.install import InstalledFile
from envbuild.oci import gzip, tar
from envbuild.oci.digest import Digest

_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What was written."""

    digest: Digest
    """Of the compressed blob."""
    size: int
    diff_id: Digest
    """Of the uncompressed tar."""


@dataclass(frozen=True, slots=True)
class LayerFile:
    """A file for a layer, with the archive that its bytes come from."""

    file: InstalledFile
    archive: WheelArchive | None


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link for a layer, below the prefix."""

    path: str
    target: str


class _Hashed:
    """Collects small pieces, so that hashing and writing see large ones."""

    def __init__(self, sink: BinaryIO | None) -> None:
        self._sink, self._sha256, self._buffer, self.size = sink, hashlib.sha256(), bytearray(), 0

    def write(self, data: bytes | memoryview) -> None:
        if len(data) < _BUFFER:
            self._buffer += data
            if len(self._buffer) >= _BUFFER:
                self.flush()
        else:
            self.flush()
            self._out(data)

    def flush(self) -> None:
        self._out(self._buffer)
        self._buffer = bytearray()

    def _out(self, data: bytes | bytearray | memoryview) -> None:
        self._sha256.update(data)
        self.size += len(data)
        if self._sink is not None:
            self._sink.write(data)

    def digest(self) -> Digest:
        self.flush()
        return Digest(self._sha256.hexdigest())


class _LayerWriter:
    def __init__(self, sink: BinaryIO) -> None:
        self._blob, self._tar = _Hashed(sink), _Hashed(None)
        self._pending = b""

    def entry(self, entry: tar.Entry) -> None:
        """Write the header, with the padding that the file before it needs."""
        data = self._pending + tar.header(entry)
        self._pending = bytes(tar.padding(entry.size))
        self._tar.write(data)
        self._blob.write(gzip.member(data))

    def content(self, data: bytes) -> None:
        self._tar.write(data)
        self._blob.write(gzip.start())
        for piece in gzip.stored(data):
            self._blob.write(piece)
        self._blob.write(gzip.end(zlib.crc32(data), len(data)))

    def spliced(self, archive: WheelArchive, member: Member) -> None:
        """Pass a member's own bytes on, checking on the way that they are what the archive says."""
        data = archive.data(member)
        self._blob.write(gzip.start())
        if member.deflated:
            self._blob.write(data)
            self._check(archive, member, _inflated(archive, member, data))
        else:
            for piece in gzip.stored(data):
                self._blob.write(piece)
            self._check(archive, member, [data])
        self._blob.write(gzip.end(member.crc32, member.size))

    def _check(self, archive: WheelArchive, member: Member, pieces: Iterable[bytes | memoryview]) -> None:
        crc32 = size = 0
        for piece in pieces:
            size += len(piece)
            if size > member.size:
                break
            crc32 = zlib.crc32(piece, crc32)
            self._tar.write(piece)
        if (crc32, size) != (member.crc32, member.size):
            raise archive.refuse(f"{member.name} has another size or CRC than the archive says")

    def close(self) -> LayerResult:
        data = self._pending + tar.END
        self._tar.write(data)
        self._blob.write(gzip.member(data))
        digest = self._blob.digest()
        return LayerResult(digest, self._blob.size, self._tar.digest())


def _inflated(archive: WheelArchive, member: Member, data: memoryview) -> Iterable[bytes]:
    try:
        yield from inflate(data)
    except DamagedStreamError as error:
        raise archive.refuse(f"{member.name} {error}") from error


def write_layer(sink: BinaryIO, prefix: str, files: Sequence[LayerFile], links: Sequence[Link] = ()) -> LayerResult:
    """Write one layer with these files and links below `prefix`, parents first, sorted by path."""
    writer = _LayerWriter(sink)
    root = prefix.lstrip("/")
    by_path: dict[str, LayerFile | Link | None] = {}
    items: list[tuple[str, LayerFile | Link]] = [(item.file.path, item) for item in files]
    for name, item in items + [(link.path, link) for link in links]:
        path = f"{root}/{name}"
        by_path[path] = item
        by_path |= {
            str(parent): None for parent in PurePosixPath(path).parents if parent.name and str(parent) not in by_path
        }
    for path in sorted(by_path, key=lambda path: path.split("/")):
        _write_item(writer, path, by_path[path])
    return writer.close()


def _write_item(writer: _LayerWriter, path: str, item: LayerFile | Link | None) -> None:
    if item is None:
        writer.entry(tar.Entry(path, "directory", 0o755))
    elif isinstance(item, Link):
        writer.entry(tar.Entry(path, "symlink", 0o777, target=item.target))
    else:
        source = item.file.source
        size = len(source) if isinstance(source, bytes) else source.size
        writer.entry(tar.Entry(path, "file", item.file.mode, size))
        if size and isinstance(source, bytes):
            writer.content(source)
        elif isinstance(source, Member) and item.archive is not None:
            _write_member(writer, item.archive, source)


def _write_member(writer: _LayerWriter, archive: WheelArchive, member: Member) -> None:
    if member.size:
        writer.spliced(archive, member)
    else:
        archive.read(member)  # an empty file still has to be one
