"""Registry -> image: manifest and config are read and verified, layers are opened when they are read."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    CONFIG,
    DOCKER_MANIFEST,
    LAYER_GZIP,
    LAYER_TAR,
    LAYER_ZSTD,
    OCI_OF_DOCKER,
    Descriptor,
    Image,
    Layer,
    history_lines,
    manifest_bytes,
    parse_manifest,
)
from envbuild.oci.reference import DOCKER_HUB, Reference, exists
from envbuild.registry.auth import Credentials
from envbuild.registry.client import MANIFEST_LIMIT, Manifest, Registry
from envbuild.registry.faults import CHECK_REGISTRY, printable
from envbuild.retry import Retry
from envbuild.trust import Claim, Voucher

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_LAYERS = frozenset({LAYER_GZIP, LAYER_TAR, LAYER_ZSTD})
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def pull(
    reference: Reference, *, machine: str, credentials: Credentials | None = None, retry: Retry | None = None
) -> Image:
    """Get an image for linux on `machine` (a value of `platform.machine()`: `x86_64`, `aarch64`).

    Each layer's `open` starts a request; reading it to its end raises RegistryError when the digest is wrong.
    RegistryError too when the image or its platform does not exist, or its manifest cannot be read.
    """
    # Layers are opened long after this returns, so the pool is never closed: keep no idle connection.
    registry = Registry(reference.registry, credentials=credentials, retry=retry, keep_alive=False)
    architecture = ARCHITECTURES.get(machine, machine)
    try:
        value, data = read_manifest(registry, reference, reference.target)
        if "manifests" in value:
            value, data = read_manifest(registry, reference, choose_manifest(value, architecture, reference))
        return _image(registry, reference, value, data, architecture)
    except _WRONG as error:
        what = f"{reference} has a manifest or config that cannot be read ({parse_fault(error)})"
        raise RegistryError(what, where=str(reference), todo="name an image with an OCI or Docker manifest") from error


def parse_fault(error: Exception) -> str:
    """The fault of a manifest that cannot be parsed."""
    return printable(str(error)) if isinstance(error, ValueError) else type(error).__name__


def read_manifest(registry: Registry, reference: Reference, target: str) -> tuple[dict[str, Any], bytes]:
    """Get a manifest or index, parsed and as bytes, verified by its digest; RegistryError."""
    found = fetch_manifest(registry, reference, target)
    value = parse_manifest(found.data, found.media_type)
    if value["schemaVersion"] != 2:
        what = f"{reference} has a manifest of schema {value['schemaVersion']!r:.9}, which registries dropped"
        raise RegistryError(what, where=str(reference), todo="push the image again with a current Docker")
    # A manifest may lack its media type; then the Content-Type has it.
    return {"mediaType": found.media_type, **value}, found.data


def fetch_manifest(registry: Registry, reference: Reference, target: str) -> Manifest:
    """Get the manifest of a tag or digest, verified by its digest; RegistryError if it does not exist or differs."""
    try:
        found = registry.manifest(reference.repository, target)
    except RegistryError as error:
        raise _explain_missing(error, reference) from error
    # The bytes have to have the digest that was asked for, and the one that the registry claims.
    digest = str(Digest.of(found.data))
    asked_digest = target if ":" in target else digest
    if digest != asked_digest or found.header_digest not in ("", digest):
        what = f"{reference.registry} sent another manifest than its digest says"
        raise RegistryError(what, where=f"{reference.name}@{asked_digest}", todo=CHECK_REGISTRY)
    return found


def _explain_missing(error: RegistryError, reference: Reference) -> RegistryError:
    """Say what does not exist: Docker Hub answers 401 for that, and a bare word may be a mistyped file or folder."""
    on_hub, asked = reference.registry == DOCKER_HUB, reference.tag or reference.digest
    name, what, todo = reference.repository.removeprefix("library/"), error.what, error.todo
    if error.status == 404 or (on_hub and error.status == 401):
        what = f"{reference} does not exist"
        todo = "check name and tag" if asked else "give a tag or a digest; without one, the tag latest is looked for"
        if on_hub and "/" in name:
            todo += f"; if it is private: docker login {DOCKER_HUB}"
    if on_hub and not asked and "/" not in name and not exists(name):
        what = f"there is no file or folder {name} here, and {what}"
    return RegistryError(what, where=error.where, todo=todo, status=error.status)


def choose_manifest(index: Mapping[str, Any], architecture: str, reference: Reference) -> str:
    """Return the digest of the index's manifest for linux on the architecture."""
    offered = []
    for entry in index["manifests"]:
        platform = entry.get("platform") or {}
        offered.append(f"{platform.get('os')}/{platform.get('architecture')}")
        if offered[-1] == f"linux/{architecture}":
            return str(Digest.parse(entry["digest"]))
    what = f"{reference} has no image for linux/{architecture}"
    todo = f"it has: {printable(', '.join(dict.fromkeys(offered)))}"
    raise RegistryError(what, where=str(reference), todo=todo)


def _image(
    registry: Registry, reference: Reference, manifest: Mapping[str, Any], data: bytes, architecture: str
) -> Image:
    described = Descriptor.from_dict(manifest["config"])
    if OCI_OF_DOCKER.get(described.media_type, described.media_type) != CONFIG:
        raise RegistryError(f"{reference} is not an image: {printable(described.media_type)}", where=str(reference))
    if described.size > MANIFEST_LIMIT:
        raise RegistryError(f"{reference} has a config over 4 MiB", where=str(reference))
    with registry.open_blob(reference.repository, described) as file:
        raw = file.read()
    config = json.loads(raw)
    found = f"{config['os']}/{config['architecture']}"
    if found != f"linux/{architecture}":
        what = f"{reference} is for {printable(found)}, not for linux/{architecture}"
        raise RegistryError(what, where=str(reference), todo="name an image for that platform")
    layers = _layers(registry, reference, manifest["layers"], config)
    if manifest["mediaType"] == DOCKER_MANIFEST:
        # Docker's media types must not be mixed with OCI's when layers are added, so the manifest is converted; the
        # image's digest is then not the registry's.
        converted = manifest_bytes(raw, layers, manifest.get("annotations") or {})
        return Image(manifest=converted, config=raw, layers=layers, found_as=Digest.of(data))
    return Image(manifest=data, config=raw, layers=layers)


def _layers(
    registry: Registry, reference: Reference, values: list[dict[str, Any]], config: Mapping[str, Any]
) -> tuple[Layer, ...]:
    diff_ids = [Digest.parse(text) for text in config["rootfs"]["diff_ids"]]
    layers = []
    for value, diff_id, line in zip(values, diff_ids, history_lines(config, len(values)), strict=True):
        described = Descriptor.from_dict(value)
        media_type = OCI_OF_DOCKER.get(described.media_type, described.media_type)
        if media_type not in _LAYERS:
            what = f"{reference} has a layer of type {printable(media_type)}, which cannot be read"
            raise RegistryError(what, where=str(reference), todo="name a base with tar layers that are in the registry")
        descriptor = Descriptor(media_type, described.digest, described.size, described.annotations)
        # The registry finds the blob by its digest alone, so the converted descriptor opens it as well.
        opener = partial(registry.open_blob, reference.repository, descriptor)
        layers.append(Layer(descriptor, diff_id, opener, created_by=line, reused=True, origin=reference.name))
    return tuple(layers)


def environment_tag(environment: Digest) -> str:
    """`env-a1b2c3d4e5f6`: the tag of an environment's image; anybody who may push can set it, so it proves nothing."""
    return f"env-{environment.short}"


def find_tagged(tagged: Reference, *, machine: str, retry: Retry | None = None) -> Claim[Image] | None:
    """Find the image under a tag that anybody who may push can set; None when there is none."""
    try:
        image = pull(tagged, machine=machine, retry=retry)
    except RegistryError as error:
        if error.status == 404:
            return None
        raise
    found = tuple(replace(layer, found="registry") for layer in image.layers)
    return Claim(replace(image, layers=found), Voucher.REGISTRY, str(tagged))
