"""The run's pins, and what a variant, a machine or a source of CUDA changes about them: as little as it can."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from packaging.requirements import Requirement
from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.match.cuda import CudaPlan, applies
from envbuild.match.facts import Repair
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import CPU_LABEL, Run
from envbuild.match.stack import Decision, PinChange
from envbuild.match.swap import name_of
from envbuild.match.variant import CUDA_WHEEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Requirements with what was changed about the run's."""

    requirements: tuple[str, ...]
    """Sorted by normalised name."""
    changes: tuple[PinChange, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the pins have to fit."""

    run: Run
    wheel: FrameworkWheel
    plan: CudaPlan
    profiles: Profiles
    spare: bool = False
    """Whether the other frameworks of the run keep their builds and their CUDA."""


def decide_pins(chosen: Chosen) -> Pins:
    """Keep every pin of the run but for those that the choice excludes, and add what is missing."""
    run, wheel = chosen.run, chosen.wheel
    changes = [change for name, version in run.pins if (change := _change(chosen, name, version))]
    changed = {it.name for it in changes}
    kept = [f"{name}=={version}" for name, version in run.pins if name not in changed]
    have = [*kept, *(it.after for it in changes if it.after)]
    own = (wheel.pin, wheel.stands_for) if run.release.wheels else ()
    missing = _missing(have, filter(None, own))
    changes, missing = _replacing(run, changes, missing)
    changes += [_added(pin, f"{wheel.pin} needs it on Linux {wheel.machine}") for pin in missing]
    repair = _repair(chosen)
    wanted = _missing(have, [*chosen.plan.requirements, *_compilers(chosen)])
    broken = [it for it in wanted if repair and name_of(it) in repair.drop]
    added = [_bare(it) for it in wanted if it not in broken]
    changes += [_added(it, f"CUDA for {wheel.pin}, which the run did not have as a wheel") for it in added]
    if not run.complete:
        limits = (it for it in chosen.profiles.limits if it.undeclared and any(it.covers(*pin) for pin in run.pins))
        reasons = {it.requirement: it.reason for it in limits}
        have = [*have, *(it.after for it in changes if it.after)]
        changes += [_added(it, reasons[it]) for it in _missing(have, reasons)]
    requirements = [*kept, *(it.after for it in changes if it.after)]
    return Pins(
        requirements=tuple(sorted(requirements, key=lambda it: (name_of(it), it))),
        changes=tuple(changes),
        decisions=(_left_out(broken, repair),) if repair and broken else (),
    )


def _change(chosen: Chosen, name: str, version: str) -> PinChange | None:
    """Why a pin of the run cannot stay, and what takes its place; None where it stays."""
    forced = next((it for it in chosen.plan.forced if name_of(it) == name), None)
    after, reason = forced, "overridden by hand" if forced else _why_not(chosen, name, version)
    if reason is None:
        after, reason = _other_build(chosen, name, version)
    pin = f"{name}=={version}"
    return PinChange(name=name, before=pin, after=after, reason=reason) if reason and after != pin else None


def _why_not(chosen: Chosen, name: str, version: str) -> str | None:
    """Why a pin is dropped; None where it is not."""
    run, wheel, profiles = chosen.run, chosen.wheel, chosen.profiles
    foreign = next((it.reason for it in profiles.foreign if it.name == name), None)
    if foreign:
        return foreign
    if name in run.profile.distributions:
        return _other_framework(run, wheel, name, version)
    if not chosen.spare and chosen.plan.source == "base" and CUDA_WHEEL.match(name):
        return "CUDA comes from the base, and an image has one source of it"
    without_cuda = wheel.cuda is None and not chosen.spare
    if without_cuda and any(fnmatchcase(name, pattern) for pattern in profiles.nvidia_wheels):
        return "the cpu variant has no wheel of NVIDIA's"
    if without_cuda and any(fnmatchcase(name, pattern) for pattern in profiles.cuda_only):
        return "it serves a GPU only, which the cpu variant does without"
    return None


def _other_framework(run: Run, wheel: FrameworkWheel, name: str, version: str) -> str | None:
    """Why a distribution with the framework's code does not stay beside, or as, the one that was chosen."""
    if name == wheel.distribution:
        if canonicalize_version(version) == canonicalize_version(wheel.version):
            return None
        if _public(version) != _public(wheel.version):
            return f"the run's framework says that it is {wheel.version}"
        return f"the {'gpu' if wheel.cuda else 'cpu'} variant is the build {wheel.version}"
    if _is_cuda(run, name) != (wheel.cuda is not None):
        return f"the {'gpu' if wheel.cuda else 'cpu'} variant has the same code from {wheel.distribution}"
    here = any((it.distribution, it.machine) == (name, run.machine) for it in run.release.wheels)
    return None if here else f"it has no wheel for Linux {run.machine}, where {wheel.distribution} has the same code"


def _other_build(chosen: Chosen, name: str, version: str) -> tuple[str | None, str | None]:
    """The build of the same version that fits the variant, of projects that tell their builds by a label."""
    public, _, label = version.partition("+")
    if chosen.spare and chosen.run.profile.name != ("jax" if name == "jaxlib" else "torch"):
        return None, None
    if name == "jaxlib" and chosen.wheel.cuda is None and label:
        return f"jaxlib=={public}", "the build without a label is for the CPU"
    if name not in chosen.profiles.labelled:
        return None, None
    if chosen.wheel.cuda is None and (chosen.run.moved or not label.startswith(CPU_LABEL)):
        cpu = f"{name}=={public}" + (f"+{CPU_LABEL}" if _plain_is_cuda(chosen) else "")
        return cpu, "the cpu variant has its build for the CPU, which on x86_64 is on PyTorch's own index only"
    if chosen.wheel.cuda and chosen.wheel.distribution == "torch" and label.startswith(CPU_LABEL):
        _, plus, own = chosen.wheel.version.partition("+")
        return f"{name}=={public}{plus}{own}", "the gpu variant has its build for CUDA, the same one as of torch"
    return None, None


def _plain_is_cuda(chosen: Chosen) -> bool:
    """Whether PyTorch without a label is a CUDA build on this machine, in the run's version of it."""
    version = (chosen.run.version_of("torch") or "").partition("+")[0]
    torch = next((it for it in chosen.profiles.frameworks if it.name == "torch"), None)
    wheels = [
        wheel for it in (torch.releases if torch else ()) for wheel in it.wheels if it.version == _public(version)
    ]
    known = [it.cuda is not None for it in wheels if it.machine == chosen.run.machine]
    return any(known) if known else chosen.run.machine == "x86_64"


def _public(text: str) -> Version | None:
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def _is_cuda(run: Run, distribution: str) -> bool:
    """Whether a distribution has a CUDA build for the run's machine: in its release, else in the newest with one."""
    releases = (run.release, *reversed(run.profile.releases))
    wheels = (it for release in releases for it in release.wheels)
    found = (it.cuda for it in wheels if (it.distribution, it.machine) == (distribution, run.machine))
    return next(found, None) is not None


def _replacing(run: Run, changes: list[PinChange], missing: list[str]) -> tuple[list[PinChange], list[str]]:
    """Let what is missing take the place of the framework's distributions that were dropped."""
    told, rest = [], list(missing)
    for change in changes:
        takes = bool(rest) and change.after is None and change.name in run.profile.distributions
        told.append(replace(change, after=rest.pop(0)) if takes else change)
    return told, rest


def _missing(kept: Iterable[str], wanted: Iterable[str]) -> list[str]:
    names = {name_of(it) for it in kept}
    return [it for it in wanted if name_of(it) not in names]


def _compilers(chosen: Chosen) -> list[str]:
    """Triton, which a CUDA build of PyTorch requires as well."""
    run, wheel = chosen.run, chosen.wheel
    needs = [it for it in wheel.limits if wheel.cuda_requirements and name_of(it) == "triton"]
    return [it for it in needs if applies(it, run.python, run.machine)]


def _bare(requirement: str) -> str:
    """The requirement without the marker, which is true."""
    return requirement.partition(";")[0].strip() if Requirement(requirement).marker else requirement


def _repair(chosen: Chosen) -> Repair | None:
    rows = (it for it in chosen.profiles.repairs if chosen.wheel.version in it.versions)
    own = chosen.wheel.distribution.startswith("tensorflow")
    return next((it for it in rows if own and chosen.run.python_minor in it.pythons), None)


def _left_out(broken: list[str], repair: Repair) -> Decision:
    value = f"without {', '.join(broken)}"
    return Decision(what="cuda requirements", value=value, reason=repair.reason, source=repair.source)


def _added(requirement: str, reason: str) -> PinChange:
    return PinChange(name=name_of(requirement), before=None, after=requirement, reason=reason)
