"""What options and the record itself add to the manifest that a reader made."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from envbuild.capture.redact import scrub
from envbuild.errors import ManifestError, UsageError
from envbuild.manifest.fields import PythonVersion
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.manifest.importers.record import Record, clean
from envbuild.manifest.model import Format, Framework, Platform, TrainingManifest
from envbuild.manifest.packages import Distribution
from envbuild.manifest.reader import known_accelerator, manifest_dict, read_manifest
from envbuild.validation import quote, read_or_none

PLATFORMS = {
    "linux/amd64": ("Linux", "x86_64"),
    "linux/arm64": ("Linux", "aarch64"),
    "darwin/amd64": ("Darwin", "x86_64"),
    "darwin/arm64": ("Darwin", "arm64"),
    "windows/amd64": ("Windows", "AMD64"),
}
"""What --ran-on takes: as containers name it, and as `platform.system()` and `platform.machine()` do."""
_SAME_MACHINE = {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}
_EXACT = (
    "give all three numbers that `python --version` shows where the model was trained: --python 3.10.12;"
    " where the command has no such option, give what `envbuild convert FILE --python 3.10.12` writes"
)
_TODO = "leave the option out; it is for what the record does not say"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options that stand for what a record lacks; UsageError where a value is not valid."""

    python: str | None = None
    """Exact: `3.10.12`."""
    gpu: str | None = None
    """`none`, or the GPU's name."""
    platform: str | None = None
    """`linux/amd64`."""
    model: str | None = None
    """Where the trained model lies."""
    framework: str | None = None
    """The framework that the run used: `torch`; `none` where it used none."""

    def __post_init__(self) -> None:
        if self.python is not None and not _is_exact(self.python):
            raise UsageError("this is not an exact Python version", where=f"--python {self.python}", todo=_EXACT)
        if self.gpu is not None and (not self.gpu.strip() or not self.gpu.isprintable()):
            raise UsageError("this names no GPU", where="--gpu", todo='give none, or a name such as "Tesla T4"')
        if self.model is not None and not self.model.strip():
            raise UsageError("this names no model", where="--model", todo="give gs://... or a path, or leave it out")
        if self.platform is not None and self.platform not in PLATFORMS:
            todo = f"give one of {', '.join(PLATFORMS)}"
            raise UsageError("this platform is not known", where=f"--ran-on {self.platform}", todo=todo)

    @property
    def accelerator(self) -> Accelerator | None:
        """The accelerator that was named; None where none was."""
        if self.gpu is None:
            return None
        if self.gpu.strip().lower() == "none":
            return Accelerator(kind="none", source="--gpu")
        return Accelerator(gpus=(Gpu(name=self.gpu.strip()),), source="--gpu")


def exact_python(said: str | None, options: RecordOptions, where: str) -> str:
    """Return the run's exact Python, from the record or the option; ManifestError where neither has it."""
    if said is not None and _is_exact(said):
        if options.python not in {None, said}:
            raise UsageError(f"the record says Python {said}", where=f"--python {options.python}", todo=_TODO)
        return said
    if options.python is None:
        known = (
            f"says only Python {quote(said[:20])}, not an exact version" if said else "does not say which Python it had"
        )
        raise ManifestError(f"the record {known}", where=where, todo=_EXACT)
    partly = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.\*)?", said or "")
    if partly and not f"{options.python}.".startswith(f"{partly[1]}."):
        raise UsageError(f"the record says Python {partly[0]}", where=f"--python {options.python}", todo=_TODO)
    return options.python


def known_platform(said: Platform, options: RecordOptions) -> Platform:
    """Return the platform, completed by the option; UsageError where the record differs."""
    if options.platform is None:
        return said
    system, machine = PLATFORMS[options.platform]
    if said.system not in {None, system} or (said.machine and _plain(said.machine) != _plain(machine)):
        recorded = " ".join(it for it in (said.system, said.machine) if it)
        raise UsageError(f"the record says {recorded}", where=f"--ran-on {options.platform}", todo=_TODO)
    return replace(said, system=system, machine=said.machine or machine)


def supplement(manifest: TrainingManifest, options: RecordOptions, where: str) -> TrainingManifest:
    """Return the manifest, completed by the options; UsageError where it differs from them."""
    exact_python(manifest.python.version, options, where)
    accelerator, named = known_accelerator(manifest), options.accelerator
    if accelerator and named and _names(accelerator) != _names(named):
        recorded = ", ".join(_names(accelerator)) or accelerator.kind
        raise UsageError(f"the record says {recorded}", where=f"--gpu {options.gpu}", todo=_TODO)
    if options.model and manifest.model_uri not in {None, options.model}:
        raise UsageError(f"the record says {manifest.model_uri}", where=f"--model {scrub(options.model)}", todo=_TODO)
    platform = known_platform(manifest.platform, options)
    given = {"accelerator": named, "model_uri": options.model, "framework": options.framework}
    given |= dict.fromkeys(("platform.system", "platform.machine"), options.platform)
    unknown = tuple(it for it in manifest.source.unknown if not given.get(it))
    if options.framework:
        installed = {it.name: it for it in (manifest.framework, *manifest.frameworks) if it}
        if options.framework not in {*installed, "none"}:
            todo = f"give one of {', '.join((*(it for it in installed if it != 'keras'), 'none'))}"
            where = f"--framework {options.framework}"
            raise UsageError("the record does not have this framework", where=where, todo=todo)
        manifest = replace(manifest, framework=installed.get(options.framework), framework_source="--framework")
    return replace(
        manifest,
        platform=platform,
        accelerator=manifest.accelerator if accelerator else named,
        model_uri=manifest.model_uri or (scrub(options.model) if options.model else None),
        source=replace(manifest.source, unknown=unknown),
    )


def _names(accelerator: Accelerator) -> tuple[str, ...]:
    """What it is, each kind once; empty where there is none."""
    names = sorted({gpu.name.lower() for gpu in accelerator.gpus})
    return tuple(names) or (() if accelerator.kind == "none" else (accelerator.kind,))


def _is_exact(python: str) -> bool:
    return read_or_none(python, PythonVersion) is not None


def _plain(machine: str) -> str:
    return _SAME_MACHINE.get(machine.lower(), machine.lower())


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


def manifest_of(found: TrainingManifest, record: Record, *, kind: Format, now: datetime) -> TrainingManifest:
    """Complete what a reader found by the facts of the record; ManifestError for what a manifest may not have."""
    digest, file = hashlib.sha256(record.data).hexdigest(), clean(record.file) or None
    unknown = tuple(_unknown(found))
    source = replace(found.source, format=kind, file=file, sha256=digest, unknown=unknown)
    manifest = replace(found, created=found.created or time_of(now), source=source)
    return read_manifest(manifest_bytes(manifest), record.name)


def time_of(moment: datetime) -> str:
    """Write a time as a manifest has it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def frameworks_of(distributions: Iterable[Distribution]) -> tuple[Framework, ...]:
    """List one of each framework, in the order of the table; how they were built is not known."""
    versions = {str(canonicalize_name(it.name)): it.version for it in distributions if it.version}
    installed = ((framework, next(filter(versions.get, names), None)) for framework, names in FRAMEWORKS.items())
    return tuple(
        Framework(name=framework, distribution=name, version=versions[name]) for framework, name in installed if name
    )


def manifest_bytes(manifest: TrainingManifest) -> bytes:
    """Return the manifest as JSON for a file."""
    return (json.dumps(manifest_dict(manifest), indent=2, sort_keys=True) + "\n").encode()


def _unknown(found: TrainingManifest) -> Iterator[str]:
    """Name the facts that a capture would have."""
    facts = {
        "created": found.created,
        "framework": found.framework or not found.frameworks,
        "platform.system": found.platform.system,
        "platform.machine": found.platform.machine,
        "platform.libc_version": found.platform.libc_version,
        "accelerator": found.accelerator,
        "cpu": found.cpu.count or found.cpu.model,
        "variables": found.variables,
        "code": found.code,
        "model_uri": found.model_uri,
    }
    yield from (name for name, value in facts.items() if not value)
    yield from (f"frameworks.{it.name}.cuda" for it in found.frameworks)
    yield from (f"distributions.{canonicalize_name(it.name)}.version" for it in found.distributions if not it.version)
