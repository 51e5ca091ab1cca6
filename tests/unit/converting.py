"""What the tests of other tools' records share: reading one from memory."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from envbuild.errors import ManifestError
from envbuild.manifest.importers.detect import convert, detect
from envbuild.manifest.importers.environment import RecordOptions, manifest_bytes
from envbuild.manifest.importers.record import Record
from envbuild.manifest.model import Format, TrainingManifest
from envbuild.manifest.reader import manifest_dict, read_manifest

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def record_of(name: str, content: str | bytes, beside: Mapping[str, str | bytes] | None = None) -> Record:
    files = {path: it.encode() if isinstance(it, str) else it for path, it in (beside or {}).items()}
    data = content.encode() if isinstance(content, str) else content
    return Record(name=f"folder/{name}", data=data, beside=files.get)


def read(
    name: str,
    content: str | bytes,
    beside: Mapping[str, str | bytes] | None = None,
    *,
    kind: Format | None = None,
    **given: str | None,
) -> TrainingManifest:
    """Convert, and hold the result to what every conversion promises: its own JSON gives it again."""
    record = record_of(name, content, beside)
    manifest = convert(record, kind or detect(record), RecordOptions(**given), NOW)
    assert read_manifest(manifest_bytes(manifest), "again") == manifest
    return manifest


def refusal(
    name: str,
    content: str | bytes,
    beside: Mapping[str, str | bytes] | None = None,
    *,
    kind: Format | None = None,
    **given: str | None,
) -> str:
    """The message of the ManifestError that a record ends in."""
    with pytest.raises(ManifestError) as caught:
        read(name, content, beside, kind=kind, **given)
    assert caught.value.where
    assert caught.value.todo
    return str(caught.value)


def pins(manifest: TrainingManifest) -> dict[str, str | None]:
    return {it.name: it.version for it in manifest.distributions}


def origins(manifest: TrainingManifest) -> dict[str, dict]:
    return {it["name"]: it["origin"] for it in manifest_dict(manifest)["distributions"]}
