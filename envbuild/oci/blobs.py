"""Blobs as files: read and hashed before they are shared or sent, and shared without copying where that can be."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.files import settle, share, written_aside
from envbuild.oci.digest import Digest
from envbuild.oci.image import CONFIG, INDEX, MANIFEST, Descriptor, Opener
from envbuild.oci.index import Content, ImageIndex, images_of

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
        return
    with written_aside(path.parent) as (target, temporary):
        for chunk in read_blob(blob.open, known, where=str(blob.path or path)):
            target.write(chunk)
        settle(target, temporary, path, mode=READ_ONLY)


def is_blob(path: Path, known: Descriptor) -> bool:
    """Read a file to see whether it holds the blob."""
    try:
        if not path.is_file() or path.stat().st_size != known.size:
            return False
        with path.open("rb") as file:
            return Digest.of_file(file)[0] == known.digest
    except OSError:
        return False


def read_blob(opener: Opener, known: Descriptor, *, where: str) -> Iterator[bytes]:
    """Yield a blob's bytes, the last of them only once all were seen to be right.

    BuildError where they are not.
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
            raise _mismatch(known, found, size, where)
    if held:
        yield held


def _mismatch(known: Descriptor, digest: Digest, size: int, where: str) -> BuildError:
    todo = "build again; if that does not help, clear the cache (ENVBUILD_CACHE)"
    what = f"a layer has the digest {digest} and {size} bytes, not {known.digest} and {known.size}"
    return BuildError(what, where=where, todo=todo)
