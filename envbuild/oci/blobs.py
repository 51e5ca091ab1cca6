"""Blobs as files: hashed before they are shared or sent, hard-linked instead of copied where possible, and growing."""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO, FileIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from envbuild.cache import workplace
from envbuild.errors import BuildError
from envbuild.files import is_no_file, settle, share, written_aside
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    CONFIG,
    INDEX,
    MANIFEST,
    Content,
    Descriptor,
    Image,
    ImageIndex,
    Layer,
    Opener,
    images_of,
)

READ_ONLY = 0o444
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob: its descriptor, and access to its bytes."""

    descriptor: Descriptor
    open: Opener
    path: Path | None = None
    """Its file in the cache, if it is there."""


def blobs_of(content: Content) -> tuple[Blob, ...]:
    """Return all blobs, each once, before the blobs that refer to them."""
    images = images_of(content)
    layers = [layer for image in images for layer in image.layers]
    blobs = [Blob(layer.descriptor, layer.open, layer.path) for layer in layers]
    for image in images:
        blobs += [_blob(CONFIG, image.config), _blob(MANIFEST, image.manifest)]
    if isinstance(content, ImageIndex):
        blobs.append(_blob(INDEX, content.data))
    once: dict[Digest, Blob] = {}
    for blob in blobs:
        once.setdefault(blob.descriptor.digest, blob)
    return tuple(once.values())


def _blob(media_type: str, data: bytes) -> Blob:
    return Blob(Descriptor(media_type, Digest.of(data), len(data)), partial(BytesIO, data))


def place_blob(blob: Blob, path: Path) -> None:
    """Put the blob at `path`, unless it is there, hashed while it is copied; BuildError if it has another digest."""
    known = blob.descriptor
    if is_blob(path, known):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    cached = blob.path
    with suppress(OSError):  # then it is copied
        can_share = cached is not None and cached.stat().st_dev == path.parent.stat().st_dev
        if cached and can_share and not is_damaged(cached, known) and share(cached, path, mode=READ_ONLY):
            return
    where = str(cached or path)
    with written_aside(path.parent) as (target, temporary):
        try:
            target.writelines(read_blob(partial(open_file, cached) if cached else blob.open, known, where=where))
        except (BuildError, OSError):
            if not cached:
                raise
            target.seek(0)
            target.truncate()
            target.writelines(read_blob(blob.open, known, where=where))  # makes a damaged layer again
        settle(target, temporary, path, mode=READ_ONLY)


def open_file(path: Path) -> BinaryIO:
    """Open a file as a blob, unchecked."""
    return path.open("rb")


def is_blob(path: Path, known: Descriptor) -> bool:
    """Whether a file has the bytes of the blob; False if it cannot be read."""
    try:
        return not is_damaged(path, known)
    except OSError:
        return False


def is_damaged(path: Path, known: Descriptor) -> bool:
    """Whether a file does not have the bytes of the blob; OSError if it cannot be read now."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size != known.size:
            return True
        with path.open("rb") as file:
            return Digest.of_file(file)[0] != known.digest
    except OSError as error:
        if is_no_file(error):
            return True
        raise


def keep_layers(images: Sequence[Image], cache: Path, until: ExitStack) -> list[Image]:
    """Return images whose layers are fetched once: the first reading writes them into a folder as well.

    Those that this machine made are taken from the cache. Where it cannot be written, is full, or `until` has closed,
    they are fetched again.
    """
    folders = [cache / "blobs" / "sha256"]
    with suppress(OSError):  # the cache may only be read
        folders.append(until.enter_context(workplace(cache)))

    def open_kept(layer: Layer) -> BinaryIO:
        paths = [folder / layer.descriptor.digest.hex for folder in folders]
        for path in paths:
            with suppress(OSError):
                if is_blob(path, layer.descriptor):
                    return open_file(path)
        can_keep = len(folders) > 1 and folders[1].is_dir()
        return cast("BinaryIO", _KeepingReader(layer, paths[1])) if can_keep else layer.open()

    def keep(image: Image) -> Image:
        layers = (replace(it, open=partial(open_kept, it)) if it.origin else it for it in image.layers)
        return replace(image, layers=tuple(layers))

    return list(map(keep, images))


class _KeepingReader(RawIOBase):
    """Reads a layer, and writes what was read into a file, which appears when it has the whole layer."""

    def __init__(self, layer: Layer, path: Path) -> None:
        super().__init__()
        self._resources, self._path, self._missing = ExitStack(), path, layer.descriptor.size
        self._source, self._copy = self._resources.enter_context(layer.open()), None
        with suppress(OSError):  # the disk is full, or the folder gone
            self._copy = self._resources.enter_context(written_aside(path.parent))

    def readable(self) -> bool:
        """Return True, as every reader does."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read into the buffer; errors as the layer's own."""
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        self._missing -= len(data)
        if self._copy:
            file, temporary = self._copy
            try:
                file.write(data)
                if self._missing <= 0:
                    settle(file, temporary, self._path, mode=READ_ONLY)
                    self._copy = None
            except OSError:
                self._copy = None
        return len(data)

    def close(self) -> None:
        """Close the layer; a file that is not whole is removed."""
        if not self.closed:
            self._resources.close()
        super().close()


def read_blob(opener: Opener, known: Descriptor, *, where: str) -> Iterator[bytes]:
    """Yield a blob's bytes, the last of them only after all were checked; BuildError if they are wrong."""
    hasher, size, last = hashlib.sha256(), 0, b""
    with opener() as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
            if last and size <= known.size:
                yield last
            last = chunk
        found = Digest(hasher.hexdigest())
        if (found, size) != (known.digest, known.size):
            todo = "build again; if that does not help, clear the cache (ENVBUILD_CACHE)"
            what = f"a layer has the digest {found} and {size} bytes, not {known.digest} and {known.size}"
            raise BuildError(what, where=where, todo=todo)
    if last:
        yield last


_GROWTH = 1 << 18
_SECONDS = 0.02
"""Pause of a reader before it looks for more bytes."""


class AbandonedError(Exception):
    """The bytes read so far are not those of a blob."""


class GrowingBlob:
    """A layer that is read while it is written; its descriptor is known at the end. The block's end abandons it."""

    def __init__(self, path: Path, key: Digest, label: str, expected: int) -> None:
        self.path, self.key, self.label, self.expected = path, key, label, expected
        self.descriptor: Descriptor | None = None
        """None while it grows, and after it was abandoned."""
        self.diff_id: Digest | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def finish(self, descriptor: Descriptor, diff_id: Digest) -> None:
        """Mark it as complete, unless it was abandoned before."""
        if not self._ended.is_set():
            self.descriptor, self.diff_id = descriptor, diff_id
            self._ended.set()

    def abandon(self) -> None:
        """Mark it as abandoned, unless it is finished."""
        self._ended.set()

    def pieces(self, file: FileIO, check: Callable[[], None]) -> Iterator[bytes]:
        """Yield the bytes of the file as they are written; AbandonedError if the blob is abandoned.

        `check` is called repeatedly, and may raise to stop.
        """
        position, ended = 0, False
        while not ended:
            ended = self._ended.wait(_SECONDS)
            while piece := os.pread(file.fileno(), _GROWTH, position):
                check()
                if self._ended.is_set():
                    self.finished()
                position += len(piece)
                yield piece
            check()
        if self.finished().size != position:
            raise AbandonedError(self.label)

    def finished(self) -> Descriptor:
        """Return the descriptor after the end; AbandonedError if there is none."""
        if self.descriptor is None:
            raise AbandonedError(self.label)
        return self.descriptor
