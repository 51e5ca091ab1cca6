"""Images into an engine, without sending the layers that it has, and out of it: pushed to a registry, or saved."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import IO, Any, BinaryIO

import docker
from docker.auth import encode_header
from docker.errors import DockerException, ImageNotFound

from envbuild.engine.client import events, fault_of
from envbuild.errors import BuildError, MissingComponentError, RegistryError, UsageError
from envbuild.oci.compression import media_type_of, open_layer
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    LAYER_GZIP,
    LAYER_TAR,
    LAYER_ZSTD,
    Content,
    Descriptor,
    Image,
    Layer,
    history_lines,
    images_of,
    manifest_bytes,
    platform_name,
)
from envbuild.oci.layout import Archive
from envbuild.oci.reference import Reference
from envbuild.oci.tar import open_tar
from envbuild.report import SILENT, Reporter

INSTEAD = "leave out --load, and give --archive FILE or --push REPOSITORY"
"""What a user without an engine can do."""
_SECONDS = 600
"""Seconds of silence while the engine unpacks layers."""
_CHUNK = 1 << 20
_JSON_LIMIT = 4 << 20
_TODO = "push the image instead (--push), or load it (--load)"
_LEVEL = 1
"""The fastest: each build by an engine has other bytes, so no registry has these layers already."""
_MOST_IMAGES = 100
"""Images of the engine, newest first, whose layers are compared: some milliseconds each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An image that the engine has now."""

    id: str
    """The engine's own id: the digest of its config, or of its manifest if containerd keeps the images."""
    image: Image
    """The one of an index that is for this engine."""
    sent: int
    """Bytes; 0 when the engine had the image."""
    existing: int
    """Bytes of compressed layers that were not sent, as the engine had them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The result of an engine's push."""

    digest: Digest
    """The manifest's, as the registry answered it."""
    sent: int
    """Bytes of layers, before the engine compressed them."""


class _RefusedError(BuildError):
    """The engine refused an archive."""


def load_into(client: docker.DockerClient, content: Content, names: Sequence[Reference], report: Reporter) -> Loaded:
    """Load an image under these names, without sending what the engine has.

    MissingComponentError for an engine that cannot read its layers. BuildError for what the engine refuses and for
    layers that do not match their descriptors. UsageError for names by digest and an index without an image for the
    engine.
    """
    image = _image_for(client, content)
    archive = Archive(image, tuple(names))
    total = sum(layer.descriptor.size for layer in image.layers)
    if identity := _id_of(client, image):
        for name in names:
            client.api.tag(identity, name.name, name.tag or "latest", force=True)
        return Loaded(id=identity, image=image, sent=0, existing=total)
    omitted = _existing_layers(client, image)
    needed = [it.descriptor for it in image.layers if it.descriptor.digest not in omitted]
    check_reading(client, (it.media_type for it in needed), "build it, and the image below it, with --compression gzip")
    try:
        sent = _send(client, replace(archive, without=omitted), report)
    except _RefusedError:
        if not omitted:
            raise
        # The image that these layers belonged to may have been removed a moment ago.
        omitted, sent = frozenset(), _send(client, archive, report)
    identity = _id_of(client, image)
    if identity is None:
        what = f"the engine accepted the image, but has neither {image.config_digest} nor {image.digest}"
        raise BuildError(what, where="container engine", todo="check the engine's log; push to a registry instead")
    existing = sum(layer.descriptor.size for layer in image.layers if layer.descriptor.digest in omitted)
    return Loaded(id=identity, image=image, sent=sent, existing=existing)


def _image_for(client: docker.DockerClient, content: Content) -> Image:
    images = images_of(content)
    if len(images) == 1:
        return images[0]
    version = client.version()
    platform = f"{version['Os']}/{version['Arch']}"
    platforms = {platform_name(image): image for image in images}
    # The engine names no variant, so the first that fits is taken.
    fitting = [image for name, image in platforms.items() if name == platform or name.startswith(f"{platform}/")]
    if not fitting:
        what = f"the engine is {platform}, and the images are for {', '.join(platforms)}"
        raise UsageError(what, where="--platform", todo="add the engine's platform, or use an engine of another")
    return fitting[0]


def _id_of(client: docker.DockerClient, image: Image) -> str | None:
    """The engine's id of the image, which is content-addressed in one of two ways; None if it is not there."""
    for digest in (image.config_digest, image.digest):
        with suppress(ImageNotFound):
            return str(client.images.get(str(digest)).id)
    return None


def _existing_layers(client: docker.DockerClient, image: Image) -> frozenset[Digest]:
    """The layers that need not be in the archive.

    Docker's own store looks for layers on the same layers below before it opens the archive (moby,
    image/tarexport/load.go); containerd and podman need all that the manifest names.
    """
    components = client.version().get("Components") or ()
    status = client.info().get("DriverStatus") or ()
    is_docker = any(one.get("Name") == "Engine" for one in components)
    if not is_docker or any("containerd" in str(row) for row in status):
        return frozenset()
    diff_ids, longest = [str(layer.diff_id) for layer in image.layers], 0
    newest = sorted(client.api.images(), key=lambda one: int(one.get("Created") or 0), reverse=True)
    for one in newest[:_MOST_IMAGES]:
        with suppress(ImageNotFound):
            attributes: Mapping[str, Any] = client.api.inspect_image(one["Id"])
            pairs = zip(diff_ids, (attributes.get("RootFS") or {}).get("Layers") or (), strict=False)
            longest = max(longest, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    needed = {layer.descriptor.digest for layer in image.layers[longest:]}
    return frozenset(layer.descriptor.digest for layer in image.layers[:longest]) - needed


def check_reading(client: docker.DockerClient, media_types: Iterable[str], instead: str) -> None:
    """MissingComponentError for layers of zstd and an engine that cannot read them: Docker before 23.0.

    `instead` is what the user can do with this engine.
    """
    engine = [it for it in client.version().get("Components") or () if it.get("Name") == "Engine"]
    version = str(engine[0].get("Version")) if engine else ""
    major = version.partition(".")[0]
    if LAYER_ZSTD in media_types and major.isdecimal() and int(major) < 23:
        todo = f"{instead}; or use Docker 23.0 or later, or podman"
        raise MissingComponentError(f"Docker {version} cannot read layers of zstd", where="container engine", todo=todo)


def _send(client: docker.DockerClient, archive: Archive, report: Reporter) -> int:
    total = archive.size

    def parts() -> Iterator[bytes]:
        sent = 0
        for part in archive.parts():
            yield part
            sent += len(part)
            report.progress("loading", sent, total)

    faults = []
    for event in events(client, "/images/load", data=parts(), timeout=_SECONDS):
        line = str(event.get("stream") or "")
        # containerd's store reports an error as ordinary output (moby, image_exporter.go).
        faults.append(fault_of(event) or (line if line.startswith("Error unpacking") else ""))
    if fault := next(filter(None, faults), ""):
        text = " ".join(fault.split())[:500]
        todo = "check the engine's log, and that its disk is not full; push to a registry instead"
        raise _RefusedError(f"the engine did not load the image: {text}", where="container engine", todo=todo)
    return total


def push_image(
    client: docker.DockerClient, identity: str, name: Reference, login: Mapping[str, str], report: Reporter
) -> Pushed:
    """Let the engine push an image under a name with a tag; afterwards the name is as before in the engine.

    `login` is the registry's authentication (Docker Engine API, "Authentication"), empty for none. RegistryError.
    """
    former = ""
    with suppress(ImageNotFound):
        former = str(client.images.get(str(name)).id)
    client.api.tag(identity, name.name, name.tag, force=True)
    try:
        return _push(client, name, login, report)
    finally:
        with suppress(DockerException):
            if former:
                client.api.tag(former, name.name, name.tag, force=True)
            else:
                client.api.remove_image(str(name))


def _push(client: docker.DockerClient, name: Reference, login: Mapping[str, str], report: Reporter) -> Pushed:
    layers: dict[str, int] = {}
    fault, digest = "", ""
    headers = {"X-Registry-Auth": encode_header(dict(login))}
    # No timeout: registries may need minutes for the last byte of a large layer.
    answer = events(client, f"/images/{name.name}/push", params={"tag": name.tag or ""}, headers=headers, timeout=None)
    with closing(answer):
        for event in answer:
            if fault := fault_of(event):
                break
            sent = (event.get("progressDetail") or {}).get("current")
            if event.get("status") == "Pushing" and sent:
                layers[str(event.get("id"))] = int(sent)
                report.progress("pushing", sum(layers.values()), None)
            digest = str((event.get("aux") or {}).get("Digest") or digest)
    try:
        if not fault:
            return Pushed(digest=Digest.parse(digest), sent=sum(layers.values()))
    except ValueError:
        fault = "it gave no digest"
    what = f"the engine could not push: {' '.join(fault.split())[:500]}"
    todo = "check that the engine reaches the registry, and log in with `docker login`"
    raise RegistryError(what, where=str(name), todo=todo)


def save_image(
    client: docker.DockerClient, identity: str, folder: Path | None, base: Sequence[Layer], report: Reporter
) -> Image:
    """Read an image from what the engine saves (moby, image/spec/v1.2.md), its layers compressed into `folder`.

    Without a folder, only the layers' digests. The base's layers stay as they are in `base`. BuildError when the
    archive is incomplete.
    """
    client.api.timeout = _SECONDS
    contents = _Saved(folder, {layer.diff_id: layer for layer in base})
    stream = _Stream(client.api.get_image(identity), report)
    try:
        with open_tar(io.BufferedReader(stream, _CHUNK), stream=True) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                if file is not None:
                    contents.add(member.name, member.size, file)
    except tarfile.TarError as error:
        what = f"the engine's archive cannot be read: {error}"
        raise BuildError(what, where="container engine", todo=_TODO) from error
    return contents.image()


class _Stream(io.RawIOBase):
    """The chunks of an answer as a file."""

    def __init__(self, parts: Iterator[bytes], report: Reporter) -> None:
        super().__init__()
        self._parts, self._report = parts, report
        self._pending, self._read = memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._pending:
            self._pending = memoryview(next(self._parts, b""))
            self._read += len(self._pending)
            self._report.progress("reading from the engine", self._read, None)
        size = min(len(buffer), len(self._pending))
        buffer[:size], self._pending = self._pending[:size], self._pending[size:]
        return size


@dataclass(slots=True)
class _Saved:
    """The members of the archive: its few small JSON files, and its layers by diff id."""

    folder: Path | None
    base: Mapping[Digest, Layer]
    texts: dict[str, bytes] = field(default_factory=dict)
    layers: dict[Digest, Layer] = field(default_factory=dict)

    def add(self, name: str, size: int, file: IO[bytes]) -> None:
        head = file.read(min(size, _CHUNK))
        if head[:1] in (b"{", b"[") and size <= _JSON_LIMIT:
            self.texts[name] = head + file.read()
        elif size >= tarfile.BLOCKSIZE or media_type_of(head) != LAYER_TAR:
            layer = self._layer(head, file)
            self.layers[layer.diff_id] = self.base.get(layer.diff_id, layer)
            if layer.path and layer.diff_id in self.base:
                layer.path.unlink()

    def _layer(self, head: bytes, file: IO[bytes]) -> Layer:
        plain = _plain(head, file)
        if self.folder is None:
            digest, size = _hashed(plain)
            return Layer(Descriptor(LAYER_TAR, digest, size), digest, _raise_absent)
        path = self.folder / f"{len(self.layers)}.tar.gz"
        with _HashedFile(path) as target:
            with gzip.GzipFile(fileobj=target, filename="", mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
                diff_id, _ = _hashed(plain, packed)
            digest = Digest(target.hasher.hexdigest())
        descriptor = Descriptor(LAYER_GZIP, digest, path.stat().st_size)
        return Layer(descriptor, diff_id, lambda: path.open("rb"), path=path)

    def image(self) -> Image:
        """Join the members; BuildError if one is missing."""
        try:
            config = self.texts[json.loads(self.texts["manifest.json"])[0]["Config"]]
            diff_ids = [Digest.parse(text) for text in json.loads(config)["rootfs"]["diff_ids"]]
            lines = history_lines(json.loads(config), len(diff_ids))
            pairs = zip(diff_ids, lines, strict=True)
            layers = tuple(replace(self.layers[diff_id], created_by=line) for diff_id, line in pairs)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            what = "the engine's archive of the image is incomplete"
            raise BuildError(what, where="container engine", todo=_TODO) from error
        return Image(manifest_bytes(config, layers, {}), config, layers)


class _HashedFile(io.BufferedWriter):
    """A new file whose bytes are hashed as they are written."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.hasher = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        self.hasher.update(data)
        return super().write(data)


def _hashed(parts: Iterator[bytes], target: IO[bytes] | gzip.GzipFile | None = None) -> tuple[Digest, int]:
    hasher, size = hashlib.sha256(), 0
    for part in parts:
        hasher.update(part)
        size += len(part)
        if target is not None:
            target.write(part)
    return Digest(hasher.hexdigest()), size


def _plain(head: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """The uncompressed bytes; engines with containerd's store save layers as a registry has them."""
    whole = _Stream(chain([head], iter(partial(file.read, _CHUNK), b"")), SILENT)
    with open_layer(io.BufferedReader(whole, _CHUNK), media_type_of(head)) as plain:
        yield from iter(partial(plain.read, _CHUNK), b"")


def _raise_absent() -> BinaryIO:
    raise BuildError("the layer was not kept", where="container engine", todo="push the image, or write an archive")
