"""The run's pins, and what a variant, a machine, a source of CUDA or a person changes about them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.errors import UsageError
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import name_of
from envbuild.manifest.reader import known_framework
from envbuild.match.cuda import CudaPlan, Selection, applies
from envbuild.match.run import CPU_LABEL, Run
from envbuild.match.stack import Decision, PinChange, Stack
from envbuild.match.variant import CUDA_WHEEL

REASON = "--drop"
"""Why a distribution is left out that a person names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Requirements with what was changed about the run's."""

    requirements: tuple[str, ...]
    """Sorted by normalised name."""
    changes: tuple[PinChange, ...]
    decisions: tuple[Decision, ...]


def decide_pins(it: Selection, plan: CudaPlan, *, keep_others: bool) -> Pins:
    """Keep every pin of the run except those that the choice excludes, and add what is missing.

    `keep_others` says whether the other frameworks of the run keep their builds and their CUDA.
    """
    run, wheel = it.run, it.wheel
    changes = [change for pin in run.pins if (change := _change(it, plan, *pin, keep_others=keep_others))]
    changed = {change.name for change in changes}
    kept = [f"{name}=={version}" for name, version in run.pins if name not in changed]
    have = [*kept, *(change.after for change in changes if change.after)]
    own = (wheel.pin, wheel.stands_for) if run.release.wheels else ()
    missing = _missing(have, filter(None, own))
    # What is missing takes the place of the framework's distributions that were dropped.
    for index, change in enumerate(changes):
        if missing and change.after is None and change.name in run.profile.distributions:
            changes[index] = replace(change, after=missing.pop(0))
    changes += [_added(pin, f"{wheel.pin} needs it on Linux {wheel.machine}") for pin in missing]
    # A CUDA build of PyTorch requires Triton as well.
    triton = [text for text in wheel.limits if wheel.cuda_requirements and name_of(text) == "triton"]
    wanted = _missing(have, [*plan.requirements, *(text for text in triton if applies(text, run.python, run.machine))])
    rows = (row for row in it.profiles.repairs if wheel.version in row.versions and run.python_minor in row.pythons)
    repair = next(rows, None) if wheel.distribution.startswith("tensorflow") else None
    broken = [text for text in wanted if repair and name_of(text) in repair.drop]
    for text in (text for text in wanted if text not in broken):
        bare = text.partition(";")[0].strip() if Requirement(text).marker else text
        changes.append(_added(bare, f"CUDA for {wheel.pin}, which the run did not have as a wheel"))
    if not run.complete:
        limits = (row for row in it.profiles.limits if row.undeclared and any(row.covers(*pin) for pin in run.pins))
        reasons = {row.requirement: row.reason for row in limits}
        have = [*have, *(change.after for change in changes if change.after)]
        changes += [_added(text, reasons[text]) for text in _missing(have, reasons)]
    decisions: tuple[Decision, ...] = ()
    if repair and broken:
        value = f"without {', '.join(broken)}"
        decisions = (Decision(what="cuda requirements", value=value, reason=repair.reason, source=repair.source),)
    requirements = [*kept, *(change.after for change in changes if change.after)]
    return Pins(
        requirements=tuple(sorted(requirements, key=lambda text: (name_of(text), text))),
        changes=tuple(changes),
        decisions=decisions,
    )


def _change(it: Selection, plan: CudaPlan, name: str, version: str, *, keep_others: bool) -> PinChange | None:
    """Why a pin of the run cannot stay, and what takes its place; None where it stays."""
    forced = next((text for text in plan.forced if name_of(text) == name), None)
    after, reason = forced, "overridden by hand" if forced else _why_dropped(it, plan, name, version, keep_others)
    if reason is None:
        after, reason = _other_build(it, name, version, keep_others)
    pin = f"{name}=={version}"
    return PinChange(name=name, before=pin, after=after, reason=reason) if reason and after != pin else None


def _why_dropped(it: Selection, plan: CudaPlan, name: str, version: str, keep_others: bool) -> str | None:
    run, wheel, profiles = it.run, it.wheel, it.profiles
    if foreign := next((row.reason for row in profiles.foreign if row.name == name), None):
        return foreign
    if name in run.profile.distributions:
        return _why_other_framework(run, it, name, version)
    if not keep_others and plan.source == "base" and CUDA_WHEEL.match(name):
        return "CUDA comes from the base, and an image has one source of it"
    without_cuda = wheel.cuda is None and not keep_others
    if without_cuda and any(fnmatchcase(name, pattern) for pattern in profiles.nvidia_wheels):
        return "the cpu variant has no wheel of NVIDIA's"
    if without_cuda and any(fnmatchcase(name, pattern) for pattern in profiles.cuda_only):
        return "it serves a GPU only, which the cpu variant does without"
    return None


def _why_other_framework(run: Run, it: Selection, name: str, version: str) -> str | None:
    """Why a distribution with the framework's code does not stay beside, or as, the one that was chosen."""
    wheel, variant = it.wheel, "gpu" if it.wheel.cuda else "cpu"
    if name == wheel.distribution:
        if canonicalize_version(version) == canonicalize_version(wheel.version):
            return None
        if _public(version) != _public(wheel.version):
            return f"the run's framework says that it is {wheel.version}"
        return f"the {variant} variant is the build {wheel.version}"
    # Whether it has a CUDA build for the run's machine: in its release, else in the newest with one.
    releases = (run.release, *reversed(run.profile.releases))
    rows = (row for release in releases for row in release.wheels)
    cuda = next((row.cuda for row in rows if (row.distribution, row.machine) == (name, run.machine)), None)
    if (cuda is None) != (wheel.cuda is None):
        return f"the {variant} variant has the same code from {wheel.distribution}"
    here = any((row.distribution, row.machine) == (name, run.machine) for row in run.release.wheels)
    return None if here else f"it has no wheel for Linux {run.machine}, where {wheel.distribution} has the same code"


def _other_build(it: Selection, name: str, version: str, keep_others: bool) -> tuple[str | None, str | None]:
    """The build of the same version that fits the variant, of projects whose builds differ by a label."""
    public, _, label = version.partition("+")
    run, wheel = it.run, it.wheel
    if keep_others and run.profile.name != ("jax" if name == "jaxlib" else "torch"):
        return None, None
    if name == "jaxlib" and wheel.cuda is None and label:
        return f"jaxlib=={public}", "the build without a label is for the CPU"
    if name not in it.profiles.labelled:
        return None, None
    if wheel.cuda is None and (run.moved or not label.startswith(CPU_LABEL)):
        # Whether PyTorch without a label is a CUDA build on this machine, in the run's version of it.
        torch_version = _public((run.version_of("torch") or "").partition("+")[0])
        torch = next((row for row in it.profiles.frameworks if row.name == "torch"), None)
        rows = [
            row
            for release in (torch.releases if torch else ())
            for row in release.wheels
            if release.version == torch_version and row.machine == run.machine
        ]
        is_cuda = any(row.cuda for row in rows) if rows else run.machine == "x86_64"
        cpu = f"{name}=={public}" + (f"+{CPU_LABEL}" if is_cuda else "")
        return cpu, "the cpu variant has its build for the CPU, which on x86_64 is on PyTorch's own index only"
    if wheel.cuda and wheel.distribution == "torch" and label.startswith(CPU_LABEL):
        _, plus, own = wheel.version.partition("+")
        return f"{name}=={public}{plus}{own}", "the gpu variant has its build for CUDA, the same one as of torch"
    return None, None


def _public(text: str) -> Version | None:
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def _missing(kept: Iterable[str], wanted: Iterable[str]) -> list[str]:
    names = {name_of(it) for it in kept}
    return [it for it in wanted if name_of(it) not in names]


def _added(requirement: str, reason: str) -> PinChange:
    return PinChange(name=name_of(requirement), before=None, after=requirement, reason=reason)


def without_dropped(manifest: TrainingManifest, names: Collection[str]) -> TrainingManifest:
    """Return the manifest without them; UsageError for unknown distributions, and for the run's framework."""
    dropped = {canonicalize_name(it) for it in names}
    if unknown := sorted(dropped - {canonicalize_name(it.name) for it in manifest.distributions}):
        todo = "give the name of a distribution of the run; what another one requires goes only with that one"
        raise UsageError(f"the run does not have {', '.join(unknown)}", where=f"--drop {unknown[0]}", todo=todo)
    used = known_framework(manifest)
    if used and canonicalize_name(used.distribution) in dropped:
        todo = "keep it, or give --framework none if the run used no framework"
        raise UsageError(f"{used.distribution} is the run's framework", where=f"--drop {used.distribution}", todo=todo)
    framework = manifest.framework
    lost = framework is not None and canonicalize_name(framework.distribution) in dropped
    return replace(
        manifest,
        distributions=tuple(it for it in manifest.distributions if canonicalize_name(it.name) not in dropped),
        framework=None if lost else framework,
        frameworks=tuple(it for it in manifest.frameworks if canonicalize_name(it.distribution) not in dropped),
    )


def dropped_from(stack: Stack, manifest: TrainingManifest, names: Collection[str]) -> Stack:
    """Return the stack without them, and with each as a change of the run's pins."""
    dropped = {canonicalize_name(it) for it in names}
    versions = {canonicalize_name(it.name): it.version for it in manifest.distributions}
    changes = [
        PinChange(name=it, before=f"{it}=={version}" if (version := versions[it]) else it, after=None, reason=REASON)
        for it in sorted(dropped)
    ]
    gaps = stack.gaps
    return replace(
        stack,
        requirements=tuple(it for it in stack.requirements if name_of(it) not in dropped),
        gaps=replace(gaps, without=tuple(sorted({*gaps.without, *dropped}))) if gaps else None,
        changes=(*(it for it in stack.changes if it.name not in dropped), *changes),
        dropped=tuple(sorted(dropped)),
    )
