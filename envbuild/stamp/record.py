"""The stamp as values: the record beside a model, and the pointer to it in the model's metadata.

The record has everything and travels with the model's folder; the pointer is read by one request for metadata.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from envbuild.errors import StampError
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.reference import Reference
from envbuild.validation import read_values

SCHEMA_VERSION = "1.2"
"""Written by this release; a newer minor version is read, a newer major one is refused."""
FOLDER = "envbuild"
"""The folder beside the model that holds all that envbuild writes."""
RECORD_PREFIX = f"{FOLDER}/record-"
MAX_METADATA = 8 * 1024
"""Bytes of all custom metadata of one object, keys and values together (Cloud Storage, "Quotas and limits")."""
RECORD_LIMIT = 16 * 1024 * 1024
"""Bytes of a record that is read: room for the longest names of 10,000 files."""
USUAL_PLATFORM = "linux/amd64"
"""The one platform that a pointer's key does not name."""
_MAJOR = 1
_SCHEMA = re.compile(r"1\.[0-9]{1,9}")
_REQUIRED_TEXTS, _OPTIONAL_TEXTS = ("role", "variant", "platform", "reference"), ("identity", "tag", "relation", "gate")
_OF_IMAGE = {
    *(*_REQUIRED_TEXTS, *_OPTIONAL_TEXTS),
    *("digest", "environment", "overrides", "compression", "zstd", "manifest_sha256", "lock_sha256"),
}
"""The keys of an image that this release knows."""
_IMAGE_KEY = "envbuild-image-"
_WORD = re.compile(r"[a-z0-9][a-z0-9_]{0,31}\Z")
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9]+(?:/[a-z0-9]+)?\Z")
_RECORD_NAME = re.compile(rf"{FOLDER}/record-([0-9a-f]{{64}})\.json\Z")
_LARGEST = 2**53 - 1
"""The largest whole number that every reader of JSON has exactly (RFC 8259, section 6)."""
_Line = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f]*\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampEntry:
    """One image to be written on a model; ValueError when its parts do not fit."""

    role: str
    """`train` or `serve`."""
    variant: str
    """`gpu` or `cpu`."""
    platform: str
    """`linux/amd64`."""
    reference: str | None
    """`host/repo@sha256:…` as the registry confirmed it; None for an image that lies in an OCI layout."""
    digest: Digest
    environment: Digest
    overrides: tuple[tuple[str, str], ...] = ()
    """Values set by hand against the profiles, sorted."""
    identity: str | None = None
    """How many wheels are the run's own: `41 of 42 identical; ...`; None if not compared."""
    tag: str | None = None
    """The tag that it was pushed under, which may name another image later; None for one that has none."""
    relation: str | None = None
    """Its relation to the training environment, if it does not share it: `verified-compatible`."""
    gate: str | None = None
    """`untried` for a serving image that nothing started before it was stamped."""
    compression: Compression = GZIP
    """Of the layers that a training image was built with."""
    zstd: Digest | None = None
    """The same image with layers of zstd, beside this one in an index; None if there is none."""

    def __post_init__(self) -> None:
        for word in (self.role, self.variant):
            if not _WORD.match(word):
                raise ValueError(f"not a role or variant: {word!r}")
        if not _PLATFORM.match(self.platform):
            raise ValueError(f"not a platform: {self.platform!r}")
        parsed = Reference.parse(self.reference) if self.reference is not None else None
        if parsed and (parsed.digest != self.digest or parsed.tag is not None):
            raise ValueError(f"not a reference to {self.digest}: {self.reference!r}")

    @property
    def slot(self) -> tuple[str, str, str]:
        """Role, variant and platform: a model has one image for each."""
        return self.role, self.variant, self.platform

    @property
    def digests(self) -> tuple[Digest, ...]:
        """The digests of the image, in each compression."""
        return (self.digest, self.zstd) if self.zstd else (self.digest,)

    @property
    def image(self) -> str:
        """The reference by digest, or the bare digest of an image that was not pushed."""
        return self.reference or str(self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedImage(StampEntry):
    """An image on a model, with the digests of its inputs."""

    manifest_sha256: Digest
    """Of the training manifest; a copy lies beside the record."""
    lock_sha256: Digest
    """Of the lock; a copy lies beside the record."""
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of a newer minor version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The one object of a model that carries the pointer."""

    name: str
    """Inside the model's folder."""
    generation: str
    """The version of its content: Cloud Storage's generation, or a file's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedFile:
    """One file of a model at the moment when it was stamped."""

    path: _Line
    """Inside the model's folder; of a single file, its name."""
    size: _Count
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None = None
    """Of a file of the stamping machine."""
    crc32c: _Line | None = None
    """In base64, of an object in Cloud Storage."""
    generation: _Count | None = None
    """Of an object in Cloud Storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of a model when it was stamped."""

    files: tuple[StampedFile, ...]
    """Sorted by path, at most 10,000."""
    file_count: _Count | None = None
    """How many files it had; None if unknown."""
    forced: _Line = ""
    """How they differ from the manifest, if it was stamped nevertheless."""

    def is_within(self, other: "ModelFiles") -> bool:
        """Whether each of these files is the same in the other one, as far as both have its checksums."""
        found = {it.path: astuple(it) for it in other.files}
        pairs = [zip(astuple(it), found.get(it.path, ("",)), strict=False) for it in self.files]
        return all(None in pair or pair[0] == pair[1] for each in pairs for pair in each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """One record: all images of a model when it was written."""

    model: str
    """The model's URI."""
    anchor: Anchor
    images: tuple[StampedImage, ...]
    """Sorted by slot; one image a slot."""
    environment: Digest
    """Of the image that this record added."""
    manifest_sha256: Digest
    """Of the image that this record added."""
    lock_sha256: Digest
    """Of the image that this record added."""
    created: str
    """RFC 3339, UTC."""
    envbuild: str
    """Version of envbuild."""
    by: str | None = None
    """The author as known to the machine: an account, or `user@host`."""
    previous: str | None = None
    """The name of the record that this one continues; of a signed one the key's newest."""
    counter: int = 0
    """1, 2, 3 ... for each model; 0 in records of older releases."""
    content: ModelFiles | None = None
    """The model's files; None in records of older releases."""
    schema_version: str = SCHEMA_VERSION
    """Newer than this release's if an image was carried over from such a record, with all its fields."""

    def image(self, slot: tuple[str, str, str]) -> StampedImage | None:
        """Return the image for a role, variant and platform."""
        return next((image for image in self.images if image.slot == slot), None)


def stamped(entry: StampEntry, manifest: bytes, lock: bytes) -> StampedImage:
    """Join an entry with the digests of what it was made from."""
    values = {it.name: getattr(entry, it.name) for it in fields(StampEntry)}
    return StampedImage(**values, manifest_sha256=Digest.of(manifest), lock_sha256=Digest.of(lock))


def merged(images: Iterable[StampedImage], image: StampedImage) -> tuple[StampedImage, ...]:
    """Put an image into its slot; other slots, and further fields of the same image, stay as they are."""
    others = {other.slot: other for other in images}
    old = others.get(image.slot)
    if old and old.digest == image.digest:
        image = replace(image, more=old.more, gate=image.gate and old.gate)
        if image.reference in (None, old.reference) and image.tag is None:  # the old tag names what it named
            image = replace(image, reference=old.reference, tag=old.tag, zstd=image.zstd or old.zstd)
    return tuple(sorted((others | {image.slot: image}).values(), key=lambda one: one.slot))


def later_schema(carried: str | None) -> str:
    """Return the schema of a record that takes over images of a record of schema `carried`: the newer of both."""
    return max(SCHEMA_VERSION, carried or SCHEMA_VERSION, key=lambda it: int(it.partition(".")[2]))


def rfc3339(moment: datetime) -> str:
    """Write a moment as `2026-01-31T12:00:00Z`; ValueError when it has no time zone."""
    if moment.tzinfo is None:
        raise ValueError("a moment without a time zone")
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def record_bytes(record: Stamp) -> bytes:
    """Serialise a record; equal records give equal bytes."""
    value: dict[str, Any] = {
        "schema_version": record.schema_version,
        "model": record.model,
        "anchor": {"name": record.anchor.name, "generation": record.anchor.generation},
        "images": [image_dict(image) for image in record.images],
        "environment": str(record.environment),
        "manifest_sha256": record.manifest_sha256.hex,
        "lock_sha256": record.lock_sha256.hex,
        "created": record.created,
        "envbuild": record.envbuild,
        "previous": record.previous,
    }
    # Records of older releases without these keys keep their bytes.
    value |= {"by": record.by} if record.by is not None else {}
    value |= {"counter": record.counter} if record.counter else {}
    if content := record.content:
        files = [{key: it for key, it in asdict(file).items() if it is not None} for file in content.files]
        value["content"] = {"files": files, "file_count": content.file_count, "forced": content.forced}
    return canonical_json(value)


def record_name(data: bytes) -> str:
    """Name a record by its content, inside the model's folder."""
    return f"{RECORD_PREFIX}{Digest.of(data).hex}.json"


def is_record_name(name: str) -> bool:
    """Whether a record can have this name, inside the model's folder."""
    return _RECORD_NAME.match(name) is not None


def signature_name(record: str) -> str:
    """Name the signature of a record, by the record's name."""
    return f"{record.removesuffix('.json')}.sigstore.json"


def record_digest(name: str) -> Digest:
    """The digest that a record is named by."""
    return Digest(name.removesuffix(".json").rpartition("-")[2])


def manifest_name(image: StampedImage) -> str:
    """Name the copy of the training manifest, inside the model's folder."""
    return f"{FOLDER}/manifest-{image.manifest_sha256.hex}.json"


def lock_name(image: StampedImage) -> str:
    """Name the copy of the lock (PEP 751, "File Name"), inside the model's folder."""
    return f"{FOLDER}/pylock.{image.lock_sha256.hex}.toml"


def read_record(name: str, data: bytes) -> Stamp:
    """Read a record; StampError when the bytes are not those of its name, not a record, or of a newer schema."""
    todo = "restore the record, or remove the model's envbuild-* metadata (in a folder: envbuild/pointer.json)"
    if name != record_name(data):
        raise StampError("the record's content is not what its name says", where=name, todo=todo)
    try:
        value = json.loads(data)
        if int(value["schema_version"].split(".")[0]) > _MAJOR:
            what = f"the record has schema {value['schema_version']}, this envbuild reads {SCHEMA_VERSION}"
            raise StampError(what, where=name, todo="install a newer envbuild")
        canonical_json(value)  # JSON may contain "\ud800", which cannot be written again
        return _stamp(value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise StampError("this is not a record of a stamp", where=name, todo=todo) from error


def dropped(metadata: Mapping[str, str], values: Mapping[str, str]) -> dict[str, None]:
    """Return the image keys of metadata that a new pointer lacks: those of replaced images."""
    return dict.fromkeys(key for key in metadata if key.startswith(_IMAGE_KEY) and key not in values)


def pointer(record: Stamp, name: str) -> dict[str, str]:
    """Return the metadata that points to a record: enough to find and to check the images without reading it."""
    values = {}
    for image in record.images:
        platform = "" if image.platform == USUAL_PLATFORM else "-" + image.platform.replace("/", "-")
        values[f"{_IMAGE_KEY}{image.role}-{image.variant}{platform}"] = image.image
    return values | {
        "envbuild-schema": record.schema_version,
        "envbuild-environment": str(record.environment),
        "envbuild-manifest-sha256": record.manifest_sha256.hex,
        "envbuild-record": name,
    }


def pointed(metadata: Mapping[str, str], where: str) -> str | None:
    """Return the name of the record that metadata points to, None without a stamp; StampError for an invalid name."""
    name = metadata.get("envbuild-record")
    if name is not None and not _RECORD_NAME.match(name):
        todo = "remove the model's envbuild-* metadata and stamp again"
        raise StampError("the model's metadata names no record that envbuild wrote", where=where, todo=todo)
    return name


def image_dict(image: StampedImage) -> dict[str, Any]:
    """Return an image as it stands in a record."""
    return {
        **image.more,
        **{name: getattr(image, name) for name in (*_REQUIRED_TEXTS, "identity")},
        "digest": str(image.digest),
        "environment": str(image.environment),
        "overrides": dict(image.overrides),
        "manifest_sha256": image.manifest_sha256.hex,
        "lock_sha256": image.lock_sha256.hex,
        **({"tag": image.tag} if image.tag else {}),
        **({"relation": image.relation} if image.relation else {}),
        **({"gate": image.gate} if image.gate else {}),
        **({"compression": str(image.compression)} if image.compression != GZIP else {}),
        **({"zstd": str(image.zstd)} if image.zstd else {}),
    }


def _stamp(value: Mapping[str, Any]) -> Stamp:
    return Stamp(
        schema_version=_SCHEMA.fullmatch(value["schema_version"])[0],  # type: ignore[index]
        model=str(value["model"]),
        anchor=Anchor(name=str(value["anchor"]["name"]), generation=str(value["anchor"]["generation"])),
        images=tuple(_image(image) for image in value["images"]),
        environment=Digest.parse(value["environment"]),
        manifest_sha256=Digest(value["manifest_sha256"]),
        lock_sha256=Digest(value["lock_sha256"]),
        created=str(value["created"]),
        envbuild=str(value["envbuild"]),
        counter=msgspec.convert(value.get("counter", 0), _Count),
        by=None if value.get("by") is None else str(value["by"]),
        content=None if value.get("content") is None else read_values(value["content"], ModelFiles),
        previous=None if value["previous"] is None else _RECORD_NAME.fullmatch(value["previous"])[0],  # type: ignore[index]
    )


def _image(value: Mapping[str, Any]) -> StampedImage:
    texts = {it: value[it] for it in _REQUIRED_TEXTS} | {it: value.get(it) for it in _OPTIONAL_TEXTS}
    return StampedImage(
        **msgspec.convert(texts, dict[str, str | None]),  # type: ignore[arg-type]
        digest=Digest.parse(value["digest"]),
        environment=Digest.parse(value["environment"]),
        compression=Compression.parse(value.get("compression", str(GZIP))),
        zstd=Digest.parse(value["zstd"]) if "zstd" in value else None,
        overrides=tuple(sorted((str(key), str(set_to)) for key, set_to in value.get("overrides", {}).items())),
        manifest_sha256=Digest(value["manifest_sha256"]),
        lock_sha256=Digest(value["lock_sha256"]),
        more={key: it for key, it in value.items() if key not in _OF_IMAGE},
    )
