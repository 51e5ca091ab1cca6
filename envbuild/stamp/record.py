"""The record on a model: which images serve it, as values and as bytes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from envbuild.errors import StampError
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json

SCHEMA_VERSION = "1.0"
FOLDER = "envbuild"
"""Beside the model: records, manifests and locks, each under a name that its content decides."""
Role = Literal["train", "serve"]
_PREFIX = "envbuild-"
_RECORD_KEY = "envbuild-record"


@dataclass(frozen=True, slots=True, kw_only=True)
class StampEntry:
    """One image of the model."""

    role: Role
    variant: str
    platform: str
    """`linux/amd64`."""
    digest: Digest
    reference: str | None
    """By digest, as the registry confirmed it; None while the image is only an OCI layout."""
    environment: Digest

    @property
    def slot(self) -> tuple[str, str, str]:
        """What there can be one image for."""
        return self.role, self.variant, self.platform


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedImage:
    """An entry with the digests of the manifest and lock that it was built from."""

    entry: StampEntry
    manifest: Digest
    lock: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The whole record; never changed, only followed by another."""

    model: str
    anchor: str
    """The object whose metadata points here, relative to the model's folder."""
    generation: str
    """Of the anchor: which content was stamped."""
    images: tuple[StampedImage, ...]
    """Sorted by slot."""
    created: str
    """RFC 3339, UTC."""
    envbuild: str
    """The version that wrote it."""
    previous: str | None
    """The record before this one."""

    def find(self, slot: tuple[str, str, str]) -> StampedImage | None:
        """Return the image of a slot."""
        return next((image for image in self.images if image.entry.slot == slot), None)

    def with_image(self, image: StampedImage) -> Self:
        """The same record with an image added, or replaced in its slot."""
        others = [other for other in self.images if other.entry.slot != image.entry.slot]
        return replace(self, images=tuple(sorted([*others, image], key=lambda image: image.entry.slot)))

    def to_bytes(self) -> bytes:
        """Serialise; equal records have equal bytes."""
        images = [
            asdict(image.entry)
            | {"digest": str(image.entry.digest), "environment": str(image.entry.environment)}
            | {"manifest_sha256": image.manifest.hex, "lock_sha256": image.lock.hex}
            for image in self.images
        ]
        value = {"schema_version": SCHEMA_VERSION, "images": images}
        names = ("model", "anchor", "generation", "created", "envbuild", "previous")
        return canonical_json(value | {name: getattr(self, name) for name in names})

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read a record; StampError when it is damaged or of a newer major version."""
        try:
            value: dict[str, Any] = json.loads(data)
            if str(value["schema_version"]).split(".")[0] != SCHEMA_VERSION.split(".", maxsplit=1)[0]:
                todo = "use a newer envbuild"
                raise StampError(f"the record has schema version {value['schema_version']}", where=where, todo=todo)
            return cls(
                images=tuple(_image(image) for image in value["images"]),
                **{name: value[name] for name in ("model", "anchor", "generation", "created", "envbuild", "previous")},
            )
        except (ValueError, KeyError, TypeError) as error:
            todo = "restore the file; envbuild never changes a record once it is written"
            raise StampError(f"the record cannot be read: {error!r}", where=where, todo=todo) from error


def _image(value: Mapping[str, Any]) -> StampedImage:
    entry = StampEntry(
        role=value["role"],
        variant=value["variant"],
        platform=value["platform"],
        digest=Digest.parse(value["digest"]),
        reference=value["reference"],
        environment=Digest.parse(value["environment"]),
    )
    return StampedImage(entry=entry, manifest=Digest(value["manifest_sha256"]), lock=Digest(value["lock_sha256"]))


def content_name(kind: str, digest: Digest) -> str:
    """Name a file beside the model by its content: `envbuild/record-<hex>.json`."""
    return f"{FOLDER}/{kind}-{digest.hex}.{'toml' if kind == 'lock' else 'json'}"


def pointer(stamp: Stamp, name: str) -> dict[str, str]:
    """Return the anchor's metadata for a record: the images by digest, and where the record is; under 1 KiB."""
    values = {"envbuild-schema": SCHEMA_VERSION, _RECORD_KEY: name}
    for image in stamp.images:
        entry = image.entry
        values[f"{_PREFIX}image-{entry.role}-{entry.variant}"] = entry.reference or str(entry.digest)
        values["envbuild-environment"] = str(entry.environment)
        values["envbuild-manifest-sha256"] = image.manifest.hex
    return values


def record_name(metadata: Mapping[str, str]) -> str | None:
    """Return the record that an anchor's metadata points to."""
    return metadata.get(_RECORD_KEY)
