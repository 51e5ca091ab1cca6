"""The writer of layers: spliced from the streams of wheels, or compressed.

A wheel is not compressed again: its own deflate streams are used, with blocks for tar headers between them. For each
file one block holds the padding of the file before and the tar header; the wheel's bytes follow, with the end of their
stream opened. All is one gzip member, as many readers stop after the first. Two digests are computed in threads: of the
blob, and of the tar inside (the diff id). Files are read and inflated in parallel.

Files that are not compressed yet, and the few whose stream cannot be opened, are compressed by libdeflate in one exact
release, as the PyPI package `deflate`
carries it: unlike zlib, zlib-ng and ISA-L it gives the same bytes on every processor. Layers of zstd are the same tars,
compressed by the release of zstd in the package `zstandard`. A known answer shows whether it is that release, as a
distribution may have replaced it.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import BinaryIO, Self, TypeVar

import zstandard

from envbuild.errors import MissingComponentError
from envbuild.oci import gzip, tar
from envbuild.oci.compression import DEFAULT_LEVEL, GZIP, Compression
from envbuild.oci.deflate import DamagedStreamError, LastBlockError, continued, crc32, inflate
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor
from envbuild.wheel.archive import Member, WheelArchive
from envbuild.wheel.install import InstalledFile, record_hash

T = TypeVar("T")

_BUFFER = 1 << 20
"""Bytes: smaller pieces are collected, so that the hashing thread gets large ones and interrupts the others less."""
_BEHIND = 2
"""Pieces that wait for the hashing thread at most."""
_BATCH = 2 << 20
"""Bytes of files, compressed or not, that one job makes a part of the layer from; a larger file is streamed."""
_STORED = 16 * gzip.STORED_LIMIT
_AHEAD = 2
"""Jobs; each keeps a batch, compressed and not."""
_RELEASE, _LEVEL = "0.9.0", 6
_PIECE = 2 << 20
"""Bytes of the tar that are compressed together, which decides the bytes of a layer."""
_PIECES_AHEAD = 3
_KNOWN_ANSWER = "e5477eb89a1edb5d7efe6a50ca87d620c251bc4562548e95da82c99bdd346927"
_ZSTD_RELEASE, _ZSTD_ANSWER = "0.25.0", "99c0d81fd59594cf78b4b503cba1b1e543f6e006b44f6cbbab02c2fd2c944ce4"
_ZSTD_LEVELS = (1, 3, 5, 7, 8)
"""One for each of zstd's strategies up to the highest level here."""
_WORKERS = min(os.cpu_count() or 1, 4)
"""Threads that compress one zstd layer; each keeps some pieces in memory, and more of them wait for the tar."""

Piece = tuple[bytes | memoryview, bytes | memoryview]
"""Bytes of a compressed stream, and their content; either may be empty."""


class HashedStream:
    """Hashes pieces, and writes them if there is a sink, in a thread; errors are raised by a later call."""

    def __init__(self, sink: BinaryIO | None = None) -> None:
        self._sink, self._sha256, self._buffer = sink, hashlib.sha256(), bytearray()
        self._thread, self._waiting = ThreadPoolExecutor(1), deque[Future[None]]()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
            self._submit(data)

    def digest(self) -> Digest:
        """Wait for the thread; return the digest of everything so far."""
        self._flush()
        while self._waiting:
            self._waiting.popleft().result()
        return Digest(self._sha256.hexdigest())

    def _flush(self) -> None:
        if self._buffer:
            self._submit(self._buffer)
            self._buffer = bytearray()

    def _submit(self, data: bytes | bytearray | memoryview) -> None:
        if len(self._waiting) >= _BEHIND:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._take, data))

    def _take(self, data: bytes | bytearray | memoryview) -> None:
        self._sha256.update(data)
        if self._sink is not None:
            self._sink.write(data)


def run_in_order(pool: Executor, jobs: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Yield the results of jobs in their order, while the pool works on at most `ahead` of those that follow.

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


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Digests and size of a written layer."""

    digest: Digest
    """Of the compressed blob."""
    size: int
    diff_id: Digest
    """Of the uncompressed tar."""
    media_type: str = LAYER_GZIP

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of the blob."""
        return Descriptor(self.media_type, self.digest, self.size)


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

    entry: tar.Entry
    content: LayerFile | Link | None
    """None for a folder."""
    padding: int
    """Bytes that complete the block of the entry before."""

    @property
    def weight(self) -> int:
        """Bytes in memory: a compressor may write more than it was given."""
        source = self.content.file.source if isinstance(self.content, LayerFile) else b""
        return len(source) if isinstance(source, bytes) else max(source.size, source.length)


def write_layer(
    sink: BinaryIO,
    prefix: str,
    files: Sequence[LayerFile],
    pool: Executor,
    links: Sequence[Link] = (),
    compression: Compression = GZIP,
) -> LayerResult:
    """Write one layer with these files and links below `prefix`, parents first, sorted by path.

    The bytes do not depend on the pool. Memory stays bounded whatever the size of the files. LastBlockError if the
    stream of a large file cannot be continued, which shows at its end: the sink has bytes then, and the layer can only
    be compressed as a whole.
    """
    if compression != GZIP:
        return write_compressed(tar_layer(prefix, files, pool, links), sink, pool, compression)
    return write_pieces(_layer(prefix, files, pool, links, splice=True), sink)


def tar_layer(
    prefix: str, files: Sequence[LayerFile], pool: Executor, links: Sequence[Link] = ()
) -> Iterator[bytes | memoryview]:
    """Yield the tar that is in the layer of `write_layer`."""
    return (plain for _, plain in _layer(prefix, files, pool, links, splice=False))


def _layer(
    prefix: str, files: Sequence[LayerFile], pool: Executor, links: Sequence[Link], *, splice: bool
) -> Iterator[Piece]:
    """Yield the tar, with its deflate blocks if it is spliced, and nothing otherwise."""
    items = _items(prefix.lstrip("/"), files, links)
    jobs = (partial(_batch_pieces, batch, splice=splice) for batch in _batches(items))
    for pieces in run_in_order(pool, jobs, _AHEAD):
        yield from pieces
    end = bytes(tar.padding(items[-1].entry.size) if items else 0) + tar.END
    yield gzip.deflate_runs(end, final=False) if splice else b"", end


def _batch_pieces(batch: Sequence[_Item], *, splice: bool) -> Iterable[Piece]:
    """Make a piece of the layer: at once, except for a large file, which is inflated while the pieces are taken."""
    if batch[0].weight > _BATCH:  # which has a batch of its own
        return _pieces(batch[0], splice=splice)
    return [_join(piece for item in batch for piece in _small_pieces(item, splice=splice))]


def _join(pieces: Iterable[Piece]) -> Piece:
    blocks, plain = zip(*pieces, strict=True)
    return b"".join(blocks), b"".join(plain)


def _small_pieces(item: _Item, *, splice: bool) -> Sequence[Piece]:
    try:
        return list(_pieces(item, splice=splice))
    except LastBlockError:
        return [_compress(b"".join(plain for _, plain in _pieces(item, splice=False)))]


def _pieces(item: _Item, *, splice: bool) -> Iterator[Piece]:
    header = bytes(item.padding) + tar.header(item.entry)
    yield gzip.deflate_runs(header, final=False) if splice else b"", header
    if not isinstance(item.content, LayerFile):
        return
    source, archive = item.content.file.source, item.content.archive
    if isinstance(source, bytes):
        yield _store(source, splice=splice)
    elif archive is not None:
        if source.deflated:
            pieces = _inflate(archive, source, continued if splice else inflate)
        else:
            pieces = (_store(part, splice=splice) for part in _slices(archive, source))
        yield from _check(archive, source, pieces, item.content.file.recorded)


def _store(data: bytes | memoryview, *, splice: bool) -> Piece:
    return b"".join(gzip.stored(data, final=False)) if splice else b"", data


def _items(root: str, files: Sequence[LayerFile], links: Sequence[Link]) -> list[_Item]:
    contents: dict[str, LayerFile | Link | None] = {f"{root}/{item.file.path}": item for item in files}
    contents |= {f"{root}/{link.path}": link for link in links}
    for path in list(contents):
        parent = path.rpartition("/")[0]
        while parent and parent not in contents:
            contents[parent] = None
            parent = parent.rpartition("/")[0]
    items, padding = [], 0
    for path in sorted(contents, key=lambda path: path.split("/")):
        content = contents[path]
        if isinstance(content, LayerFile):
            source = content.file.source
            size = len(source) if isinstance(source, bytes) else source.size
            entry = tar.Entry(path, "file", content.file.mode, size)
        elif content:
            entry = tar.Entry(path, "symlink", 0o777, target=content.target)
        else:
            entry = tar.Entry(path, "directory", 0o755)
        items.append(_Item(entry, content, padding))
        padding = tar.padding(entry.size)
    return items


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


def _inflate(
    archive: WheelArchive, member: Member, read: Callable[[memoryview], Iterator[tuple[bytes | memoryview, bytes]]]
) -> Iterator[Piece]:
    done = 0
    try:
        for taken, piece in read(archive.data(member)):
            yield taken, piece
            done += len(taken)
            archive.release(member, done)
    except DamagedStreamError as error:
        raise archive.refuse(f"{member.name} {error}") from error


def _slices(archive: WheelArchive, member: Member) -> Iterator[memoryview]:
    """Yield the content of a member that is stored."""
    data = archive.data(member)
    for offset in range(0, len(data), _STORED):
        part = data[offset : offset + _STORED]
        yield part
        archive.release(member, offset + len(part))


def _check(archive: WheelArchive, member: Member, pieces: Iterable[Piece], recorded: str) -> Iterator[Piece]:
    """Refuse content that does not match the directory; note content that matches RECORD, which no installer checks."""
    checksum = size = 0
    hasher = hashlib.sha256() if archive.verify_record else None
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
        archive.verified_members.add(member.name)


def write_compressed(
    tarred: Iterable[bytes | memoryview], sink: BinaryIO, pool: Executor, compression: Compression = GZIP
) -> LayerResult:
    """Compress a tar into a layer; the bytes depend neither on the pool nor on the sizes of the chunks.

    MissingComponentError if the compressor is absent or another release.
    """
    check_library(compression)
    if compression == GZIP:
        return write_pieces(run_in_order(pool, map(partial(partial, _compress), _cut(tarred)), _PIECES_AHEAD), sink)
    return write_pieces(_zstd(tarred, compression.level, _WORKERS), sink, compression)


def write_pieces(pieces: Iterable[Piece], sink: BinaryIO, compression: Compression = GZIP) -> LayerResult:
    """Write a layer of compressed pieces; of deflate blocks, none of them final, one gzip member."""
    checksum = 0
    with HashedStream(sink) as blob, HashedStream() as plain:
        if compression == GZIP:
            blob.write(gzip.HEADER)
        for packed, piece in pieces:
            plain.write(piece)
            blob.write(packed)
            checksum = crc32(piece, checksum) if compression == GZIP else 0
        if compression == GZIP:
            blob.write(gzip.LAST + gzip.end(checksum, plain.size))
        return LayerResult(blob.digest(), blob.size, plain.digest(), compression.media_type)


def _zstd(tarred: Iterable[bytes | memoryview], level: int, workers: int) -> Iterator[Piece]:
    """Compress into one frame, as many readers stop after the first; its bytes are the same for any workers above 0."""
    settings = zstandard.ZstdCompressionParameters.from_level(level, threads=workers, job_size=_PIECE)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    for piece in tarred:
        yield compressor.compress(piece), piece
    yield compressor.flush(), b""


def _cut(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
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


def _compress(content: bytes) -> Piece:
    """Compress into blocks that are not final: of the halves, if the last block is not found."""
    check_library()
    try:
        return b"".join(block for block, _ in continued(memoryview(_deflate(content)))), content
    except LastBlockError:
        half = len(content) // 2
        return _join([_compress(content[:half]), _compress(content[half:])])


def _deflate(data: bytes) -> bytes:
    import deflate  # noqa: PLC0415 - few layers need it

    return bytes(deflate.deflate_compress(data, _LEVEL))


@cache
def check_library(compression: Compression = GZIP) -> None:
    """Compress a fixed text, and compare the result with that of the required release; MissingComponentError."""
    # 256 KiB with something for each part of a compressor: noise, words, runs, far and near repetitions
    noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1024))
    words = b" ".join(b"%x" % (byte * byte % 251) for byte in noise)
    sample = (noise + words + bytes(20_000) + words[::-1] + noise[::3] + words)[: 256 << 10]
    if compression == GZIP:
        name, release, known = "deflate", _RELEASE, _KNOWN_ANSWER
        without = "--compression zstd"
    else:
        name, release, known, without = "zstandard", _ZSTD_RELEASE, _ZSTD_ANSWER, "--compression gzip"
    todo = f"install {name} {release}, from a wheel; or build with {without}"
    try:
        packed = _deflate(sample) if compression == GZIP else _zstd_samples(sample)
    except (ImportError, zstandard.ZstdError) as error:
        what = f"the package `{name}`, which compresses layers, cannot be used: {error}"
        raise MissingComponentError(what, todo=todo) from error
    answer = hashlib.sha256(packed).hexdigest()
    if answer != known:
        what = f"the package `{name}` compresses to other bytes than release {release}"
        raise MissingComponentError(what, where=f"sha256 {answer}", todo=todo)


def _zstd_samples(sample: bytes) -> bytes:
    """Compress the sample at several levels, and one of three pieces, which overlap."""
    several = b"".join(b"%d" % number + sample for number in range(20))
    frames = [_zstd([sample], level, 1) for level in _ZSTD_LEVELS] + [_zstd([several], DEFAULT_LEVEL, 2)]
    return b"".join(packed for frame in frames for packed, _ in frame)
