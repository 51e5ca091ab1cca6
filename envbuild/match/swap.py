"""Another version of CUDA or cuDNN than a framework asks for, from wheels whose versions the profiles know."""

import re
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.match.overrides import Overrides
from envbuild.match.profiles import FrameworkWheel, Profiles

# What is a part of the CUDA Toolkit, and so changes with it: neither cuDNN nor NCCL, nor TensorRT.
_TOOLKIT = re.compile(
    r"cuda-toolkit\Z|nvidia-(cublas|cuda-[a-z]+|cufft|cufile|curand|cusolver|cusparse|nvjitlink|nvtx|nvvm)(-cu\d+)?\Z"
)
_CUDNN = re.compile(r"nvidia-cudnn-cu\d+\Z")


def is_version(exact: str, asked: str) -> bool:
    """Whether 12.5.1 is what 12.5 asks for."""
    return exact == asked or exact.startswith(f"{asked}.")


def swap_cuda(
    wheel: FrameworkWheel, requirements: tuple[str, ...], overrides: Overrides, profiles: Profiles
) -> tuple[str, ...]:
    """The requirements with another CUDA Toolkit of the same major version; MatchError where no row has its pins."""
    asked, built = overrides.cuda, f"{wheel.cuda}"
    parts = [it for it in requirements if is_toolkit(name_of(it))]
    if is_version(built, asked) and all("==" in it for it in parts):
        return requirements
    if Version(asked).major != Version(built).major:
        raise overrides.refused(
            "cuda", f"{wheel.pin} was built with {built}, and opens libraries of that major version"
        )
    pins = {name_of(it): it for it in _pins(profiles, asked, wheel.machine)}
    lost = [name_of(it) for it in parts if name_of(it) not in pins]
    if lost or not parts:
        known = ", ".join(sorted(_complete(profiles, parts, wheel.machine), key=Version))
        why = f"no wheels of that CUDA are known for {', '.join(lost) or wheel.pin}; known are {known or 'none'}"
        raise overrides.refused("cuda", why)
    broken = _outside(parts, pins)
    if broken:
        raise overrides.refused("cuda", f"{wheel.pin} requires {', '.join(broken)}")
    return tuple(pins[name_of(it)] if it in parts else it for it in requirements)


def is_toolkit(name: str) -> bool:
    """Whether a distribution is a part of the CUDA Toolkit."""
    return _TOOLKIT.match(name) is not None


def _outside(parts: list[str], pins: dict[str, str]) -> list[str]:
    """Ranges that the pins are not in; an exact requirement is what an override is there to replace."""
    ranges = (it for it in parts if "==" not in it)
    return [it for it in ranges if not Requirement(it).specifier.contains(pins[name_of(it)].partition("==")[2])]


def swap_cudnn(
    wheel: FrameworkWheel, requirements: tuple[str, ...], overrides: Overrides, floor: str | None
) -> tuple[str, ...]:
    """The requirements with another cuDNN; MatchError where the framework would refuse it."""
    asked = overrides.cudnn
    if floor and not serves(asked, floor):
        raise overrides.refused("cudnn", f"{wheel.pin} takes {floor} or a later one of the same major version")
    names = [name for it in requirements if _CUDNN.match(name := name_of(it))]
    if not names:
        raise overrides.refused("cudnn", f"no wheel of cuDNN is required for {wheel.pin}")
    exact = f"{names[0]}=={asked}" if asked.count(".") >= 3 else f"{names[0]}=={asked}.*"
    return tuple(exact if name_of(it) == names[0] else it for it in requirements)


def serves(version: str, floor: str) -> bool:
    """Whether a cuDNN is of the floor's major version, and of its minor version or a later one."""
    found, lowest = Version(version).release, Version(floor).release
    return found[0] == lowest[0] and (len(found) < 2 or found[:2] >= lowest[:2])


def name_of(requirement: str) -> str:
    """The normalised name; a version of the run need not be one that PEP 440 allows, so nothing more is parsed."""
    return canonicalize_name(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


def _pins(profiles: Profiles, cuda: str, machine: str) -> Iterator[str]:
    """Exact pins of one CUDA, from whichever framework requires them."""
    wheels = (it for profile in profiles.frameworks for release in profile.releases for it in release.wheels)
    for wheel in wheels:
        if wheel.machine == machine and wheel.cuda and is_version(wheel.cuda, cuda):
            yield from (it for it in wheel.cuda_requirements if "==" in it and not Requirement(it).marker)


def _complete(profiles: Profiles, parts: list[str], machine: str) -> set[str]:
    """Every CUDA that all these parts are known of, in versions that they allow."""
    wheels = (it for profile in profiles.frameworks for release in profile.releases for it in release.wheels)
    cudas = {it.cuda for it in wheels if it.cuda and "." in it.cuda}
    names = {name_of(it) for it in parts}
    by_cuda = {cuda: {name_of(it): it for it in _pins(profiles, cuda, machine)} for cuda in cudas}
    return {cuda for cuda, pins in by_cuda.items() if names and names <= pins.keys() and not _outside(parts, pins)}
