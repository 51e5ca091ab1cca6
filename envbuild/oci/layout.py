"""An image as a folder or as one tar file (OCI image-spec, image-layout.md).

The tar file is a layout with the `manifest.json` of `docker save` beside its index, which refers to the same blobs, so
that Docker, podman, skopeo and containerd read it (moby, image/spec/v1.2.md, "Combined Image JSON + Filesystem
Changeset Format"). Layers stay compressed. The same image under the same names gives the same bytes.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from envbuild.errors import BaseError, BuildError, EnvbuildError, UsageError
from envbuild.files import check_writable, write_whole, written_whole
from envbuild.oci.blobs import READ_ONLY, Blob, blobs_of, place_blob, read_blob
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    DOCKER_MANIFEST,
    INDEX,
    OCI_OF_DOCKER,
    Content,
    Descriptor,
    Image,
    Layer,
    canonical_json,
    history_lines,
    images_of,
    manifest_bytes,
    parse_manifest,
    top_index,
)
from envbuild.oci.reference import Reference
from envbuild.oci.tar import END, Entry, header, padding
from envbuild.retry import as_completed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The specification's architecture for each machine."""
VERSION = canonical_json({"imageLayoutVersion": "1.0.0"})
"""The bytes of the file `oci-layout`."""
REF_NAME = "org.opencontainers.image.ref.name"
"""The annotation of an entry of index.json that names its image."""
_LIMIT = 4 << 20
_CHUNK = 1 << 20
_DEPTH = 4
_HASHED_AT_ONCE = min(4, os.cpu_count() or 1)
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_CONTAINERD_NAME = "io.containerd.image.name"
"""The name for containerd, and so for Docker with its image store; podman and skopeo use the specification's."""
_BLOBS = "blobs/sha256"

Progress = Callable[[int], None]
"""Receives the number of written bytes."""


def write_layout(content: Content, folder: Path, *, name: str | None = None) -> None:
    """Write an image or an index as an OCI layout; valid blobs that exist are kept.

    Cached layers are hard-linked instead of copied (`oci.blobs`). index.json is written last, whole.
    BuildError if the bytes of a layer do not match its descriptor.
    """
    blobs = [(blob, blob_path(folder, blob.descriptor.digest)) for blob in blobs_of(content)]
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        hashed = [pool.submit(place_blob, blob, path) for blob, path in blobs if blob.path]
        try:
            for future in as_completed(hashed):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for blob, path in blobs:  # what names others comes last
        if not blob.path:
            place_blob(blob, path)
    write_whole(folder / "oci-layout", VERSION)
    write_whole(folder / "index.json", top_index(content, [{REF_NAME: name}] if name else []))


def is_free(folder: Path, name: str) -> bool:
    """Whether an image can be written here without replacing another one: none exists, or one of this name."""
    path = folder / "index.json"
    if path.exists() and not path.is_file():
        return False
    try:
        data = path.read_bytes()
        value = json.loads(data)
        named = [entry.get("annotations") for entry in value["manifests"]]
    except (OSError, *_WRONG):
        return True
    return not named or (named == [{REF_NAME: name}] and data == canonical_json(value))


def blob_path(folder: Path, digest: Digest) -> Path:
    """Return the path of a blob in a layout."""
    return folder / _BLOBS / digest.hex


def find_layout(digest: Digest, folders: Iterable[Path]) -> Path | None:
    """Return a layout that has the image: one of the folders, or a folder in one of them."""
    marks = (mark for it in folders for mark in (it / "oci-layout", *sorted(it.glob("*/oci-layout"))))
    return next((it.parent for it in marks if it.is_file() and blob_path(it.parent, digest).is_file()), None)


def read_layout(folder: Path, *, machine: str, reference: str | None = None, digest: Digest | None = None) -> Image:
    """Read the image for linux on `machine`; if `reference` is given, the one of this name (REF_NAME).

    With `digest`, the image or index that has it, whether index.json still names it or a later image has its place.
    BaseError if there is none or more than one, or a blob is missing or damaged. Layers are not read here; reading one
    to its end raises BaseError if the bytes do not match its digest.
    """
    try:
        if json.loads(_small(folder / "oci-layout"))["imageLayoutVersion"] != "1.0.0":
            raise ValueError("it has a version other than 1.0.0")
        if digest is None:
            index = parse_manifest(_small(folder / "index.json"), INDEX)
        else:
            described = Descriptor("", digest, blob_path(folder, digest).stat().st_size)
            if described.size > _LIMIT or not _is_image(_read(folder, described)):
                todo = "give the digest of an image, as index.json has it, or none"
                raise BaseError(
                    "this digest is that of a part of an image, not of one", where=f"{folder}@{digest}", todo=todo
                )
            index = {"manifests": [described.to_dict()]}
        if reference is not None:
            named = [it for it in index["manifests"] if (it.get("annotations") or {}).get(REF_NAME) == reference]
            if not named:
                raise ValueError(f"it has no image named {reference!r}")
            index = {"manifests": named}
        value, data = _manifest(folder, index, ARCHITECTURES.get(machine, machine))
        return _image(folder, value, data)
    except OSError as error:
        raise _broken(folder, f"{error.filename}: {error.strerror}") from error
    except _WRONG as error:
        raise _broken(folder, str(error) if type(error) is ValueError else f"it is malformed ({error})") from error


def _is_image(data: bytes) -> bool:
    """Whether a blob is a manifest or an index, no config or layer."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not {"layers", "manifests"}.isdisjoint(value)


def _broken(folder: Path, why: str) -> BaseError:
    todo = "copy the image again, for instance with `skopeo copy docker://IMAGE oci:FOLDER`"
    return BaseError(f"the OCI layout cannot be read: {why}", where=str(folder), todo=todo)


def _read(folder: Path, descriptor: Descriptor) -> bytes:
    if descriptor.size > _LIMIT:
        raise ValueError(f"{descriptor.digest} is too large for a manifest or config")
    data = _small(blob_path(folder, descriptor.digest))
    if Digest.of(data) != descriptor.digest:
        raise ValueError(f"{descriptor.digest} has other content")
    return data


def _small(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise ValueError(f"{path.name} has more than {_LIMIT >> 20} MiB")
    return data


def _manifest(folder: Path, index: Mapping[str, Any], architecture: str) -> tuple[dict[str, Any], bytes]:
    """Return the one manifest for the architecture, parsed and as bytes; indexes may contain indexes."""
    found = {str(Digest.of(data)): (value, data) for value, data in _manifests(folder, index, architecture, _DEPTH)}
    if not found and (
        others := [f"linux/{it}" for it in ARCHITECTURES.values() if any(_manifests(folder, index, it, _DEPTH))]
    ):
        what = f"the OCI layout has no images for linux/{architecture}, only for {', '.join(others)}"
        todo = f"give an image for that platform, or choose what is there: --platform {others[0]}"
        raise BaseError(what, where=str(folder), todo=todo)
    if len(found) != 1:
        which = "; say which: oci:FOLDER:NAME" if found else ""
        raise ValueError(f"it has {len(found) or 'no'} images for linux/{architecture}{which}")
    return next(iter(found.values()))


def _manifests(
    folder: Path, index: Mapping[str, Any], architecture: str, depth: int
) -> Iterator[tuple[dict[str, Any], bytes]]:
    if not depth:
        raise ValueError("its indexes are nested too deep")
    for entry in index["manifests"]:
        platform = entry.get("platform")
        if platform and (platform.get("os"), platform.get("architecture")) != ("linux", architecture):
            continue
        described = Descriptor.from_dict(entry)
        data = _read(folder, described)
        value = parse_manifest(data, described.media_type)
        if "manifests" in value:
            yield from islice(_manifests(folder, value, architecture, depth - 1), 1)  # engines take the first, too
            continue
        config = {} if platform else json.loads(_read(folder, Descriptor.from_dict(value["config"])))
        if platform or str(config["architecture"]) == architecture:
            yield value, data


def _image(folder: Path, value: Mapping[str, Any], data: bytes) -> Image:
    raw = _read(folder, Descriptor.from_dict(value["config"]))
    config = json.loads(raw)
    diff_ids = [Digest.parse(text) for text in config["rootfs"]["diff_ids"]]
    descriptors = [Descriptor.from_dict(entry) for entry in value["layers"]]
    if len(diff_ids) != len(descriptors):
        raise ValueError(f"it has {len(descriptors)} layers, and its config names {len(diff_ids)}")
    lines = history_lines(config, len(descriptors))
    layers = []
    for descriptor, diff_id, line in zip(descriptors, diff_ids, lines, strict=True):
        path = blob_path(folder, descriptor.digest)
        if path.stat().st_size != descriptor.size:
            raise ValueError(f"{descriptor.digest} has {path.stat().st_size} bytes, not {descriptor.size}")
        found = replace(descriptor, media_type=OCI_OF_DOCKER.get(descriptor.media_type, descriptor.media_type))
        layers.append(Layer(found, diff_id, partial(_open, path, found), created_by=line, reused=True))
    if value.get("mediaType") == DOCKER_MANIFEST:
        # Docker's media types must not be mixed with OCI's when layers are added, so the same blobs get an OCI
        # manifest, and the image a new digest.
        data = manifest_bytes(raw, layers, value.get("annotations") or {})
    return Image(data, raw, tuple(layers))


def _open(path: Path, descriptor: Descriptor) -> BinaryIO:
    try:
        # BufferedReader is a BinaryIO in all but name.
        return cast("BinaryIO", _CheckedOnFailure(_Checked(path.open("rb", buffering=0), path, descriptor), _CHUNK))
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror}") from error


def _damaged(path: Path, why: str) -> BaseError:
    todo = "remove the folder of this OCI layout, and copy or make it again"
    return BaseError(f"a blob of an OCI layout {why}", where=str(path), todo=todo)


class _Checked(io.RawIOBase):
    """A blob that raises BaseError at its end if its bytes do not match the digest."""

    def __init__(self, file: io.FileIO, path: Path, descriptor: Descriptor) -> None:
        super().__init__()
        self._file, self._path = file, path
        self._digest, self._left = descriptor.digest, descriptor.size
        self._hasher = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        count = self._file.readinto(view) or 0
        self._hasher.update(view[:count])
        self._left -= count
        ended = not count or self._left <= 0
        if ended and (self._left or self._hasher.hexdigest() != self._digest.hex):
            raise _damaged(self._path, f"has other content than {self._digest}")
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _CheckedOnFailure(io.BufferedReader):
    """A blob that is read to its end if its reader fails, as damaged bytes may be the reason: then BaseError."""

    def __exit__(self, _kind: object, error: object, _trace: object, /) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, EnvbuildError):
                while self.read(_CHUNK):
                    pass
        finally:
            self.close()


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of an image or index; nothing is read before its bytes are requested."""

    content: Content
    names: tuple[Reference, ...] = ()
    """The names of the loaded image, with the tag `latest` by default."""
    without: frozenset[Digest] = frozenset()
    """Digests of layers that the reader already has; the archive is then for this reader only."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name.digest:
                todo = "give a name with a tag: NAME:TAG"
                raise UsageError("a loaded image cannot have a name by digest", where=str(name), todo=todo)

    @property
    def size(self) -> int:
        """The size of the archive in bytes."""
        members = sum(len(header(entry)) + entry.size + padding(entry.size) for entry, _ in self._members())
        return members + len(END)

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes, at most 1 MiB at a time, from the start on each call.

        BuildError if the bytes of a layer do not match its descriptor, before the last of them.
        """
        for entry, content in self._members():
            yield header(entry)
            yield from content
            if missing := padding(entry.size):
                yield bytes(missing)
        yield END

    def write(self, target: BinaryIO, progress: Progress = lambda _done: None) -> None:
        """Write to an open file or pipe."""
        done = 0
        for part in self.parts():
            target.write(part)
            done += len(part)
            progress(done)
        target.flush()

    def _members(self) -> Iterator[tuple[Entry, Iterable[bytes]]]:
        """Yield the small members first, as readers of a stream need them before the blobs."""
        names = list(dict.fromkeys(str(it if it.tag else replace(it, tag="latest")) for it in self.names))
        image = images_of(self.content)[0]  # Docker's list has the first of an index, as a name can refer only to one
        docker_list = {
            "Config": f"{_BLOBS}/{image.config_digest.hex}",
            "RepoTags": names or None,
            "Layers": [f"{_BLOBS}/{layer.descriptor.digest.hex}" for layer in image.layers],
        }
        files = {
            "oci-layout": VERSION,
            "index.json": top_index(self.content, [{REF_NAME: it, _CONTAINERD_NAME: it} for it in names]),
            "manifest.json": canonical_json([docker_list]),
        }
        for path, data in files.items():
            yield Entry(path, "file", 0o644, len(data)), [data]
        for path in ("blobs", _BLOBS):
            yield Entry(path, "directory", 0o755), []
        for blob in blobs_of(self.content):
            digest, size = blob.descriptor.digest, blob.descriptor.size
            if digest not in self.without:
                yield Entry(f"{_BLOBS}/{digest.hex}", "file", READ_ONLY, size), _checked(blob)


def write_archive(
    content: Content, path: Path, names: Collection[Reference] = (), progress: Progress = lambda _done: None
) -> None:
    """Write the archive to a file, whole or not at all; BuildError if a layer does not match its descriptor.

    If `path` is a link, its target is written, and the link stays.
    """
    with written_whole(_target(path)) as file:
        Archive(content, tuple(names)).write(file, progress)


def check_archive(path: Path) -> None:
    """Check, before the work, that an archive can be written to `path`; UsageError otherwise."""
    try:
        check_writable(_target(path))
    except (OSError, BuildError) as error:
        why = error.what if isinstance(error, BuildError) else error.strerror
        todo = "give the path of a file in an existing folder that this user may write to"
        raise UsageError(f"cannot write the archive: {why}", where=f"--archive {path}", todo=todo) from error


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _checked(blob: Blob) -> Iterator[bytes]:
    where = str(blob.path or blob.descriptor.digest)
    try:
        yield from read_blob(blob.open, blob.descriptor, where=where)
    except OSError as error:
        todo = "run again; if it stays so, clear the cache (ENVBUILD_CACHE)"
        raise BuildError(f"a layer cannot be read: {error.strerror}", where=where, todo=todo) from error
