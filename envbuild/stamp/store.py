"""Where a model lies: what the stamp needs of a bucket or a folder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from envbuild.errors import UsageError
from envbuild.stamp.record import FOLDER

METADATA_LIMIT = 8 << 10
"""Bytes of custom metadata that Cloud Storage keeps for one object (quotas page)."""
# What a model is known by, the surest first.
_SUFFIXES = (".keras", ".h5", ".hdf5", ".pt2", ".pt", ".pth", ".onnx", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The object of the model that carries the pointer, as it was when it was read."""

    name: str
    """Relative to the model's folder."""
    generation: str
    """Changes with the content."""
    metageneration: int
    """Changes with the metadata."""
    metadata: Mapping[str, str]


class Store(Protocol):
    """A model's folder; every method raises StampError for what the outside can cause."""

    def anchor(self) -> Anchor:
        """Find the anchor and read its metadata."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None when there is none."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Write a file whose name its content decides; one that is there already is the same."""
        ...

    def patch(self, anchor: Anchor, metadata: Mapping[str, str]) -> bool:
        """Merge into the anchor's metadata; False when content or metadata are no longer those of `anchor`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUri:
    """A model's address."""

    bucket: str | None
    """None for a folder or file of this machine."""
    path: str
    """Object name or prefix, without slashes at its ends; or a local path."""


def parse_model_uri(text: str) -> ModelUri:
    """Read `gs://bucket/path`, `file:///path` or a plain path; UsageError for everything else."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return ModelUri(bucket=None, path=text)
    if scheme == "file":
        return ModelUri(bucket=None, path=rest)
    bucket, _, path = rest.partition("/")
    if scheme == "gs" and bucket and path.strip("/"):
        return ModelUri(bucket=bucket, path=path.strip("/"))
    todo = "give gs://BUCKET/PATH, a folder or a file"
    raise UsageError("this is no address of a model", where=text, todo=todo)


def choose_anchor(names: Iterable[str]) -> str | None:
    """Choose among the names of a model's folder: saved_model.pb, else a model file by its ending, else the first."""
    found = sorted(name for name in names if not name.startswith(f"{FOLDER}/") and name != FOLDER)
    if "saved_model.pb" in found:
        return "saved_model.pb"
    for suffix in _SUFFIXES:
        if fitting := [name for name in found if name.endswith(suffix)]:
            return fitting[0]
    return found[0] if found else None
