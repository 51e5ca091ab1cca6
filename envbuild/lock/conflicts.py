"""What the locked distributions declare that the lock does not hold: what `pip check` would say in the image."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.lock.facts import WheelFacts
from envbuild.lock.model import LockedWheel, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One requirement that the lock does not hold."""

    requirer: str
    """`tensorboard 2.15.2`."""
    requirement: str
    """`protobuf<4.24,>=3.19.6`."""
    name: str
    """What it requires, normalised."""
    version: str | None
    """What the lock has of it; None when it has none."""
    of_run: bool = True
    """Whether the run had it so; else it came with what was chosen for the image."""

    @property
    def told(self) -> str:
        """The conflict, and whose it is."""
        return f"{self}, as in the run" if self.of_run else f"{self}, unlike in the run"

    def __str__(self) -> str:
        has = f"{self.name} {self.version} is there" if self.version else f"{self.name} is not there"
        return f"{self.requirer} requires {self.requirement}; {has}"


def find_conflicts(
    wheels: Sequence[LockedWheel],
    facts: Iterable[WheelFacts | None],
    target: Target,
    pins: Mapping[str, str] | None = None,
) -> tuple[Conflict, ...]:
    """Every declared requirement that `pins` do not satisfy, in the wheels' order; extras are not looked at.

    `pins` are versions by normalised name; None for those of the wheels.
    """
    there = {wheel.name: wheel.version for wheel in wheels} if pins is None else pins
    environment = marker_environment(target)
    return tuple(
        conflict
        for wheel, known in zip(wheels, facts, strict=True)
        for requirement in _declared(known, environment)
        if (conflict := find_conflict(f"{wheel.name} {wheel.version}", requirement, there)) is not None
    )


def find_required(wheels: Sequence[LockedWheel], facts: Iterable[WheelFacts | None], target: Target) -> frozenset[str]:
    """Normalised names of what others of the wheels declare as required; extras are not looked at."""
    environment = marker_environment(target)
    return frozenset(
        name
        for wheel, known in zip(wheels, facts, strict=True)
        for requirement in _declared(known, environment)
        if (name := str(canonicalize_name(requirement.name))) != wheel.name
    )


def find_conflict(requirer: str, requirement: Requirement, pins: Mapping[str, str]) -> Conflict | None:
    """What `pins` have instead of the requirement; None when they satisfy it."""
    name = str(canonicalize_name(requirement.name))
    version = pins.get(name)
    if version is not None and _allows(requirement, version):
        return None
    bare = f"{requirement.name}{requirement.specifier}"
    return Conflict(requirer=requirer, requirement=bare, name=name, version=version)


def marker_environment(target: Target) -> dict[str, str]:
    """The environment markers of the target (dependency specifiers, environment markers)."""
    return {
        "implementation_name": "cpython",
        "implementation_version": target.python,
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": target.python,
        "python_version": target.python_minor,
        "sys_platform": "linux",
        "extra": "",
    }


def _declared(facts: WheelFacts | None, environment: Mapping[str, str]) -> Iterator[Requirement]:
    """What applies on the target; a requirement that nobody can read counts for nothing, as in old releases of pip."""
    for text in facts.requires if facts else ():
        if "extra ==" in text and " or " not in text:  # most are of an extra, and need not be parsed
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            yield requirement


def _allows(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
