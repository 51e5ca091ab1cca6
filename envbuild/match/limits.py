"""Rules that the run's own pins break: the run is reproduced, not changed, and each one is told."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.match.cuda import applies, cudnn_floor
from envbuild.match.facts import Limit
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import Run
from envbuild.match.stack import Decision
from envbuild.match.swap import is_version, name_of, serves
from envbuild.match.variant import JAX_PLUGIN

_REPRODUCED = "the run had this version all the same, and the image keeps it"
_REFUSED = "the record pins this version, which locking refuses"
_SHARED = {"cudnn": "nvidia/cudnn/lib/libcudnn.so.N", "nccl": "nvidia/nccl/lib/libnccl.so.2"}
"""Files that the wheels of all CUDAs install to the same path."""
_MAJOR = re.compile(r"nvidia-(cublas|cudnn|cuda-runtime)(?:-cu(\d+))?\Z")


def broken_limits(run: Run, wheel: FrameworkWheel, profiles: Profiles) -> Iterator[Decision]:
    """Each pin of the run that its framework, or another of its distributions, does not allow."""
    others = {name: version for name, version in run.pins if name not in run.profile.distributions}
    told = set()
    for broken in broken_hand_limits(others | {wheel.distribution: wheel.version}, profiles.limits):
        limit, refused = broken.limit, broken.limit.breaks and not run.complete
        said = f"{broken.pin} needs {limit.requirement}: {limit.reason}; {_REFUSED if refused else _REPRODUCED}"
        if limit.breaks:
            told.add(broken.other)
        yield _broken(broken.other, said, limit.source, warning=limit.breaks is not None)
    code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), wheel)
    for text in code.limits:
        requirement = Requirement(text)
        version = dict(run.pins).get(canonicalize_name(requirement.name))
        pin = f"{name_of(text)}=={version}"
        if version and pin not in told and applies(text, run.python, run.machine) and not _allows(requirement, version):
            said = f"{wheel.pin} needs {requirement.name}{requirement.specifier}: its wheel requires it"
            yield _broken(pin, f"{said}; {_REPRODUCED}", code.source)


def _broken(pin: str, reason: str, source: str, *, warning: bool = True) -> Decision:
    return Decision(what="limit", value=pin, reason=reason, source=source, warning=warning)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLimit:
    """Two versions that do not go together."""

    pin: str
    """What needs another version: `tensorflow==2.12.0`."""
    other: str
    """What it does not work with: `numpy==2.0.2`."""
    limit: Limit


def broken_hand_limits(pins: Mapping[str, str], limits: Iterable[Limit]) -> Iterator[BrokenLimit]:
    """Each limit kept by hand that versions, by normalised name, break."""
    for limit in limits:
        other = name_of(limit.requirement)
        for name in limit.distributions:
            covered = other in pins and limit.covers(name, pins.get(name, ""))
            if covered and not limit.allows(pins[other]):
                yield BrokenLimit(pin=f"{name}=={pins[name]}", other=f"{other}=={pins[other]}", limit=limit)


def lost_label(run: Run, wheel: FrameworkWheel) -> Iterator[Decision]:
    """A build for another CUDA than the index has: its label was lost, or it was no wheel."""
    if run.built and wheel.cuda and not (is_version(run.built, wheel.cuda) or is_version(wheel.cuda, run.built)):
        reason = (
            f"the run's {run.own} was built with CUDA {run.built}, and the wheel of that version with {wheel.cuda}: "
            "a tool that drops labels such as +cu118 recorded it, or another build was installed"
        )
        yield Decision(what="build", value=wheel.pin, reason=reason, source="manifest: framework.cuda", warning=True)


def hand_limits(wheel: FrameworkWheel, profiles: Profiles) -> list[Limit]:
    """What the wheels of the release should have required."""
    return [it for it in profiles.limits if it.covers(wheel.distribution, wheel.version)]


def bad_wheels(requirements: Iterable[str], wheel: FrameworkWheel, profiles: Profiles) -> Iterator[Decision]:
    """A cuDNN that the framework would refuse, and wheels of two CUDA in one environment."""
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    majors = {major: name for name in pins if (major := _major(name))}
    floor, own = cudnn_floor(wheel, profiles), f"{wheel.cuda}".split(".")[0]
    cudnn = pins.get(f"nvidia-cudnn-cu{own}", "").removesuffix(".*")
    if wheel.cuda and floor and _is_version(cudnn) and not serves(cudnn, floor.version):
        reason = f"{wheel.pin} takes {floor.version} or a later one of the same major version; the run had another one"
        pin = f"nvidia-cudnn-cu{own}=={cudnn}"
        yield Decision(what="limit", value=pin, reason=f"{reason} and is reproduced", source=floor.source, warning=True)
    yield from _shared_library(pins)
    if len(majors) > 1:
        reason = "wheels of two major versions of CUDA are in one environment"
        drivers = [it.minimum for it in profiles.drivers if it.cuda == max(majors, key=int)]
        reason += "".join(f"; the higher one takes driver {it} or later" for it in drivers)
        value = ", ".join(majors[it] for it in sorted(majors))
        source = "manifest: distributions"
        yield Decision(what="cuda twice", value=value, reason=reason, source=source, warning=True)


def _shared_library(pins: Iterable[str]) -> Iterator[Decision]:
    """Warn of cuDNN or NCCL for two CUDAs, whose wheels install the same file."""
    for library, file in _SHARED.items():
        names = sorted(it for it in pins if re.fullmatch(rf"nvidia-{library}-cu\d+", it))
        if len(names) > 1:
            reason = (
                f"they all install {file}; the image has the one that the run had, where its record says so "
                f"(distributions: overwritten), else the one that pip installs last"
            )
            source = f"files of {' and '.join(names)} on the package index"
            yield Decision(what=f"{library} twice", value=", ".join(names), reason=reason, source=source, warning=True)


def _major(name: str) -> str | None:
    """The major version of CUDA that a distribution is for."""
    if plugin := JAX_PLUGIN.match(name):
        return plugin[1]
    found = _MAJOR.match(name)
    return (found[2] or "13") if found else None


def _allows(requirement: Requirement, version: str) -> bool:
    return not _is_version(version) or requirement.specifier.contains(version, prereleases=True)


def _is_version(text: str) -> bool:
    try:
        return bool(Version(text).release)
    except InvalidVersion:
        return False
