"""Blobs as files: put in place without copying where that can be, and known again without reading them.

A blob that was read and found right is sealed: it may not be written any more, and its time of change becomes one that
only its digest gives. Whoever writes to it, which root and its owner still can, changes that time. So a cache and the
layouts that share its files need one look at a blob, not a read; a blob without its seal is read, and believed only
then. Seals guard against accidents alone: whoever forges one meets those who check what they pull or load.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError
from envbuild.files import settle, share, written_aside
from envbuild.oci.digest import Digest
from envbuild.oci.image import CONFIG, INDEX, MANIFEST, Descriptor, Opener
from envbuild.oci.index import Content, ImageIndex, images_of
from envbuild.oci.tar import MTIME

READ_ONLY = 0o444
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One blob: what it is, and how to get its bytes."""

    descriptor: Descriptor
    open: Opener
    path: Path | None = None
    """The file of a cache that holds it, if one does."""


def blobs_of(content: Content) -> tuple[Blob, ...]:
    """All blobs, each once; what names others comes after them."""
    images = images_of(content)
    layers = [layer for image in images for layer in image.layers]
    blobs = [Blob(descriptor=layer.descriptor, open=layer.open, path=layer.path) for layer in layers]
    for image in images:
        blobs += [_made(CONFIG, image.config), _made(MANIFEST, image.manifest)]
    if isinstance(content, ImageIndex):
        blobs.append(_made(INDEX, content.data))
    once: dict[Digest, Blob] = {}
    for blob in blobs:
        once.setdefault(blob.descriptor.digest, blob)
    return tuple(once.values())


def _made(media_type: str, data: bytes) -> Blob:
    return Blob(descriptor=Descriptor(media_type, Digest.of(data), len(data)), open=partial(BytesIO, data))


def place_blob(blob: Blob, path: Path) -> None:
    """See to it that `path` holds the blob; BuildError when the bytes that there are have another digest."""
    known = blob.descriptor
    if is_blob(path, known):
        return
    if blob.path and is_blob(blob.path, known) and share(blob.path, path, mode=READ_ONLY):
        for file in (blob.path, path):
            seal(file, known.digest)
        return
    with written_aside(path.parent) as (target, temporary):
        for chunk in read_blob(blob.open, known, where=str(blob.path or path)):
            target.write(chunk)
        settle(target, temporary, path, mode=READ_ONLY)
    seal(path, known.digest)


def is_blob(path: Path, known: Descriptor) -> bool:
    """Whether a file holds the blob, by its seal; one without is read, and sealed if it is right."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size != known.size:
            return False
        if state.st_mtime_ns == _time_of(known.digest):
            return True
        with path.open("rb") as file:
            right = Digest.of_file(file) == (known.digest, known.size)
    except OSError:
        return False
    if right:
        seal(path, known.digest)
    return right


def seal(path: Path, digest: Digest) -> None:
    """Mark a file whose bytes are known to have this digest as such, and as used now; one of others stays as it is."""
    with suppress(OSError):
        path.chmod(READ_ONLY)
        # The cache keeps what was used last, and a file that is shared is used without being read.
        os.utime(path, ns=(time.time_ns(), _time_of(digest)))


def read_blob(opener: Opener, known: Descriptor, *, where: str) -> Iterator[bytes]:
    """Yield a blob's bytes, the last of them only once all were seen to be right.

    BuildError where they are not; their file has no seal any more then, so that whoever would use it next reads it.
    """
    hasher, size, held = hashlib.sha256(), 0, b""
    with opener() as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
            if held and size <= known.size:
                yield held
            held = chunk
        found = Digest(hasher.hexdigest())
        if (found, size) != (known.digest, known.size):
            _unseal(file)
            raise _mismatch(known, found, size, where)
    if held:
        yield held


def _unseal(file: BinaryIO) -> None:
    with suppress(OSError, AttributeError):  # what is no file on a disk has no seal
        os.utime(file.fileno())


def _time_of(digest: Digest) -> int:
    """Between 1980 and 1997, in even seconds, which all file systems and archives can keep."""
    return (MTIME + 2 * int(digest.hex[:7], 16)) * 10**9


def _mismatch(known: Descriptor, digest: Digest, size: int, where: str) -> BuildError:
    todo = "build again; if that does not help, clear the cache (ENVBUILD_CACHE)"
    what = f"a layer has the digest {digest} and {size} bytes, not {known.digest} and {known.size}"
    return BuildError(what, where=where, todo=todo)
