"""Bytes -> TrainingManifest, and back to the JSON shape that `schema.json` describes. Pure."""

import dataclasses
import json
import re
from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.capture.frameworks import used_framework
from envbuild.errors import ManifestError
from envbuild.manifest.hardware import Accelerator
from envbuild.manifest.model import SCHEMA_VERSION, Framework, TrainingManifest
from envbuild.validation import Fault, InvalidError, fields_of, quote, read_values

MAX_MANIFEST = 64 * 2**20
"""Bytes; a manifest of 10 000 distributions has about 4 MB."""
MAX_FAULTS = 20
"""How many faults a message names."""
CAPTURE_AGAIN = "capture the run again: envbuild capture --out manifest.json"
_NO_CAPTURE = "give the JSON file that envbuild capture wrote"


def read_manifest(data: bytes, where: str) -> TrainingManifest:
    """Read a manifest; `where` names its source in errors. ManifestError names all faults, each with its path."""
    values = _json_object(data, where)
    _check_schema(values, where)
    try:
        manifest, faults = read_values(values, TrainingManifest), list[Fault]()
    except InvalidError as error:
        manifest, faults = None, error.faults
    faults += _repeated(values.get("distributions"))
    if isinstance(created := values.get("created"), str):
        try:
            zone = datetime.fromisoformat(created).tzinfo
        except ValueError:
            zone = None
        if zone is None:
            faults.append(Fault("created", f"is not an RFC 3339 time with a time zone: {quote(created)}"))
    if faults or manifest is None:
        raise _error_of(faults, where)
    ordered = sorted(manifest.distributions, key=lambda it: canonicalize_name(it.name))
    return replace(manifest, distributions=tuple(ordered))


def manifest_dict(manifest: TrainingManifest) -> dict[str, Any]:
    """Return the JSON shape of a manifest; what is absent is left out."""
    values: dict[str, Any] = shape(manifest)
    return values


def shape(value: Any) -> Any:
    """Return the JSON shape of a value; fields that have their default are left out."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return [shape(item) for item in value] if isinstance(value, tuple) else value
    hints = {name: hint for name, hint, _ in fields_of(type(value))}
    values = {}
    for field in dataclasses.fields(value):
        item, factory = getattr(value, field.name), field.default_factory
        if item != (field.default if factory is dataclasses.MISSING else factory()):
            values[field.name] = dict(item) if hasattr(hints[field.name], "json_type") else shape(item)
    return values


def known_accelerator(manifest: TrainingManifest) -> Accelerator | None:
    """Return the accelerator; None where it is not known. In a capture of schema 1.0 an absent one means none."""
    source = manifest.source
    if manifest.accelerator is None and source.format == "capture" and "accelerator" not in source.unknown:
        return Accelerator(kind="none")
    return manifest.accelerator


def known_framework(manifest: TrainingManifest) -> Framework | None:
    """Return the framework that the run used, or None; of several, earlier captures named the likeliest one."""
    if manifest.framework_source:
        return manifest.framework
    if len(manifest.frameworks) < 2:
        return manifest.framework or next(iter(manifest.frameworks), None)
    used = used_framework(manifest_dict(replace(manifest, distributions=())))
    return next((it for it in manifest.frameworks if used and it.name == used["name"]), None)


def _repeated(distributions: Any) -> list[Fault]:
    """Distributions whose normalised name another one has."""
    faults, first = [], dict[str, int]()
    for index, item in enumerate(distributions if isinstance(distributions, list) else ()):
        name = item.get("name") if isinstance(item, dict) else None
        name = canonicalize_name(name) if isinstance(name, str) else ""
        if name and name in first:
            what = f"is the same distribution as distributions[{first[name]}]: {quote(name)}"
            faults.append(Fault(f"distributions[{index}].name", what))
        first.setdefault(name, index)
    return faults


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > MAX_MANIFEST:
        todo = f"{_NO_CAPTURE}, not a model or an archive"
        raise ManifestError(f"the manifest is larger than {MAX_MANIFEST // 2**20} MiB", where=where, todo=todo)
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        fault = "it is nested too deeply" if isinstance(error, RecursionError) else error
        what = f"the manifest is not JSON, or cut off: {fault}"
        raise ManifestError(what, where=where, todo=CAPTURE_AGAIN) from error
    if not isinstance(value, dict):
        raise ManifestError("the manifest is not a JSON object", where=where, todo=CAPTURE_AGAIN)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {quote(twice)} stands twice in one object")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_schema(values: dict[str, Any], where: str) -> None:
    """Newer minor versions only add keys, and are read; a newer major version is refused before anything else."""
    version = values.get("schema_version")
    match = re.fullmatch(r"([0-9]{1,9})\.[0-9]{1,9}", version) if isinstance(version, str) else None
    if match is None:
        what = f"this is not a training manifest: it has no schema_version such as {SCHEMA_VERSION}"
        raise ManifestError(what, where=f"{where}: schema_version", todo=_NO_CAPTURE)
    if match[1] != SCHEMA_VERSION.partition(".")[0]:
        what = f"the manifest has schema {match[0]}, and this envbuild reads {SCHEMA_VERSION}"
        todo = "use the envbuild release that wrote the manifest, or a newer one"
        raise ManifestError(what, where=f"{where}: schema_version", todo=todo)


def _error_of(faults: list[Fault], where: str) -> ManifestError:
    first = faults[0].path
    what = summary([f"{it.path} {it.what}" for it in faults])
    return ManifestError(what, where=f"{where}: {first}" if first else where, todo=CAPTURE_AGAIN)


def summary(faults: list[str], most: int = MAX_FAULTS) -> str:
    """Name the first faults, each on a line if there are several, and how many there are."""
    if len(faults) == 1:
        return faults[0]
    more = [f"and {len(faults) - most} more"] if len(faults) > most else []
    return "\n  ".join((f"{len(faults)} faults:", *faults[:most], *more))
