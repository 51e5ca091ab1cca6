"""The run's pins, and what a variant changes about them: as little as it can."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.utils import canonicalize_name, canonicalize_version

from envbuild.match.profiles import FrameworkWheel, Profiles, Repair
from envbuild.match.run import Run
from envbuild.match.stack import Decision, PinChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Requirements with what was changed about the run's."""

    requirements: tuple[str, ...]
    """Sorted by normalised name."""
    changes: tuple[PinChange, ...]
    decisions: tuple[Decision, ...]


def decide_pins(run: Run, wheel: FrameworkWheel, profiles: Profiles) -> Pins:
    """Keep every pin of the run but for those that the wheel's variant or Linux excludes, and add what is missing."""
    fates = [(name, f"{name}=={version}", _why_not(run, wheel, profiles, name, version)) for name, version in run.pins]
    kept = [pin for _, pin, reason in fates if reason is None]
    missing = _missing(kept, filter(None, (wheel.pin, wheel.stands_for)))
    changes = []
    for name, pin, reason in fates:
        if reason is not None:
            after = missing.pop(0) if missing and name in run.profile.distributions else None
            changes.append(PinChange(name=name, before=pin, after=after, reason=reason))
    changes += [_added(pin, f"{wheel.pin} needs it on Linux {wheel.machine}") for pin in missing]
    repair = _repair(run, wheel, profiles)
    cuda, broken = _cuda(kept, wheel, repair)
    changes += [_added(it, f"CUDA for {wheel.pin}, which the run did not have as a wheel") for it in cuda]
    requirements = [*kept, *(it.after for it in changes if it.after)]
    return Pins(
        requirements=tuple(sorted(requirements, key=lambda it: (_name(it), it))),
        changes=tuple(changes),
        decisions=(_left_out(broken, repair),) if repair and broken else (),
    )


def _why_not(run: Run, wheel: FrameworkWheel, profiles: Profiles, name: str, version: str) -> str | None:
    """Why a pin of the run cannot stay; None where it can."""
    foreign = next((it.reason for it in profiles.foreign if it.name == name), None)
    if foreign:
        return foreign
    if name == wheel.distribution:
        same = canonicalize_version(version) == canonicalize_version(wheel.version)
        return None if same else f"the run's framework says that it is {wheel.version}"
    if name in run.profile.distributions and _is_cuda(run, name) != (wheel.cuda is not None):
        return f"the {'gpu' if wheel.cuda else 'cpu'} variant has the same code from {wheel.distribution}"
    if wheel.cuda is None and any(fnmatchcase(name, pattern) for pattern in profiles.nvidia_wheels):
        return "the cpu variant has no wheel of NVIDIA's"
    return None


def _is_cuda(run: Run, distribution: str) -> bool:
    """Whether a distribution has a CUDA build for the run's machine: in its release, else in the newest with one."""
    releases = (run.release, *reversed(run.profile.releases))
    wheels = (it for release in releases for it in release.wheels)
    found = (it.cuda for it in wheels if (it.distribution, it.machine) == (distribution, run.machine))
    return next(found, None) is not None


def _missing(kept: Iterable[str], wanted: Iterable[str]) -> list[str]:
    names = {_name(it) for it in kept}
    return [it for it in wanted if _name(it) not in names]


def _cuda(kept: list[str], wheel: FrameworkWheel, repair: Repair | None) -> tuple[list[str], list[str]]:
    """The requirements for CUDA that the run does not have, and those of them that cannot be installed."""
    missing = _missing(kept, wheel.cuda_requirements)
    broken = [it for it in missing if repair and _name(it) in repair.drop]
    return [it for it in missing if it not in broken], broken


def _repair(run: Run, wheel: FrameworkWheel, profiles: Profiles) -> Repair | None:
    rows = (it for it in profiles.repairs if wheel.version in it.versions and run.python_minor in it.pythons)
    return next(rows, None)


def _left_out(broken: list[str], repair: Repair) -> Decision:
    value = f"without {', '.join(broken)}"
    return Decision(what="cuda requirements", value=value, reason=repair.reason, source=repair.source)


def _added(requirement: str, reason: str) -> PinChange:
    return PinChange(name=_name(requirement), before=None, after=requirement, reason=reason)


def _name(requirement: str) -> str:
    """The normalised name; a version of the run need not be one that PEP 440 allows, so nothing more is parsed."""
    return canonicalize_name(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
