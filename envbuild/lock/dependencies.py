"""What distributions declare that they require: what a lock does not satisfy (`pip check`), and what is needed.

Also whose modules a program imported.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import LockError, UsageError
from envbuild.lock.facts import FactReader, WheelFacts, module_path
from envbuild.lock.index import IndexFile, in_parallel
from envbuild.lock.model import LockedWheel, Target, best_wheel, same_version
from envbuild.manifest.packages import Distribution
from envbuild.report import Reporter

if TYPE_CHECKING:
    from envbuild.lock.resolution import IndexSession

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
        with suppress(InvalidRequirement, RecursionError):
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


def may_hold(marker: Marker | None, environment: Mapping[str, str]) -> bool:
    """Whether a marker holds, or compares what cannot be compared: `python_version ~= "x"`."""
    try:
        return marker is None or marker.evaluate(dict(environment))
    except (ValueError, RecursionError):
        return True


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
            if may_hold(it.marker, markers):
                waiting += [first, *extras]
            elif first[0] not in strict:
                waiting.append(first)
    return frozenset(name for name, _ in found)


def find_edges(declared: Declared, environment: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Which of the distributions each one requires, with the extras that the others name; by normalised name."""
    parsed = {name: tuple(readable_requirements(texts)) for name, texts in declared.items()}
    edges, done = {name: set[str]() for name in parsed}, set[tuple[str, str]]()
    waiting = [(name, "") for name in parsed]
    while waiting:
        name, extra = node = waiting.pop()
        if node in done:
            continue
        done.add(node)
        markers = dict(environment) | {"extra": extra}
        for it in parsed[name]:
            nodes = [node for node in _nodes(it) if node[0] in parsed]
            if nodes and may_hold(it.marker, markers):
                edges[name].add(nodes[0][0])
                waiting += nodes
    return {name: frozenset(found - {name}) for name, found in edges.items()}


def find_importers(
    names: Iterable[str], distributions: Iterable[Distribution], session: "IndexSession"
) -> dict[str, tuple[str, ...]]:
    """The distributions of a run that bring what it imported, by its name: a distribution's or a module's.

    Their wheels show the modules. What only a requirement brings counts for all that require it, of whichever version.
    UsageError for what nothing brings, with the names near it.
    """
    pins = {str(canonicalize_name(it.name)): it.version for it in distributions}
    found = {it: {str(canonicalize_name(it))} & pins.keys() for it in names}
    of_run = {name: {name} for name in pins}
    near, new, environment = {*pins}, list(pins), marker_environment(session.target)
    unread = len(pins)
    while new and not all(found.values()):
        waiting = [name for name, its in found.items() if not its]
        wheels = [it for it in in_parallel(lambda name: _find_wheel(session, name, pins.get(name)), new) if it]
        for wheel, files in zip(wheels, in_parallel(session.reader.files, wheels), strict=True):
            unread -= files is not None and wheel.name in pins
            modules = [module_path(it) for it in files or ()]
            near |= set(filter(str.isidentifier, (it.partition("/")[0].removesuffix(".py") for it in modules)))
            for name in waiting:
                starts = (f"{name.replace('.', '/')}/", f"{name.replace('.', '/')}.")
                if canonicalize_name(name) == wheel.name or any(it.startswith(starts) for it in modules):
                    found[name] |= of_run[wheel.name]
        requirers: dict[str, set[str]] = defaultdict(set)
        declaring = [] if all(found.values()) else wheels
        for wheel, known in zip(declaring, session.reader.all_facts(declaring), strict=True):
            for it in _declared(known, environment):
                requirers[str(canonicalize_name(it.name))] |= of_run[wheel.name]
        new = sorted(requirers.keys() - of_run.keys())
        of_run |= {name: requirers[name] for name in new}
    if unknown := [name for name, its in found.items() if not its]:
        close = {it: get_close_matches(it, sorted(near), 3) for it in unknown}
        todo = "; ".join(f"for {it} give {' or '.join(its)}" for it, its in close.items() if its)
        what = f"nothing in the record brings {', '.join(unknown)}"
        todo = todo or "give the names of modules, or of distributions of the record"
        if unread:
            what += f"; of {unread} of its {len(pins)} distributions no wheel could be read"
            blind = session.settings.offline
            todo = (
                f"leave out --offline, or give their wheels' folders (--find-links DIR); else {todo}" if blind else todo
            )
        raise UsageError(what, where=f"--imported {unknown[0]}", todo=todo)
    return {name: tuple(sorted(its)) for name, its in found.items()}


def _find_wheel(session: "IndexSession", name: str, version: str | None) -> IndexFile | None:
    """A wheel of a project that shows its modules: the version's, for the target, else the newest."""
    wheels = [it for it in session.files(name) if it.is_wheel]
    same = [it for it in wheels if same_version(version, str(it.version))]
    best = best_wheel(((it.filename, it) for it in same), session.target)
    return best or max(same or wheels, key=lambda it: (it.version, it.filename), default=None)


def _nodes(requirement: Requirement) -> list[tuple[str, str]]:
    """The required distribution, with an empty text, and with each of its required extras."""
    name = str(canonicalize_name(requirement.name))
    return [(name, extra) for extra in ("", *requirement.extras)]


def _declared(facts: WheelFacts | None, environment: Mapping[str, str]) -> Iterator[Requirement]:
    """The requirements that apply on the target."""
    # Most requirements belong to an extra, and need not be parsed.
    texts = [it for it in (facts.requires if facts else ()) if "extra ==" not in it or " or " in it]
    for requirement in readable_requirements(texts):
        if may_hold(requirement.marker, environment):
            yield requirement
