"""Bytes -> TrainingManifest, and back to the JSON shape that `schema.json` describes. Pure."""

import json
import re
from dataclasses import asdict
from datetime import datetime
from typing import Any, get_args

from packaging.utils import canonicalize_name

from envbuild.errors import ManifestError
from envbuild.manifest.model import (
    SCHEMA_VERSION,
    Accelerator,
    Code,
    Cpu,
    Distribution,
    Framework,
    Gpu,
    Origin,
    OriginKind,
    Platform,
    Python,
    TrainingManifest,
)
from envbuild.manifest.parse import (
    Fault,
    Table,
    any_text,
    distribution_name,
    exact_python,
    json_name,
    numbers,
    one_of,
    sha256,
    shown,
    variable_name,
    version,
    without_password,
)

MAX_MANIFEST = 64 * 2**20
"""Bytes; a manifest of 10 000 distributions has about 4 MB."""
MAX_FAULTS = 20
"""As many faults are told at once."""
CAPTURE_AGAIN = "capture the run again: envbuild capture --out manifest.json"


def read_manifest(data: bytes, where: str) -> TrainingManifest:
    """Read a manifest; `where` names its source in errors. ManifestError tells all faults, each with its path."""
    root = Table(values=_json_object(data, where))
    _check_schema(root, where)
    manifest = _manifest(root)
    if root.faults:
        raise _faulty(root.faults, where)
    return manifest


def manifest_dict(manifest: TrainingManifest) -> dict[str, Any]:
    """Return the JSON shape of a manifest; what is absent is left out."""
    shape = asdict(manifest, dict_factory=_shape)
    return shape | {"variables": dict(manifest.variables)}


def _shape(items: list[tuple[str, Any]]) -> dict[str, Any]:
    listed = ((key, list(value) if isinstance(value, tuple) else value) for key, value in items)
    return {key: value for key, value in listed if value is not None}


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
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} stands twice in one object")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_schema(root: Table, where: str) -> None:
    """Newer minor versions only add keys, and are read; a newer major version is refused before anything else."""
    written = root.values.get("schema_version")
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


def _manifest(root: Table) -> TrainingManifest:
    python, platform = root.table("python"), root.table("platform")
    framework, accelerator = root.table("framework", required=False), root.table("accelerator", required=False)
    cpu, code = root.table("cpu", required=False), root.table("code", required=False)
    return TrainingManifest(
        schema_version=root.text("schema_version"),
        created=root.text("created", _timestamp),
        python=_python(python or _nothing()),
        platform=_platform(platform or _nothing()),
        distributions=_distributions(root),
        framework=_framework(framework) if framework else None,
        accelerator=_accelerator(accelerator) if accelerator else None,
        cpu=_cpu(cpu or _nothing()),
        variables=root.pairs("variables", variable_name, any_text),
        code=_code(code) if code else None,
        model_uri=root.optional_text("model_uri"),
    )


def _nothing() -> Table:
    """Stand in for a table that is absent, or whose absence is noted already."""
    return Table(values={})


def _timestamp(value: str) -> str | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return f"is no RFC 3339 time: {shown(value)}"
    return None if moment.tzinfo else f"has no time zone: {shown(value)}"


def _python(table: Table) -> Python:
    return Python(
        version=table.text("version", exact_python),
        implementation=table.text("implementation"),
        soabi=table.optional_text("soabi"),
    )


def _platform(table: Table) -> Platform:
    return Platform(
        system=table.text("system"),
        machine=table.text("machine"),
        libc=table.optional_text("libc"),
        libc_version=table.optional_text("libc_version"),
        os_id=table.optional_text("os_id"),
        os_version=table.optional_text("os_version"),
    )


def _distributions(root: Table) -> tuple[Distribution, ...]:
    found: dict[str, tuple[str, Distribution]] = {}
    for table in root.tables("distributions", required=True):
        distribution = _distribution(table)
        name = canonicalize_name(distribution.name)
        if name and name in found:
            table.fault("name", f"is the same distribution as {found[name][0]}: {name}")
        found.setdefault(name, (table.path, distribution))
    return tuple(found[name][1] for name in sorted(found))


def _distribution(table: Table) -> Distribution:
    origin = table.table("origin")
    return Distribution(
        name=table.text("name", distribution_name),
        version=table.text("version", version),
        origin=_origin(origin or _nothing()),
        installer=table.optional_text("installer"),
        requested=table.boolean("requested"),
        record_sha256=table.optional_text("record_sha256", sha256),
    )


def _origin(table: Table) -> Origin:
    kinds: tuple[OriginKind, ...] = get_args(OriginKind)
    word = table.text("kind", one_of(*kinds))
    return Origin(
        kind=next((kind for kind in kinds if kind == word), "unknown"),
        url=table.optional_text("url", without_password),
        commit=table.optional_text("commit"),
        subdirectory=table.optional_text("subdirectory"),
        sha256=table.optional_text("sha256", sha256),
    )


def _framework(table: Table) -> Framework:
    return Framework(
        name=table.text("name"),
        distribution=table.text("distribution", distribution_name),
        version=table.text("version", version),
        cuda=table.optional_text("cuda", numbers),
        cudnn=table.optional_text("cudnn", numbers),
        compute_capabilities=table.texts("compute_capabilities"),
    )


def _accelerator(table: Table) -> Accelerator:
    return Accelerator(
        driver=table.optional_text("driver"),
        cuda_maximum=table.optional_text("cuda_maximum", numbers),
        gpus=tuple(_gpu(gpu) for gpu in table.tables("gpus")),
    )


def _gpu(table: Table) -> Gpu:
    return Gpu(
        name=table.text("name"),
        memory=table.integer("memory"),
        compute_capability=table.optional_text("compute_capability", numbers),
    )


def _cpu(table: Table) -> Cpu:
    return Cpu(model=table.optional_text("model"), count=table.integer("count"), flags=table.texts("flags"))


def _code(table: Table) -> Code:
    return Code(
        commit=table.text("commit"),
        remote=table.optional_text("remote", without_password),
        dirty=table.boolean("dirty"),
    )
