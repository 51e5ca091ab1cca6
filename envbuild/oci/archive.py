"""An image as one tar file that Docker, podman, skopeo and containerd can read.

It is an OCI layout (image-spec, image-layout.md) with the `manifest.json` of `docker save` (moby, image/spec/v1.2.md,
"Combined Image JSON + Filesystem Changeset Format") beside its index, whose paths are those of the same blobs. The
layers stay compressed. The same image under the same names gives the same bytes.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError, UsageError
from envbuild.files import check_writable, written_whole
from envbuild.oci.blobs import READ_ONLY, Blob, blobs_of, read_blob
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.index import Content, images_of, top_index
from envbuild.oci.layout import REF_NAME, VERSION
from envbuild.oci.reference import Reference
from envbuild.oci.tar import END, Entry, header, padding

_CONTAINERD_NAME = "io.containerd.image.name"
"""What containerd, and so Docker with its image store, goes by; podman and skopeo go by the specification's."""
_BLOBS = "blobs/sha256"

Progress = Callable[[int], None]
"""Told how many bytes of the archive are done."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of an image or index; nothing is read before somebody asks for its bytes."""

    content: Content
    names: tuple[Reference, ...] = ()
    """What the image is called where it is loaded: by tag, `latest` where none is given."""
    without: frozenset[Digest] = frozenset()
    """Layers that its reader has already, by their digests; the archive is then for this reader alone."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name.digest:
                todo = "give a name with a tag: NAME:TAG"
                raise UsageError("an image cannot be given a name by digest", where=str(name), todo=todo)

    @property
    def size(self) -> int:
        """Bytes of the whole archive."""
        members = sum(len(head) + size + padding(size) for head, size in self._outline())
        return members + len(END)

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes from first to last, at most 1 MiB at a time; again from the start on each call.

        BuildError when the bytes of a layer are not what its descriptor says, before the last of them is given out.
        """
        for entry, data in self._small():
            yield header(entry) + data + bytes(padding(len(data)))
        for blob in self._blobs():
            yield header(_member(blob))
            yield from _checked(blob)
            if rest := padding(blob.descriptor.size):
                yield bytes(rest)
        yield END

    def write(self, target: BinaryIO, progress: Progress = lambda _done: None) -> None:
        """Write to an open file or pipe."""
        done = 0
        for part in self.parts():
            target.write(part)
            done += len(part)
            progress(done)
        target.flush()

    def _blobs(self) -> tuple[Blob, ...]:
        return tuple(blob for blob in blobs_of(self.content) if blob.descriptor.digest not in self.without)

    def _outline(self) -> Iterator[tuple[bytes, int]]:
        yield from ((header(entry), len(data)) for entry, data in self._small())
        yield from ((header(_member(blob)), blob.descriptor.size) for blob in self._blobs())

    def _small(self) -> Iterator[tuple[Entry, bytes]]:
        """What readers look at first, so that those who get a stream need not wait for it."""
        files = {
            "oci-layout": VERSION,
            "index.json": top_index(self.content, [_annotations(name) for name in _tagged(self.names)]),
            "manifest.json": _docker_manifest(self.content, _tagged(self.names)),
        }
        for path, data in files.items():
            yield Entry(path, "file", 0o644, len(data)), data
        for path in ("blobs", _BLOBS):
            yield Entry(path, "directory", 0o755), b""


def write_archive(
    content: Content, path: Path, names: Collection[Reference] = (), progress: Progress = lambda _done: None
) -> None:
    """Write the archive to a file, whole or not at all; BuildError when a layer's bytes are not its descriptor's.

    Where `path` is a link, what it leads to is written, and the link stays.
    """
    with written_whole(_target(path)) as file:
        Archive(content, tuple(names)).write(file, progress)


def check_archive(path: Path) -> None:
    """See that an archive can be written to `path`, before the work is done; UsageError where it cannot."""
    try:
        check_writable(_target(path))
    except (OSError, BuildError) as error:
        why = error.what if isinstance(error, BuildError) else error.strerror
        todo = "give the path of a file, new or old, in a folder that is there and that this user may write"
        raise UsageError(f"the archive cannot be written there: {why}", where=f"--archive {path}", todo=todo) from error


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _tagged(names: Sequence[Reference]) -> list[Reference]:
    return list(dict.fromkeys(name if name.tag else replace(name, tag="latest") for name in names))


def _annotations(name: Reference) -> dict[str, str]:
    return {REF_NAME: str(name), _CONTAINERD_NAME: str(name)}


def _docker_manifest(content: Content, names: Sequence[Reference]) -> bytes:
    """Return Docker's own list of what is there; of an index the first image, as a name can mean only one in it."""
    image: Image = images_of(content)[0]
    value = {
        "Config": f"{_BLOBS}/{image.config_digest.hex}",
        "RepoTags": [str(name) for name in names] or None,
        "Layers": [f"{_BLOBS}/{layer.descriptor.digest.hex}" for layer in image.layers],
    }
    return canonical_json([value])


def _member(blob: Blob) -> Entry:
    return Entry(f"{_BLOBS}/{blob.descriptor.digest.hex}", "file", READ_ONLY, blob.descriptor.size)


def _checked(blob: Blob) -> Iterator[bytes]:
    try:
        yield from read_blob(blob.open, blob.descriptor, where=_place(blob))
    except OSError as error:
        todo = "run again; if it stays so, clear the cache (ENVBUILD_CACHE)"
        raise BuildError(f"a layer cannot be read: {error.strerror}", where=_place(blob), todo=todo) from error


def _place(blob: Blob) -> str:
    return str(blob.path or blob.descriptor.digest)
