"""Rules that the run's own pins break, and what its other projects lack: warnings, as the run is reproduced."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement

from envbuild.manifest.packages import is_pep440, name_of
from envbuild.match.cuda import applies, cudnn_floor, is_version, serves
from envbuild.match.profiles import FrameworkWheel, Limit, Profiles
from envbuild.match.run import Run
from envbuild.match.stack import Decision
from envbuild.match.variant import CUDA_WHEEL, JAX_PLUGIN

_REPRODUCED = "the run had this version all the same, and the image keeps it"
_REFUSED = "the record pins this version, which locking refuses"
_SHARED = {"cudnn": "nvidia/cudnn/lib/libcudnn.so.N", "nccl": "nvidia/nccl/lib/libnccl.so.2"}
"""Files that the wheels of all CUDAs install to the same path."""
_MAJOR = re.compile(r"nvidia-(cublas|cudnn|cuda-runtime)(?:-cu(\d+))?\Z")


def broken_limits(run: Run, wheel: FrameworkWheel, profiles: Profiles) -> Iterator[Decision]:
    """Yield each pin of the run that its framework, or another of its distributions, does not allow."""
    pins = {name: version for name, version in run.pins if name not in run.profile.distributions}
    reported = set()
    for broken in broken_hand_limits(pins | {wheel.distribution: wheel.version}, profiles.limits):
        limit, refused = broken.limit, broken.limit.breaks and not run.complete
        reason = f"{broken.pin} needs {limit.requirement}: {limit.reason}; {_REFUSED if refused else _REPRODUCED}"
        if limit.breaks:
            reported.add(broken.other)
        yield _warning("limit", broken.other, reason, limit.source, warning=limit.breaks is not None)
    code = next((it for it in run.release.wheels if it.pin == wheel.stands_for), wheel)
    for text in code.limits:
        requirement, version = Requirement(text), run.version_of(name_of(text))
        pin = f"{name_of(text)}=={version}"
        if not version or pin in reported or not applies(text, run.python, run.machine):
            continue
        if is_pep440(version) and not requirement.specifier.contains(version, prereleases=True):
            needs = f"{wheel.pin} needs {requirement.name}{requirement.specifier}: its wheel requires it"
            yield _warning("limit", pin, f"{needs}; {_REPRODUCED}", code.source)


def _warning(what: str, value: str, reason: str, source: str, *, warning: bool = True) -> Decision:
    return Decision(what=what, value=value, reason=reason, source=source, warning=warning)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLimit:
    """Two versions that do not go together."""

    pin: str
    """What needs another version: `tensorflow==2.12.0`."""
    other: str
    """What it does not work with: `numpy==2.0.2`."""
    limit: Limit


def broken_hand_limits(pins: Mapping[str, str], limits: Iterable[Limit]) -> Iterator[BrokenLimit]:
    """Yield each limit kept by hand that versions, by normalised name, break."""
    for limit in limits:
        other = name_of(limit.requirement)
        for name in limit.distributions:
            covered = other in pins and limit.covers(name, pins.get(name, ""))
            if covered and not limit.allows(pins[other]):
                yield BrokenLimit(pin=f"{name}=={pins[name]}", other=f"{other}=={pins[other]}", limit=limit)


def lost_label(run: Run, wheel: FrameworkWheel) -> Iterator[Decision]:
    """Warn of a build for another CUDA than the index has: its label was lost, or it was not a wheel."""
    if run.built and wheel.cuda and not (is_version(run.built, wheel.cuda) or is_version(wheel.cuda, run.built)):
        reason = (
            f"the run's {run.own} was built with CUDA {run.built}, and the wheel of that version with {wheel.cuda}: "
            "a tool that drops labels such as +cu118 recorded it, or another build was installed"
        )
        yield _warning("build", wheel.pin, reason, "manifest: framework.cuda")


def bad_wheels(requirements: Iterable[str], wheel: FrameworkWheel, profiles: Profiles) -> Iterator[Decision]:
    """Warn of a cuDNN that the framework would refuse, and of wheels of two CUDA in one environment."""
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    floor, own = cudnn_floor(wheel, profiles), f"{wheel.cuda}".split(".")[0]
    cudnn = pins.get(f"nvidia-cudnn-cu{own}", "").removesuffix(".*")
    if wheel.cuda and floor and is_pep440(cudnn) and not serves(cudnn, floor.version):
        takes = f"{wheel.pin} takes {floor.version} or a later one of the same major version"
        reason = f"{takes}; the run had another one and is reproduced"
        yield _warning("limit", f"nvidia-cudnn-cu{own}=={cudnn}", reason, floor.source)
    for library, file in _SHARED.items():
        names = sorted(it for it in pins if re.fullmatch(rf"nvidia-{library}-cu\d+", it))
        if len(names) > 1:
            reason = (
                f"they all install {file}; the image has the one that the run had, where its record says so "
                f"(distributions: overwritten), else the one that pip installs last"
            )
            source = f"files of {' and '.join(names)} on the package index"
            yield _warning(f"{library} twice", ", ".join(names), reason, source)
    majors = {}
    for name in pins:
        if plugin := JAX_PLUGIN.match(name):
            majors[plugin[1]] = name
        elif match := _MAJOR.match(name):
            majors[match[2] or "13"] = name
    if len(majors) > 1:
        reason = "wheels of two major versions of CUDA are in one environment"
        drivers = [it.minimum for it in profiles.drivers if it.cuda == max(majors, key=int)]
        reason += "".join(f"; the higher one takes driver {it} or later" for it in drivers)
        yield _warning("cuda twice", ", ".join(majors[it] for it in sorted(majors)), reason, "manifest: distributions")


def idle_cuda(variant: str, requirements: Iterable[str]) -> Iterator[Decision]:
    """Warn of CUDA wheels in an image for the CPU."""
    names = [it for it in map(name_of, requirements) if CUDA_WHEEL.match(it) or it.startswith("nvidia-nccl-")]
    if variant == "cpu" and names:
        reason = (
            "the image is for the CPU and keeps these CUDA wheels of the run, which can be gigabytes; "
            "--variant cpu leaves them out"
        )
        yield _warning("unused cuda", ", ".join(names), reason, "manifest: distributions")


def mixed_labels(requirements: Iterable[str], profiles: Profiles) -> Iterator[Decision]:
    """Warn of projects of PyTorch whose labels name different builds; a project without a label need not differ."""
    own = [it for it in requirements if name_of(it) in profiles.labelled and "+" in it]
    if len({it.partition("+")[2] for it in own}) > 1:
        reason = "their labels name different builds, and what is compiled for one of them does not load beside another"
        yield _warning("labels", ", ".join(own), reason, "profiles/cuda.toml: labelled")


def other_cuda(run: Run, wheel: FrameworkWheel, requirements: Iterable[str], profiles: Profiles) -> Iterator[Decision]:
    """Warn of frameworks beside the run's own one whose wheels require a CUDA that the image does not have."""
    if wheel.cuda is None:
        return
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    rows = (it for profile in profiles.frameworks if profile is not run.profile for it in profile.wheels)
    for row in (it for it in rows if it.machine == run.machine and pins.get(it.distribution) == it.version):
        if row.extra is not None or not row.cuda_requirements:
            continue  # only rows that require CUDA without any extra
        needs = [it for it in row.cuda_requirements if applies(it, run.python, run.machine)]
        missing = [it for it in needs if not _has(it, pins, complete=run.complete)]
        if not run.complete and f"{row.cuda}".partition(".")[0] != wheel.cuda.partition(".")[0]:
            reason = (
                f"the lock adds its CUDA {row.cuda} beside the CUDA {wheel.cuda} of {wheel.pin}, in one environment"
            )
            yield _warning("cuda twice", row.pin, reason, row.source)
        if missing:
            needed = f"its wheel requires {', '.join(missing)}"
            reason = f"{needed}; the image has the CUDA of {wheel.pin}, and others or none of these"
            yield _warning("cuda of another", row.pin, reason, row.source)


def _has(requirement: str, pins: dict[str, str], *, complete: bool) -> bool:
    """Whether a requirement is met, or will be: the lock of a record with gaps adds it."""
    version = pins.get(name_of(requirement))
    if not version:
        return not complete or (version is not None and "==" not in requirement)
    return not is_pep440(version) or Requirement(requirement).specifier.contains(version, prereleases=True)
