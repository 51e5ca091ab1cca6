"""What distributions declare that they require: what a lock does not satisfy (`pip check`), and what is needed."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import LockError
from envbuild.lock.facts import FactReader, WheelFacts
from envbuild.lock.model import LockedWheel, Target
from envbuild.report import Reporter

Declared = Mapping[str, Collection[str]]
"""By normalised name, the requirements as METADATA has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One requirement that the lock does not satisfy."""

    requirer: str
    """`tensorboard 2.15.2`."""
    requirement: str
    """`protobuf<4.24,>=3.19.6`."""
    name: str
    """The required distribution, normalised."""
    version: str | None
    """Its version in the lock; None when the lock lacks it."""
    of_run: bool = True
    """Whether the run had it so; else it came with what was chosen for the image."""

    def __str__(self) -> str:
        has = f"{self.name} {self.version} is there" if self.version else f"{self.name} is not there"
        return f"{self.requirer} requires {self.requirement}; {has}"


def find_conflicts(
    wheels: Sequence[LockedWheel],
    facts: Iterable[WheelFacts | None],
    target: Target,
    pins: Mapping[str, str] | None = None,
) -> tuple[Conflict, ...]:
    """Every declared requirement that `pins`, else the wheels' own versions, do not satisfy; extras do not count."""
    versions = {wheel.name: wheel.version for wheel in wheels} if pins is None else pins
    environment = marker_environment(target)
    return tuple(
        conflict
        for wheel, known in zip(wheels, facts, strict=True)
        for requirement in _declared(known, environment)
        if (conflict := find_conflict(f"{wheel.name} {wheel.version}", requirement, versions)) is not None
    )


def find_required(wheels: Sequence[LockedWheel], facts: Iterable[WheelFacts | None], target: Target) -> frozenset[str]:
    """Normalised names that other wheels declare as required; requirements of extras do not count."""
    environment, found = marker_environment(target), set[str]()
    for wheel, known in zip(wheels, facts, strict=True):
        found |= {canonicalize_name(it.name) for it in _declared(known, environment)} - {wheel.name}
    return frozenset(found)


def find_conflict(requirer: str, requirement: Requirement, pins: Mapping[str, str]) -> Conflict | None:
    """The conflict of a requirement with `pins`; None when they satisfy it."""
    name = str(canonicalize_name(requirement.name))
    version = pins.get(name)
    with suppress(InvalidVersion):
        if version is not None and requirement.specifier.contains(Version(version), prereleases=True):
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


def readable_requirements(texts: Iterable[str]) -> Iterator[Requirement]:
    """Parse requirements, and skip invalid ones, as old releases of pip did."""
    for text in texts:
        with suppress(InvalidRequirement):
            yield Requirement(text)


def read_declared(
    reader: FactReader, wheels: Sequence[LockedWheel], where: str, without: str, report: Reporter
) -> Declared:
    """What each of the wheels requires; LockError where one does not say, naming the option `where` that needs it."""
    facts = reader.all_facts(wheels, report)
    unread = [wheel.filename for wheel, known in zip(wheels, facts, strict=True) if known is None]
    if unread:
        what = f"what {unread[0]} requires cannot be read, as its server sends whole files only"
        raise LockError(what, where=where, todo=f"give its wheel in a folder (--find-links DIR), or {without}")
    return {wheel.name: known.requires for wheel, known in zip(wheels, facts, strict=True) if known}


def find_needed(
    roots: Iterable[str], declared: Declared, environment: Mapping[str, str], strict: Collection[str] = ()
) -> frozenset[str]:
    """The roots, which are requirements, and everything that they need in turn; by normalised name.

    Nothing records installed extras, so a requirement of any extra counts; for a name in `strict` only where its
    marker holds, with the extras that another requirement names.
    """
    found, waiting = set[tuple[str, str]](), [node for root in roots for node in _nodes(Requirement(root))]
    parsed = {name: tuple(readable_requirements(texts)) for name, texts in declared.items()}
    while waiting:
        name, extra = node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        markers = dict(environment) | {"extra": extra}
        for it in parsed.get(name, ()):
            first, *extras = _nodes(it)
            if it.marker is None or it.marker.evaluate(markers):
                waiting += [first, *extras]
            elif first[0] not in strict:
                waiting.append(first)
    return frozenset(name for name, _ in found)


def _nodes(requirement: Requirement) -> list[tuple[str, str]]:
    """The required distribution, with an empty text, and with each of its required extras."""
    name = str(canonicalize_name(requirement.name))
    return [(name, extra) for extra in ("", *requirement.extras)]


def _declared(facts: WheelFacts | None, environment: Mapping[str, str]) -> Iterator[Requirement]:
    """The requirements that apply on the target."""
    # Most requirements belong to an extra, and need not be parsed.
    texts = [it for it in (facts.requires if facts else ()) if "extra ==" not in it or " or " in it]
    for requirement in readable_requirements(texts):
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            yield requirement
