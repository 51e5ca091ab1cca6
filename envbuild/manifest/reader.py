"""Bytes -> TrainingManifest, and back to the JSON shape that `schema.json` describes. Pure."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.errors import ManifestError
from envbuild.manifest.fields import shown
from envbuild.manifest.model import SCHEMA_VERSION, TrainingManifest
from envbuild.manifest.packages import Distribution
from envbuild.manifest.parse import Fault, Parser, json_name, shape

MAX_MANIFEST = 64 * 2**20
"""Bytes; a manifest of 10 000 distributions has about 4 MB."""
MAX_FAULTS = 20
"""As many faults are told at once."""
CAPTURE_AGAIN = "capture the run again: envbuild capture --out manifest.json"


def read_manifest(data: bytes, where: str) -> TrainingManifest:
    """Read a manifest; `where` names its source in errors. ManifestError tells all faults, each with its path."""
    values = _json_object(data, where)
    _check_schema(values, where)
    parser = Parser()
    manifest = parser.read(TrainingManifest, values)
    _check_unique(manifest.distributions, parser)
    if parser.faults:
        raise _faulty(parser.faults, where)
    found = sorted(manifest.distributions, key=lambda it: canonicalize_name(it.name))
    return replace(manifest, distributions=tuple(found))


def manifest_dict(manifest: TrainingManifest) -> dict[str, Any]:
    """Return the JSON shape of a manifest; what is absent is left out."""
    shaped: dict[str, Any] = shape(manifest)
    return shaped


def _check_unique(distributions: "Iterable[Distribution | None] | None", parser: Parser) -> None:
    found: dict[str, int] = {}
    for index, distribution in enumerate(distributions or ()):
        name = getattr(distribution, "name", None)
        if not isinstance(name, str):  # is a fault already
            continue
        name = canonicalize_name(name)
        if name and name in found:
            first = f"distributions[{found[name]}]"
            parser.fault(f"distributions[{index}].name", f"is the same distribution as {first}: {name}")
        found.setdefault(name, index)


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > MAX_MANIFEST:
        raise ManifestError(
            f"the manifest is larger than {MAX_MANIFEST // 2**20} MiB",
            where=where,
            todo="give the JSON file that envbuild capture wrote, not a model or an archive",
        )
    if not data.strip():
        raise ManifestError("the manifest is empty", where=where, todo=CAPTURE_AGAIN)
    value = _json(_utf8(data, where), where)
    if not isinstance(value, dict):
        raise ManifestError(f"the manifest is {json_name(value)}, not an object", where=where, todo=CAPTURE_AGAIN)
    return value


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"the manifest is not JSON: no UTF-8 at byte {error.start}",
            where=where,
            todo="give the JSON file that envbuild capture wrote",
        ) from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}, byte {len(text[: error.pos].encode())}"
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        what = f"the manifest is cut off at {at}" if cut else f"the manifest is not JSON: {error.msg} at {at}"
        raise ManifestError(what, where=where, todo=CAPTURE_AGAIN) from error
    except RecursionError as error:
        raise ManifestError("the manifest is nested too deeply", where=where, todo=CAPTURE_AGAIN) from error
    except ValueError as error:
        raise ManifestError(f"the manifest is not JSON: {error}", where=where, todo=CAPTURE_AGAIN) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shown(key)} stands twice in one object")
            seen.add(key)
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_schema(values: dict[str, Any], where: str) -> None:
    """Newer minor versions only add keys, and are read; a newer major version is refused before anything else."""
    written = values.get("schema_version")
    match = re.fullmatch(r"([0-9]{1,9})\.[0-9]{1,9}", written) if isinstance(written, str) else None
    if match is None:
        raise ManifestError(
            "this is no training manifest: it has no schema_version such as " + SCHEMA_VERSION,
            where=f"{where}: schema_version",
            todo="give the JSON file that envbuild capture wrote",
        )
    if match.group(1) != SCHEMA_VERSION.split(".", maxsplit=1)[0]:
        raise ManifestError(
            f"the manifest has schema {match.group()}, and this envbuild reads {SCHEMA_VERSION}",
            where=f"{where}: schema_version",
            todo="use the envbuild release that wrote the manifest, or a newer one",
        )


def _faulty(faults: list[Fault], where: str) -> ManifestError:
    if len(faults) == 1:
        fault = faults[0]
        return ManifestError(f"{fault.path} {fault.what}", where=f"{where}: {fault.path}", todo=CAPTURE_AGAIN)
    lines = [f"  {fault.path} {fault.what}" for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        lines.append(f"  and {len(faults) - MAX_FAULTS} more")
    what = f"the manifest has {len(faults)} faults:\n" + "\n".join(lines)
    return ManifestError(what, where=f"{where}: {faults[0].path}", todo=CAPTURE_AGAIN)
