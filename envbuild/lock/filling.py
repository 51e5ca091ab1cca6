"""What an incomplete record lacks: releases that obey its pins, as of the record's date where there are any."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envbuild.lock.conflicts import Conflict, find_conflict, marker_environment
from envbuild.lock.model import Lock
from envbuild.lock.resolving import Question, failure
from envbuild.manifest.packages import exact_version

T = TypeVar("T")

_INTERVAL = timedelta(days=30)
"""How far apart the later dates are that may be taken, where the releases of the record's own do not fit together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A pinned distribution, as if it required any version where another pin contradicts what it requires."""

    name: str
    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    """The extras that are required of it."""
    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a resolver has to observe when it adds distributions."""

    before: str | None = None
    """It adds only what was uploaded before this moment; None for any."""
    relaxed: tuple[Relaxed, ...] = ()


class UnsolvedError(Exception):
    """No set of releases fits; `undated` where that is so because the index does not say when files were uploaded."""

    def __init__(self, said: str, *, undated: bool = False) -> None:
        super().__init__(said)
        self.undated = undated


@dataclass(frozen=True, slots=True)
class Filled(Generic[T]):
    """What a resolver found, and what is to be said about its date."""

    found: T
    remarks: tuple[str, ...] = ()


def fill(question: Question, resolve: Callable[[Limits], T], pinned: Callable[[], Lock]) -> Filled[T]:
    """Resolve as of the date in the question's gaps; if nothing fits, as of a later date, or without one.

    `resolve` raises UnsolvedError if nothing fits. `pinned` locks the requirements alone; only if they contradict each
    other, the contradicted requirements are relaxed. LockError if that does not help.
    """
    before = question.gaps.before if question.gaps else None
    try:
        return Filled(resolve(Limits(before=before)))
    except UnsolvedError as error:
        first = error
    try:
        newest, relaxed = _newest(question, resolve, pinned, first)
    except UnsolvedError as error:
        raise failure(question, str(error)) from error
    if before is None:
        return Filled(newest)
    now = "what the record lacks is taken from all releases that the index has now"
    if first.undated:
        return Filled(newest, (f"the package index does not say when files were uploaded; {now}",))
    if relaxed:
        with suppress(UnsolvedError):
            return Filled(resolve(Limits(before=before, relaxed=relaxed)))
    moment, found = _earliest(before, lambda moment: resolve(Limits(before=moment, relaxed=relaxed)), newest)
    taken = f"what the record lacks is taken from those before {moment}" if moment else now
    return Filled(found, (f"no wheels uploaded before {before} fit together; {taken}",))


def _newest(
    question: Question, resolve: Callable[[Limits], T], pinned: Callable[[], Lock], error: UnsolvedError
) -> tuple[T, tuple[Relaxed, ...]]:
    """Resolve without a date, and with relaxed requirements if that is needed."""
    if question.gaps and question.gaps.before:
        try:
            return resolve(Limits()), ()
        except UnsolvedError as undated:
            error = undated
    relaxed = tuple(_contradicted(question, pinned())) if question.gaps else ()
    if not relaxed:
        raise error
    return resolve(Limits(relaxed=relaxed)), relaxed


def _earliest(before: str, resolve: Callable[[str], T], newest: T) -> tuple[str | None, T]:
    """Find the first of the moments at intervals after `before` that has a solution; None where only now has one."""
    start = datetime.fromisoformat(before)
    low, high, moment, found = 0, max((datetime.now(UTC) - start) // _INTERVAL, 0) + 1, None, newest
    while high - low > 1:
        middle = (low + high) // 2
        tried = (start + middle * _INTERVAL).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            moment, found, high = tried, resolve(tried), middle
        except UnsolvedError:
            low = middle
    return moment, found


def _contradicted(question: Question, pins: Lock) -> Iterator[Relaxed]:
    """Find the pinned distributions that require what other pins do not satisfy."""
    there = {wheel.name: wheel.version for wheel in pins.wheels}
    bounds = [Requirement(text) for text in (question.gaps.versions if question.gaps else ())]
    there |= {str(canonicalize_name(it.name)): version for it in bounds if (version := exact_version(it))}
    named = {str(canonicalize_name(it.name)): tuple(sorted(it.extras)) for it in question.requirements}
    environment = marker_environment(question.target)
    for wheel, facts in zip(pins.wheels, question.reader.all_facts(pins.wheels), strict=True):
        extras = named.get(wheel.name, ())
        environments = [environment | {"extra": extra} for extra in ("", *extras)]
        conflicts: list[Conflict] = []
        requires = []
        for requirement in _parsed(facts.requires if facts else ()):
            conflict = find_conflict(f"{wheel.name} {wheel.version}", requirement, there)
            marker = requirement.marker
            if conflict and conflict.version and (marker is None or any(map(marker.evaluate, environments))):
                requirement.specifier = SpecifierSet()
                conflicts.append(conflict)
            requires.append(str(requirement))
        if conflicts:
            yield Relaxed(
                name=wheel.name,
                version=wheel.version,
                requires=tuple(requires),
                extras=extras,
                conflicts=tuple(conflicts),
            )


def _parsed(texts: Iterable[str]) -> Iterator[Requirement]:
    """Read requirements; one that nobody can read counts for nothing, as in old releases of pip."""
    for text in texts:
        with suppress(InvalidRequirement):
            yield Requirement(text)
