"""Files that are no wheel's in a layer of their own: an application, a model, a list.

Equal files give equal bytes on any machine: sorted, 0644 or 0755, owner 0:0, one fixed time. What lies on a disk is
streamed and stored as it is: weights hardly get smaller, and no compression library has a say in the digest.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError
from envbuild.image.layers.maker import LayerOrder
from envbuild.image.layers.writer import HashedStream, LayerResult
from envbuild.oci import gzip, tar
from envbuild.oci.deflate import crc32
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import LAYER_FORMAT
from envbuild.wheel.archive import parents

_CHUNK = 16 * gzip.STORED_LIMIT
"""Bytes that are read at a time; a multiple of what a stored block holds, so that the blocks are always the same."""
_AGAIN = "run it again while nobody writes there"


@dataclass(frozen=True, slots=True)
class Content:
    """What one layer brings."""

    line: str
    """What the image's history says."""
    files: Mapping[str, bytes | Path]
    """By their absolute paths in the image."""
    executable: frozenset[str] = frozenset()
    """The paths of those that may be executed."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Where symbolic links point, by their absolute paths in the image."""
    known: Mapping[str, Digest] = field(default_factory=dict)
    """Digests that files on a disk were found to have, by paths in the image; of the others they are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFile:
    """A file and what it holds, which it has to hold still whenever it is read."""

    path: str
    """In the image, without the slash before it."""
    source: bytes | Path
    digest: Digest
    size: int
    executable: bool

    def read(self) -> bytes:
        """All of it; BuildError where it is not what it was."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Its bytes in pieces of a fixed size; BuildError, after the last, where they are not what they were."""
        hasher, size = sha256(), 0
        with _opened(self.source) as file:
            while (piece := file.read(_CHUNK)) and (size := size + len(piece)) <= self.size:
                hasher.update(piece)
                yield piece
        if (size, hasher.hexdigest()) != (self.size, self.digest.hex):
            where = f"/{self.path}" if isinstance(self.source, bytes) else str(self.source)
            raise BuildError("the file changed while it was put into a layer", where=where, todo=_AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Content whose digests are known."""

    line: str
    files: tuple[ContentFile, ...]
    links: tuple[tuple[str, str], ...]
    """Paths without the slash before them, and where they point."""

    @property
    def key(self) -> Digest:
        """Everything that decides the layer's bytes."""
        rows = [[it.path, it.digest.hex, it.executable] for it in self.files]
        return Digest.of(canonical_json(["content", LAYER_FORMAT, rows, self.links]))

    @property
    def order(self) -> LayerOrder:
        """What is ordered for it; BuildError where a path is a file and a folder."""
        return LayerOrder(
            label=self.line,
            key=self.key,
            files=lambda _: (),
            weight=sum(it.size for it in self.files),
            writer=partial(_write, _entries(self)),
        )


def measured(content: Content) -> Measured:
    """Compute the digests of what lies on a disk; BuildError where it cannot be read, or a path can be in no layer."""
    for path in (*content.files, *content.links):
        _check(path)
    files = tuple(_file(content, path) for path in sorted(content.files))
    return Measured(
        line=content.line, files=files, links=tuple(sorted((path[1:], to) for path, to in content.links.items()))
    )


def _check(path: str) -> None:
    parts = path.split("/")[1:]
    if not path.startswith("/") or "\0" in path or {"", ".", ".."} & set(parts):
        raise BuildError(f"{path!r} is no path of a file in an image", todo="give an absolute path in its plain form")
    if any(part.startswith(".wh.") for part in parts):
        todo = "give the file another name, or leave it out"
        raise BuildError(f"{path!r} means a deletion in an image layer (OCI whiteout)", todo=todo)
    if not path.isascii() and path != path.encode(errors="replace").decode():
        raise BuildError(f"the name {path!a} is not UTF-8", todo="give the file a name in UTF-8")


def _file(content: Content, path: str) -> ContentFile:
    source, known = content.files[path], content.known.get(path)
    with _opened(source) as file:
        digest, size = Digest.of_file(file) if known is None else (known, file.seek(0, os.SEEK_END))
    return ContentFile(path=path[1:], source=source, digest=digest, size=size, executable=path in content.executable)


@contextmanager
def _opened(source: bytes | Path) -> Iterator[BinaryIO]:
    """Open a regular file; nothing that would block is waited for."""
    if isinstance(source, bytes):
        yield BytesIO(source)
        return
    try:
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BuildError("this is no regular file any more", where=str(source), todo=_AGAIN)
            yield file
    except OSError as error:
        todo = "see that it is there and may be read"
        raise BuildError(f"the file cannot be read: {error.strerror}", where=str(source), todo=todo) from error


_Entry = tuple[tar.Entry, ContentFile | None]


def _entries(content: Measured) -> list[_Entry]:
    """All entries of the tar, parents first."""
    found: dict[str, _Entry] = {
        it.path: (tar.Entry(it.path, "file", 0o755 if it.executable else 0o644, it.size), it) for it in content.files
    }
    found |= {path: (tar.Entry(path, "symlink", 0o777, target=to), None) for path, to in content.links}
    folders = {parent for path in found for parent in parents(path)}
    if both := sorted(folders & found.keys()):
        raise BuildError(f"/{both[0]} would be a file and a folder", where=content.line, todo="leave one of them out")
    found |= {path: (tar.Entry(path, "directory", 0o755), None) for path in folders}
    return [found[path] for path in sorted(found, key=lambda path: path.split("/"))]


def _write(entries: Sequence[_Entry], sink: BinaryIO, _pool: Executor) -> LayerResult:
    """Write the layer as one gzip member, in bounded memory."""
    with HashedStream(sink) as blob, HashedStream() as tarred:
        blob.write(gzip.start())
        checksum = 0
        for packed, plain in _blocks(entries):
            checksum = crc32(plain, checksum)
            blob.write(packed)
            tarred.write(plain)
        blob.write(gzip.LAST + gzip.end(checksum, tarred.size))
        return LayerResult(blob.digest(), blob.size, tarred.digest())


def _blocks(entries: Sequence[_Entry]) -> Iterator[tuple[bytes, bytes]]:
    """The blob in pieces, each with the part of the tar that it stands for."""
    before = 0
    for entry, file in entries:
        head = bytes(before) + tar.header(entry)
        yield gzip.deflate_runs(head, final=False), head
        for piece in file.pieces() if file else ():
            yield b"".join(gzip.stored(piece, final=False)), piece
        before = tar.padding(entry.size)
    end = bytes(before) + tar.END
    yield gzip.deflate_runs(end, final=False), end
