"""A stream of bytes that is hashed, and written where it is wanted, in a thread of its own."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from envbuild.errors import MissingComponentError
from envbuild.oci import gzip, tar
from envbuild.oci.deflate import DamagedStreamError, continued, crc32, inflate, inflate_whole
from envbuild.oci.digest import Digest
from envbuild.wheel.archive import Member, WheelArchive
from envbuild.wheel.install import InstalledFile, record_hash

_BUFFER = 1 << 20
"""Bytes: smaller pieces are collected, so that the thread sees large ones and leaves the others alone."""
_BEHIND = 2
"""Pieces that wait for the thread at most."""


class HashedStream:
    """Takes pieces from one thread; an error of writing comes out of a later call, or at the end."""

    def __init__(self, sink: BinaryIO | None = None) -> None:
        self._sink, self._sha256, self._buffer = sink, hashlib.sha256(), bytearray()
        self._thread, self._waiting = ThreadPoolExecutor(1), deque[Future[None]]()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def write(self, data: bytes | memoryview) -> None:
        """Take a piece, which must not change any more."""
        self.size += len(data)
        if len(data) < _BUFFER:
            self._buffer += data
            if len(self._buffer) >= _BUFFER:
                self._flush()
        else:
            self._flush()
            self._pass(data)

    def digest(self) -> Digest:
        """Wait for the thread; the digest of everything so far."""
        self._flush()
        while self._waiting:
            self._waiting.popleft().result()
        return Digest(self._sha256.hexdigest())

    def _flush(self) -> None:
        if self._buffer:
            self._pass(self._buffer)
            self._buffer = bytearray()

    def _pass(self, data: bytes | bytearray | memoryview) -> None:
        if len(self._waiting) >= _BEHIND:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._take, data))

    def _take(self, data: bytes | bytearray | memoryview) -> None:
        self._sha256.update(data)
        if self._sink is not None:
            self._sink.write(data)


T = TypeVar("T")


def in_order(pool: Executor, jobs: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Yield what the jobs return, in their order, while the pool works on at most `ahead` of those that follow.

    The first error ends it; jobs that have not begun are dropped.
    """
    pending: deque[Future[T]] = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(job))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


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


_RELEASE, _LEVEL = "0.9.0", 6
_PIECE = 2 << 20
"""Bytes of the tar that are compressed at once, which decides the bytes of a layer."""
_PIECES_AHEAD = 3
_KNOWN = "e5477eb89a1edb5d7efe6a50ca87d620c251bc4562548e95da82c99bdd346927"


def write_compressed(tarred: Iterable[bytes | memoryview], sink: BinaryIO, pool: Executor) -> LayerResult:
    """Write a layer from its tar; its bytes do not depend on the pool, nor on where the tar is cut into chunks.

    MissingComponentError where the compressor is absent or another one.
    """
    check_library()
    with HashedStream(sink) as blob, HashedStream() as plain:
        jobs, members = (partial(_compressed, piece) for piece in _pieces(tarred)), gzip.Members()
        for part in in_order(pool, jobs, _PIECES_AHEAD):
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
