"""An image as a folder (OCI image-spec, image-layout.md)."""

import json
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.errors import BaseError, BuildError
from envbuild.files import settle, write_whole, written_aside
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    INDEX,
    MANIFEST,
    OCI_OF_DOCKER,
    Descriptor,
    Image,
    Layer,
    Opener,
    canonical_json,
    manifest_bytes,
)

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The specification's architecture for each machine."""
_VERSION = canonical_json({"imageLayoutVersion": "1.0.0"})
_REF_NAME = "org.opencontainers.image.ref.name"
_LIMIT = 4 << 20
_CHUNK = 1 << 20
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write_layout(image: Image, folder: Path, *, name: str | None = None, machine: str) -> None:
    """Write an image as an OCI layout; blobs that are there are kept, and index.json comes last, whole.

    BuildError when the bytes of a layer are not what its descriptor says.
    """
    for layer in image.layers:
        _write_blob(folder, layer.descriptor, layer.open)
    for data in (image.config, image.manifest):
        _write_blob(folder, Descriptor("", Digest.of(data), len(data)), partial(BytesIO, data))
    write_whole(folder / "oci-layout", _VERSION)
    entry = Descriptor(MANIFEST, image.digest, len(image.manifest), {_REF_NAME: name} if name else {}).to_dict()
    entry["platform"] = {"architecture": ARCHITECTURES[machine], "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    write_whole(folder / "index.json", canonical_json(index))


def _blob_path(folder: Path, digest: Digest) -> Path:
    return folder / "blobs" / "sha256" / digest.hex


def _write_blob(folder: Path, descriptor: Descriptor, opener: Opener) -> None:
    path = _blob_path(folder, descriptor.digest)
    if path.is_file() and path.stat().st_size == descriptor.size:
        return
    with written_aside(path.parent) as (target, temporary):
        with opener() as source:
            size = _copy(source, target)
        target.seek(0)
        with temporary.open("rb") as written:
            digest, _ = Digest.of_file(written)
        if (digest, size) != (descriptor.digest, descriptor.size):
            raise BuildError(
                f"a layer has the digest {digest}, not {descriptor.digest}",
                where=str(path),
                todo="clear the cache (ENVBUILD_CACHE) and build again",
            )
        settle(target, temporary, path)


def _copy(source: BinaryIO, target: BinaryIO) -> int:
    size = 0
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        size += len(chunk)
    target.flush()
    return size


def read_layout(folder: Path, *, machine: str) -> Image:
    """Read the image for linux on `machine`; BaseError when there is none, or when a blob is missing or damaged."""
    try:
        index = json.loads((folder / "index.json").read_bytes())
        value, data = _manifest(folder, index, ARCHITECTURES.get(machine, machine))
        return _image(folder, value, data)
    except FileNotFoundError as error:
        raise _broken(folder, f"{error.filename} is missing") from error
    except _WRONG as error:
        raise _broken(folder, f"{type(error).__name__}: {error}") from error


def _broken(folder: Path, why: str) -> BaseError:
    todo = "copy the image again, for instance with `skopeo copy docker://IMAGE oci:FOLDER`"
    return BaseError(f"the OCI layout cannot be read: {why}", where=str(folder), todo=todo)


def _read(folder: Path, descriptor: Descriptor) -> bytes:
    if descriptor.size > _LIMIT:
        raise ValueError(f"{descriptor.digest} is too large for a manifest or config")
    data = _blob_path(folder, descriptor.digest).read_bytes()
    if Digest.of(data) != descriptor.digest:
        raise ValueError(f"{descriptor.digest} has other content")
    return data


def _manifest(folder: Path, index: Mapping[str, Any], architecture: str) -> tuple[dict[str, Any], bytes]:
    """Follow indexes until there is the manifest of one image."""
    for _ in range(4):
        data = _read(folder, Descriptor.from_dict(_chosen(index["manifests"], architecture)))
        value = json.loads(data)
        if "layers" in value:
            return value, data
        index = value
    raise ValueError("its indexes are nested too deep")


def _chosen(entries: list[dict[str, Any]], architecture: str) -> dict[str, Any]:
    for entry in entries:
        platform = entry.get("platform")
        if platform is None and len(entries) == 1:
            return entry
        if platform and (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return entry
    raise ValueError(f"it has no image for linux/{architecture}")


def _image(folder: Path, value: Mapping[str, Any], data: bytes) -> Image:
    config = _read(folder, Descriptor.from_dict(value["config"]))
    diff_ids = [Digest.parse(text) for text in json.loads(config)["rootfs"]["diff_ids"]]
    descriptors = [Descriptor.from_dict(entry) for entry in value["layers"]]
    layers = tuple(_layer(folder, *pair) for pair in zip(descriptors, diff_ids, strict=True))
    # Docker's media types are not mixed with OCI's: the same blobs get a manifest in OCI's words, and so a new digest.
    docker = value.get("mediaType", MANIFEST) != MANIFEST
    return Image(manifest_bytes(config, layers, value.get("annotations") or {}) if docker else data, config, layers)


def _layer(folder: Path, descriptor: Descriptor, diff_id: Digest) -> Layer:
    path = _blob_path(folder, descriptor.digest)
    if path.stat().st_size != descriptor.size:
        raise ValueError(f"{descriptor.digest} has {path.stat().st_size} bytes, not {descriptor.size}")
    media_type = OCI_OF_DOCKER.get(descriptor.media_type, descriptor.media_type)
    found = Descriptor(media_type, descriptor.digest, descriptor.size, descriptor.annotations)
    return Layer(found, diff_id, partial(_open, path), reused=True)


def _open(path: Path) -> BinaryIO:
    return path.open("rb")
