"""Files from outside the wheels in a layer of their own: an application, a model, a list.

Equal files give equal bytes on any machine: sorted, 0644 or 0755, owner 0:0, one fixed time. They are streamed. In gzip
they are stored uncompressed: weights hardly get smaller, and that costs seconds.
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
from envbuild.image.layers.maker import LayerSpec
from envbuild.image.layers.writer import LayerResult, write_compressed, write_pieces
from envbuild.oci import gzip, tar
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import LAYER_FORMAT
from envbuild.wheel.archive import parents

_CHUNK = 16 * gzip.STORED_LIMIT
"""Bytes that are read at a time: a multiple of a stored block, so that the blocks are always the same."""
_AGAIN = "run it again while nobody writes there"


@dataclass(frozen=True, slots=True)
class Content:
    """The files of one layer."""

    line: str
    """The layer's line in the image's history."""
    files: Mapping[str, bytes | Path]
    """By absolute path in the image."""
    executable: frozenset[str] = frozenset()
    """Paths of executable files."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Targets of symbolic links, by absolute path in the image."""
    known: Mapping[str, Digest] = field(default_factory=dict)
    """Known digests of files, by path in the image; the others are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFile:
    """A file with its digest, which is checked whenever it is read."""

    path: str
    """In the image, without the leading slash."""
    source: bytes | Path
    digest: Digest
    size: int
    executable: bool

    def read(self) -> bytes:
        """Return the content; BuildError if it has changed."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces of a fixed size; BuildError, after the last, if it has changed."""
        hasher, size = sha256(), 0
        with _open(self.source) as file:
            while (piece := file.read(_CHUNK)) and (size := size + len(piece)) <= self.size:
                hasher.update(piece)
                yield piece
        if (size, hasher.hexdigest()) != (self.size, self.digest.hex):
            where = f"/{self.path}" if isinstance(self.source, bytes) else str(self.source)
            raise BuildError("the file changed while it was put into a layer", where=where, todo=_AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedContent:
    """Content whose digests are known."""

    line: str
    files: tuple[ContentFile, ...]
    links: tuple[tuple[str, str], ...]
    """Paths without the leading slash, and targets."""

    @property
    def key(self) -> Digest:
        """Digest of everything that decides the bytes."""
        rows = [[it.path, it.digest.hex, it.executable] for it in self.files]
        return Digest.of(canonical_json(["content", LAYER_FORMAT, rows, self.links]))

    @property
    def spec(self) -> LayerSpec:
        """The layer to make; BuildError if a path is a file and a folder."""
        return LayerSpec(
            label=self.line,
            key=self.key,
            files=lambda _: (),
            weight=sum(it.size for it in self.files),
            writer=partial(_write, _entries(self)),
        )


def hash_content(content: Content) -> HashedContent:
    """Compute the digests of files; BuildError if one cannot be read, or a path is not valid in a layer."""
    for path in (*content.files, *content.links):
        _check(path)
    files = []
    for path, source in sorted(content.files.items()):
        known, executable = content.known.get(path), path in content.executable
        with _open(source) as file:
            digest, size = Digest.of_file(file) if known is None else (known, file.seek(0, os.SEEK_END))
        files.append(ContentFile(path=path[1:], source=source, digest=digest, size=size, executable=executable))
    links = sorted((path[1:], target) for path, target in content.links.items())
    return HashedContent(line=content.line, files=tuple(files), links=tuple(links))


def _check(path: str) -> None:
    parts = path.split("/")[1:]
    if not path.startswith("/") or "\0" in path or {"", ".", ".."} & set(parts):
        raise BuildError(f"{path!r} is not a valid path in an image", todo="give an absolute path without . and ..")
    if any(part.startswith(".wh.") for part in parts):
        todo = "give the file another name, or leave it out"
        raise BuildError(f"{path!r} means a deletion in an image layer (OCI whiteout)", todo=todo)
    if not path.isascii() and path != path.encode(errors="replace").decode():
        raise BuildError(f"the name {path!a} is not UTF-8", todo="give the file a name in UTF-8")


@contextmanager
def _open(source: bytes | Path) -> Iterator[BinaryIO]:
    """Open a regular file, without blocking."""
    if isinstance(source, bytes):
        yield BytesIO(source)
        return
    try:
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BuildError("this is not a regular file any more", where=str(source), todo=_AGAIN)
            yield file
    except OSError as error:
        todo = "check that it exists and that this user may read it"
        raise BuildError(f"the file cannot be read: {error.strerror}", where=str(source), todo=todo) from error


_Entry = tuple[tar.Entry, ContentFile | None]


def _entries(content: HashedContent) -> list[_Entry]:
    """Return all entries of the tar, parents first."""
    found: dict[str, _Entry] = {
        it.path: (tar.Entry(it.path, "file", 0o755 if it.executable else 0o644, it.size), it) for it in content.files
    }
    found |= {path: (tar.Entry(path, "symlink", 0o777, target=to), None) for path, to in content.links}
    folders = {parent for path in found for parent in parents(path)}
    if both := sorted(folders & found.keys()):
        raise BuildError(f"/{both[0]} would be a file and a folder", where=content.line, todo="leave one of them out")
    found |= {path: (tar.Entry(path, "directory", 0o755), None) for path in folders}
    return [found[path] for path in sorted(found, key=lambda path: path.split("/"))]


def _write(entries: Sequence[_Entry], sink: BinaryIO, pool: Executor, compression: Compression) -> LayerResult:
    """Write the layer in bounded memory: zstd, or one gzip member of stored blocks."""
    pieces = tar.pieces((entry, file.pieces() if file else ()) for entry, file in entries)
    if compression != GZIP:
        return write_compressed((data for _, data in pieces), sink, pool, compression)
    return write_pieces(
        (
            (gzip.deflate_runs(bytes(data), final=False) if header else b"".join(gzip.stored(data, final=False)), data)
            for header, data in pieces
        ),
        sink,
    )
