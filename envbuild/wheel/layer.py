"""A layer is spliced, not compressed: a wheel's own deflate streams, with blocks between them for the tar's headers.

For each file one block holds the padding of the file before and the tar header, then come the wheel's bytes as they
are. A gzip member goes on until a wheel's stream ends it, as that of a large file does, and the few whose last block is
not found. Two digests are computed beside it, each in a thread: of the blob, and of the tar inside (the diff id). Files
are read and inflated in parallel, some ahead of what is being written.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import BinaryIO

from envbuild.oci import gzip, tar
from envbuild.oci.digest import Digest
from envbuild.wheel.archive import Member, WheelArchive
from envbuild.wheel.blocks import continued
from envbuild.wheel.inflate import DamagedStreamError, crc32, inflate, inflate_whole
from envbuild.wheel.install import InstalledFile, record_hash
from envbuild.wheel.parallel import in_order
from envbuild.wheel.stream import HashedStream

_BATCH = 2 << 20
"""Bytes of files, compressed or not, that one job makes a part of the layer from; a larger file is streamed."""
_STORED = 16 * gzip.STORED_LIMIT
_AHEAD = 2
"""Jobs; each keeps a batch, compressed and not."""

Piece = tuple[bytes | memoryview, bytes | memoryview]
"""Bytes of a deflate stream, and what comes out of it; either may be nothing."""


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


@dataclass(frozen=True, slots=True)
class _Item:
    """One entry of the tar."""

    path: str
    content: LayerFile | Link | None
    """None for a folder."""
    padding: int
    """Bytes that complete the block of the entry before."""

    @property
    def size(self) -> int:
        return _size(self.content)

    @property
    def weight(self) -> int:
        """Bytes that are in memory for it: nothing keeps a compressor from writing more than it was given."""
        source = self.content.file.source if isinstance(self.content, LayerFile) else b""
        return len(source) if isinstance(source, bytes) else max(source.size, source.length)


def write_layer(
    sink: BinaryIO, prefix: str, files: Sequence[LayerFile], pool: Executor, links: Sequence[Link] = ()
) -> LayerResult:
    """Write one layer with these files and links below `prefix`, parents first, sorted by path.

    The bytes do not depend on the pool. Memory stays bounded whatever the size of the files.
    """
    items, members = _items(prefix.lstrip("/"), files, links), gzip.Members()
    with HashedStream(sink) as blob, HashedStream() as plain:

        def write(part: gzip.Part) -> None:
            for piece in members.add(part):
                blob.write(piece)
            plain.write(part.plain)

        for parts in in_order(pool, (partial(_made, batch) for batch in _batches(items)), _AHEAD):
            for part in parts:
                write(part)
        data = _end(items)
        write(gzip.Part(gzip.deflate_runs(data), data, final=True, crc32=crc32(data), size=len(data)))
        return LayerResult(blob.digest(), blob.size, plain.digest())


def tarred(prefix: str, files: Sequence[LayerFile], links: Sequence[Link] = ()) -> Iterator[bytes | memoryview]:
    """The tar that `write_layer` would write, for whoever compresses it."""
    items = _items(prefix.lstrip("/"), files, links)
    for item in items:
        yield _header(item)
        yield from _content(item)
    yield _end(items)


def _content(item: _Item) -> Iterator[bytes | memoryview]:
    if isinstance(item.content, LayerFile):
        source, archive = item.content.file.source, item.content.archive
        if isinstance(source, bytes):
            yield source
        elif archive is not None:
            pieces = _inflated(archive, source) if source.deflated else [(b"", archive.data(source))]
            yield from (plain for _, plain in _checked(archive, source, pieces, item.content.file.recorded))


def _end(items: Sequence[_Item]) -> bytes:
    """What follows the last entry's content."""
    return bytes(tar.padding(items[-1].size) if items else 0) + tar.END


def _items(root: str, files: Sequence[LayerFile], links: Sequence[Link]) -> list[_Item]:
    found: dict[str, LayerFile | Link | None] = {f"{root}/{item.file.path}": item for item in files}
    found |= {f"{root}/{link.path}": link for link in links}
    for path in list(found):
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            found[parent] = None
            parent = parent.rpartition("/")[0]
    items, padding = [], 0
    for path in sorted(found, key=lambda path: path.split("/")):
        items.append(_Item(path, found[path], padding))
        padding = tar.padding(_size(found[path]))
    return items


def _size(content: LayerFile | Link | None) -> int:
    if not isinstance(content, LayerFile):
        return 0
    source = content.file.source
    return len(source) if isinstance(source, bytes) else source.size


def _batches(items: Sequence[_Item]) -> Iterator[list[_Item]]:
    batch: list[_Item] = []
    size = 0
    for item in items:
        if batch and size + item.weight > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.weight + tar.BLOCK
    if batch:
        yield batch


def _made(batch: Sequence[_Item]) -> Iterable[gzip.Part]:
    """Make a part of the layer: at once, but for a large file, which is inflated while it is taken."""
    if len(batch) == 1 and batch[0].weight > _BATCH:
        return _streamed(batch[0])
    return list(gzip.gathered((part for item in batch for part in _parts(item)), crc32))


def _streamed(item: _Item) -> Iterator[gzip.Part]:
    content = item.content
    assert isinstance(content, LayerFile)
    source = content.file.source
    if isinstance(source, bytes) or content.archive is None:
        yield from gzip.gathered(_parts(item), crc32)
        return
    header = _header(item)
    yield from gzip.gathered([gzip.Part(gzip.deflate_runs(header, final=False), header)], crc32)
    for compressed, plain in _spliced(content.archive, source, content.file.recorded):
        yield gzip.Part(compressed, plain)
    yield gzip.Part(b"", b"", final=source.deflated, crc32=source.crc32, size=source.size)


def _header(item: _Item) -> bytes:
    """Return the padding of the entry before, and the tar header."""
    content = item.content
    if isinstance(content, LayerFile):
        entry = tar.Entry(item.path, "file", content.file.mode, item.size)
    elif content:
        entry = tar.Entry(item.path, "symlink", 0o777, target=content.target)
    else:
        entry = tar.Entry(item.path, "directory", 0o755)
    return bytes(item.padding) + tar.header(entry)


def _parts(item: _Item) -> Iterator[gzip.Part]:
    header = _header(item)
    yield gzip.Part(gzip.deflate_runs(header, final=False), header)
    content = item.content
    if not isinstance(content, LayerFile):
        return
    source = content.file.source
    if isinstance(source, bytes):
        if source:
            yield _stored(source)
    elif content.archive is not None:
        yield from _small(content.archive, source, content.file.recorded)


def _stored(content: bytes) -> gzip.Part:
    return gzip.Part(b"".join(gzip.stored(content, final=False)), content)


def _small(archive: WheelArchive, member: Member, recorded: str) -> Iterator[gzip.Part]:
    if not member.size:
        archive.read(member)  # an empty file still has to be one
        return
    if not member.deflated:
        yield _stored(b"".join([plain for _, plain in _spliced(archive, member, recorded)]))
        return
    data = archive.data(member)
    try:
        content = inflate_whole(data, member.size)
    except DamagedStreamError as error:
        raise archive.refuse(f"{member.name} {error}") from error
    list(_checked(archive, member, [(b"", content)], recorded))
    stream = bytes(data)
    archive.release(member, len(stream))
    opened = continued(stream, content)
    yield gzip.Part(opened or stream, content, final=opened is None)


def _spliced(archive: WheelArchive, member: Member, recorded: str) -> Iterator[Piece]:
    """Pass a member's own bytes on, checking on the way that they are what the archive says."""
    pieces = _inflated if member.deflated else _framed
    return _checked(archive, member, pieces(archive, member), recorded)


def _inflated(archive: WheelArchive, member: Member) -> Iterator[Piece]:
    done = 0
    try:
        for taken, piece in inflate(archive.data(member)):
            yield taken, piece
            done += len(taken)
            archive.release(member, done)
    except DamagedStreamError as error:
        raise archive.refuse(f"{member.name} {error}") from error


def _framed(archive: WheelArchive, member: Member) -> Iterator[Piece]:
    data = archive.data(member)
    for offset in range(0, len(data), _STORED):
        part = data[offset : offset + _STORED]
        yield b"".join(gzip.stored(part, final=False)), part
        archive.release(member, offset + len(part))


def _checked(archive: WheelArchive, member: Member, pieces: Iterable[Piece], recorded: str) -> Iterator[Piece]:
    """Refuse what is not as the directory says; note what is as RECORD says, which no installer asks for."""
    checksum = size = 0
    hasher = sha256() if archive.proving else None
    for blob, piece in pieces:
        size += len(piece)
        if size > member.size:
            break
        checksum = crc32(piece, checksum)
        if hasher:
            hasher.update(piece)
        yield blob, piece
    if (checksum, size) != (member.crc32, member.size):
        raise archive.refuse(f"{member.name} has another size or CRC than the archive says")
    if hasher and record_hash(hasher.digest()) == recorded:
        archive.true.add(member.name)
