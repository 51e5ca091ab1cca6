"""Descriptors, configs, manifests and indexes (OCI image-spec, descriptor.md, config.md, manifest.md, image-index.md).

Bytes come first: a manifest and a config are serialised once, and those bytes are hashed, stored and sent.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from envbuild.errors import BuildError
from envbuild.oci.digest import Digest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_DOCKER_ZSTD = "application/vnd.docker.image.rootfs.diff.tar.zstd"
ENVIRONMENT = "dev.envbuild.environment"
"""The annotation of an image manifest with the environment id."""
COMPRESSION = "dev.envbuild.compression"
"""The annotation of an image manifest with the compression of its environment's layers; absent for gzip."""
_ZSTD_ENTRY = {"annotations": {"io.github.containers.compression.zstd": "true"}}
"""How an index marks an image that needs zstd (github.com/containers/image, internal/manifest/oci_index.go)."""

OCI_OF_DOCKER = {
    DOCKER_MANIFEST: MANIFEST, DOCKER_INDEX: INDEX, DOCKER_CONFIG: CONFIG, DOCKER_LAYER: LAYER_GZIP,
    _DOCKER_ZSTD: LAYER_ZSTD,
}  # fmt: skip
"""The OCI media type for the same bytes; the two families are never mixed in one manifest."""

_KINDS = {MANIFEST: False, DOCKER_MANIFEST: False, INDEX: True, DOCKER_INDEX: True}
"""Whether a media type is an index's."""
_PLATFORM = ("architecture", "os", "os.version", "os.features", "variant")
"""Properties of a config that an index has in `platform` (config.md, "Properties")."""


def canonical_json(value: Any) -> bytes:
    """Serialise with sorted keys, no spaces and UTF-8: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse_manifest(data: bytes, media_type: str = "") -> dict[str, Any]:
    """Read an image manifest or index; ValueError if a reader could take it for the other (CVE-2021-41190).

    `media_type` is that of the registry's answer or the descriptor. Readers in Go ignore the case of keys.
    """
    value: dict[str, Any] = json.loads(data, object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} is not an object")
    keys = {key.lower() for key in value}
    if len(keys) < len(value):
        raise ValueError("two of its keys differ only in their case")
    if "manifests" in keys and keys & {"layers", "config"}:
        raise ValueError("it is an image manifest and an index at once")
    kinds = {str(value.get("mediaType") or media_type), media_type or str(value.get("mediaType"))} & _KINDS.keys()
    if len(kinds) > 1:
        raise ValueError(f"it was sent as {media_type}, and its mediaType is {value['mediaType']}")
    if any(_KINDS[kind] != ("manifests" in keys) for kind in kinds):
        raise ValueError(f"its content does not match its media type {media_type or value['mediaType']}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("it has a duplicate key")
    return value


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Media type, digest and size of a blob."""

    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the descriptor as a JSON object."""
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        return value | _annotated(self.annotations)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read a descriptor from a parsed manifest; KeyError, TypeError or ValueError if it is malformed."""
        size = value["size"]
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"descriptor size {size!r}")
        return cls(str(value["mediaType"]), Digest.parse(value["digest"]), size, dict(value.get("annotations") or {}))


Opener = Callable[[], BinaryIO]
"""Opens a blob for reading from its start; can be called again, for a retry."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its descriptor, the digest of its uncompressed tar, and access to its bytes."""

    descriptor: Descriptor
    diff_id: Digest
    open: Opener
    created_by: str = ""
    """The layer's one line in the image's history."""
    reused: bool = False
    """True when the bytes were not made in this run (base layers and cached layers)."""
    found: str = ""
    """The place of a layer that was not made in this run, for people: `base`, `cache`, `registry`; may be empty."""
    origin: str = ""
    """`registry/repository` with the blob, from which the same registry can mount it; empty for none."""
    path: Path | None = None
    """The file of the cache with exactly these bytes, if there is one; outputs hard-link it instead of copying."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image: exact manifest and config bytes, and its layers, lowest first."""

    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]
    found_as: Digest | None = None
    """Its digest in the registry, if the manifest there is Docker's and so has other bytes."""

    @property
    def digest(self) -> Digest:
        """The digest of the manifest, which is the digest of the image."""
        return Digest.of(self.manifest)

    @property
    def config_digest(self) -> Digest:
        """The digest of the config."""
        return Digest.of(self.config)


def history_lines(config: Mapping[str, Any], count: int) -> list[str]:
    """Return the history line of each layer; empty texts if the history does not have one for each."""
    lines = [str(it.get("created_by") or "") for it in config.get("history") or () if not it.get("empty_layer")]
    return lines if len(lines) == count else [""] * count


def manifest_bytes(config: bytes, layers: Sequence[Layer], annotations: Mapping[str, str]) -> bytes:
    """Serialise the OCI image manifest for a config and its layers."""
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": Descriptor(CONFIG, Digest.of(config), len(config)).to_dict(),
        "layers": [layer.descriptor.to_dict() for layer in layers],
    }
    return canonical_json(value | _annotated(annotations))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIndex:
    """An index: its exact bytes, and its images in its order."""

    data: bytes
    images: tuple[Image, ...]

    @property
    def digest(self) -> Digest:
        """The digest of the index."""
        return Digest.of(self.data)


Content = Image | ImageIndex
"""An image or an index."""


def image_index(images: Sequence[Image], annotations: Mapping[str, str] | None = None) -> ImageIndex:
    """Join images of different platforms, or of one as gzip and zstd, in any order; BuildError for others and none.

    Engines take the first that fits, so gzip comes first; podman and CRI-O look for the mark of zstd.
    """
    ordered = tuple(sorted(images, key=lambda image: (_order(platform_of(image)), _is_zstd(image))))
    names = [platform_name(image) for image in ordered]
    if not names or len({(platform_name(it), _is_zstd(it)) for it in ordered}) < len(names):
        what = f"an index needs images, each for another platform; these are for {', '.join(names) or 'none'}"
        raise BuildError(what, where="--platform", todo="name each platform once")
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            _entry(image) | (_ZSTD_ENTRY if _is_zstd(image) and names.count(name) > 1 else {})
            for image, name in zip(ordered, names, strict=True)
        ],
    }
    return ImageIndex(data=canonical_json(value | _annotated(annotations or {})), images=ordered)


def joined(images: Sequence[Image]) -> Content:
    """Return the image, or the index of several."""
    return images[0] if len(images) == 1 else image_index(images)


def images_of(content: Content) -> tuple[Image, ...]:
    """Return the images of an index, or the given image."""
    return content.images if isinstance(content, ImageIndex) else (content,)


def platform_of(image: Image) -> dict[str, Any]:
    """Return the platform of the image's config, as it stands in an index."""
    config = json.loads(image.config)
    return {name: config[name] for name in _PLATFORM if config.get(name)}


def platform_name(image: Image) -> str:
    """Return the platform as in `--platform`: `linux/amd64`, `linux/arm/v7`."""
    return "/".join(part for part in _order(platform_of(image)) if part)


def top_index(content: Content, named: Sequence[Mapping[str, str]] = ()) -> bytes:
    """Return the bytes of a layout's index.json, with the image once for each set of annotations."""
    entries = [_entry(content) | _annotated(annotations) for annotations in named or ({},)]
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def _is_zstd(image: Image) -> bool:
    return any(layer.descriptor.media_type == LAYER_ZSTD for layer in image.layers[-1:])


def _entry(content: Content) -> dict[str, Any]:
    if isinstance(content, ImageIndex):
        return Descriptor(INDEX, content.digest, len(content.data)).to_dict()
    return Descriptor(MANIFEST, content.digest, len(content.manifest)).to_dict() | {"platform": platform_of(content)}


def _annotated(annotations: Mapping[str, str]) -> dict[str, Any]:
    return {"annotations": dict(annotations)} if annotations else {}


def _order(platform: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(platform.get("os", "")), str(platform.get("architecture", "")), str(platform.get("variant", ""))
