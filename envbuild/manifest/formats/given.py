"""What its reader says that a record lacks, held against what the record says."""

import re
from dataclasses import dataclass, replace

from envbuild.capture.redact import scrub
from envbuild.errors import ManifestError, UsageError
from envbuild.manifest.fields import PythonVersion
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.manifest.model import Framework, Platform, TrainingManifest
from envbuild.manifest.reader import known_accelerator
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
_EXACT = "give all three numbers that `python --version` shows where the model was trained: --python 3.10.12"
_TODO = "leave the option out; it is for what the record does not say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options that stand for what a record lacks; UsageError where one cannot be meant."""

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
            raise UsageError("this is no exact Python version", where=f"--python {self.python}", todo=_EXACT)
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


def exact_python(said: str | None, given: Given, where: str) -> str:
    """Return the run's exact Python, as the record or the option says it; ManifestError where neither does."""
    if said is not None and _is_exact(said):
        if given.python not in {None, said}:
            raise UsageError(f"the record says Python {said}", where=f"--python {given.python}", todo=_TODO)
        return said
    if given.python is None:
        known = f"says only Python {quote(said[:20])}, no exact version" if said else "does not say which Python it had"
        raise ManifestError(f"the record {known}", where=where, todo=_EXACT)
    partly = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.\*)?", said or "")
    if partly and not f"{given.python}.".startswith(f"{partly[1]}."):
        raise UsageError(f"the record says Python {partly[0]}", where=f"--python {given.python}", todo=_TODO)
    return given.python


def known_platform(said: Platform, given: Given) -> Platform:
    """Return the platform with what the option says of it; UsageError where the record says otherwise."""
    if given.platform is None:
        return said
    system, machine = PLATFORMS[given.platform]
    if said.system not in {None, system} or (said.machine and _plain(said.machine) != _plain(machine)):
        told = " ".join(it for it in (said.system, said.machine) if it)
        raise UsageError(f"the record says {told}", where=f"--ran-on {given.platform}", todo=_TODO)
    return replace(said, system=system, machine=said.machine or machine)


def supplement(manifest: TrainingManifest, given: Given, where: str) -> TrainingManifest:
    """Return the manifest with what was given and it does not know; UsageError where it says otherwise."""
    exact_python(manifest.python.version, given, where)
    accelerator, named = known_accelerator(manifest), given.accelerator
    if accelerator and named and _names(accelerator) != _names(named):
        told = ", ".join(_names(accelerator)) or accelerator.kind
        raise UsageError(f"the record says {told}", where=f"--gpu {given.gpu}", todo=_TODO)
    if given.model and manifest.model_uri not in {None, given.model}:
        raise UsageError(f"the record says {manifest.model_uri}", where=f"--model {scrub(given.model)}", todo=_TODO)
    known = known_platform(manifest.platform, given)
    told_now = {"accelerator"} if named else set()
    told_now |= {"platform.system", "platform.machine"} if given.platform else set()
    told_now |= {"model_uri"} if given.model else set()
    told_now |= {"framework"} if given.framework else set()
    left = tuple(it for it in manifest.source.unknown if it not in told_now)
    if given.framework:
        manifest = replace(manifest, framework=_named(manifest, given.framework), framework_source="--framework")
    return replace(
        manifest,
        platform=known,
        accelerator=manifest.accelerator if accelerator else named,
        model_uri=manifest.model_uri or (scrub(given.model) if given.model else None),
        source=replace(manifest.source, unknown=left),
    )


def _named(manifest: TrainingManifest, name: str) -> Framework | None:
    """Return the installed framework of this name; UsageError where there is none."""
    installed = {it.name: it for it in (manifest.framework, *manifest.frameworks) if it}
    if name != "none" and name not in installed:
        names = [it for it in installed if it != "keras"]
        todo = f"give one of {', '.join((*names, 'none'))}"
        raise UsageError("the record does not have this framework", where=f"--framework {name}", todo=todo)
    return installed.get(name)


def _names(accelerator: Accelerator) -> tuple[str, ...]:
    """What it is, each kind once; empty where there is none."""
    names = sorted({gpu.name.lower() for gpu in accelerator.gpus})
    return tuple(names) or (() if accelerator.kind == "none" else (accelerator.kind,))


def _is_exact(python: str) -> bool:
    return read_or_none(python, PythonVersion) is not None


def _plain(machine: str) -> str:
    lower = machine.lower()
    return _SAME_MACHINE.get(lower, lower)
