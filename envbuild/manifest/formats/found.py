"""What a record says, and the manifest that this makes: whatever else a capture would know is named as unknown."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from envbuild.manifest.formats.given import Given, known_platform
from envbuild.manifest.formats.record import Record, clean
from envbuild.manifest.hardware import Accelerator, Cpu, Host
from envbuild.manifest.model import (
    SCHEMA_VERSION,
    Code,
    Entry,
    Format,
    Framework,
    Platform,
    Python,
    Source,
    TrainingManifest,
)
from envbuild.manifest.packages import Conda, Distribution
from envbuild.manifest.reader import manifest_dict, read_manifest

FRAMEWORKS = {
    "tensorflow": (
        "tensorflow", "tensorflow-gpu", "tensorflow-cpu", "tensorflow-cpu-aws", "tensorflow-intel", "tensorflow-macos",
        "tensorflow-rocm", "intel-tensorflow", "tf-nightly", "tf-nightly-gpu", "tf-nightly-cpu",
    ),
    "torch": ("torch",),
    "jax": ("jax",),
    "keras": ("keras",),
}  # fmt: skip
"""The distributions that bring a framework, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a record says."""

    python: str
    """Exact."""
    implementation: str = "cpython"
    platform: Platform = field(default_factory=Platform)
    distributions: tuple[Distribution, ...]
    complete: bool
    """Whether it lists everything that was installed."""
    notes: tuple[str, ...] = ()
    tool: str | None = None
    """What wrote it: `mlflow 3.17.2`."""
    created: datetime | None = None
    accelerator: Accelerator | None = None
    cpu: Cpu = field(default_factory=Cpu)
    conda: Conda | None = None
    code: Code | None = None
    entry: Entry | None = None
    host: Host | None = None


def manifest_of(found: Found, record: Record, *, kind: Format, given: Given, now: datetime) -> TrainingManifest:
    """Make the manifest; ManifestError where something in it is not what a manifest may have."""
    frameworks = _frameworks(found.distributions)
    manifest = TrainingManifest(
        schema_version=SCHEMA_VERSION,
        created=(found.created or now).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=Source(
            format=kind,
            tool=found.tool,
            file=clean(record.file) or None,
            sha256=hashlib.sha256(record.data).hexdigest(),
            complete=found.complete,
            notes=tuple(dict.fromkeys(filter(None, map(clean, found.notes)))),
        ),
        python=Python(version=found.python, implementation=found.implementation),
        platform=known_platform(found.platform, given),
        distributions=found.distributions,
        framework=None if _several(frameworks) else next(iter(frameworks), None),
        frameworks=frameworks,
        accelerator=found.accelerator,
        cpu=found.cpu,
        conda=found.conda,
        code=found.code,
        entry=found.entry,
        host=found.host,
    )
    unknown = tuple(_unknown(manifest, found))
    manifest = replace(manifest, source=replace(manifest.source, unknown=unknown))
    return read_manifest(manifest_bytes(manifest), record.name)


def manifest_bytes(manifest: TrainingManifest) -> bytes:
    """Return the manifest as JSON for a file."""
    return (json.dumps(manifest_dict(manifest), indent=2, sort_keys=True) + "\n").encode()


def _frameworks(distributions: tuple[Distribution, ...]) -> tuple[Framework, ...]:
    """One of each framework, in the order of the table; how they were built is not known."""
    by_name = {str(canonicalize_name(it.name)): it.version for it in distributions}
    made = []
    for framework, names in FRAMEWORKS.items():
        version = next(((name, by_name[name]) for name in names if by_name.get(name)), None)
        if version and version[1]:
            made.append(Framework(name=framework, distribution=version[0], version=version[1]))
    return tuple(made)


def _several(frameworks: tuple[Framework, ...]) -> bool:
    """Whether several frameworks could have trained the model; Keras runs on one of the others."""
    return len([it for it in frameworks if it.name != "keras"]) > 1


def _unknown(manifest: TrainingManifest, found: Found) -> Iterator[str]:
    """Name the facts that a capture would have."""
    facts = {
        "created": found.created,
        "framework": manifest.framework or not manifest.frameworks,
        "platform.system": manifest.platform.system,
        "platform.machine": manifest.platform.machine,
        "platform.libc_version": manifest.platform.libc_version,
        "accelerator": manifest.accelerator,
        "cpu": manifest.cpu.count or manifest.cpu.model,
        "variables": manifest.variables,
        "code": manifest.code,
        "model_uri": manifest.model_uri,
    }
    yield from (name for name, value in facts.items() if not value)
    yield from (f"frameworks.{it.name}.cuda" for it in manifest.frameworks)
    yield from (f"distributions.{canonicalize_name(it.name)}.version" for it in found.distributions if not it.version)
