"""A run's lock from end to end: pins, builds, upgrades and extras, and how the result compares with the run."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from envbuild.errors import LockError, counted
from envbuild.lock.build import Sdist, Source, build_wheel, commit_of
from envbuild.lock.conflicts import Conflict, find_conflicts, find_required
from envbuild.lock.direct import Direct, elsewhere, fetch_direct, unhashed
from envbuild.lock.elsewhere import why_left_out
from envbuild.lock.facts import Counted, FactReader
from envbuild.lock.faults import Fault, UnlockableError
from envbuild.lock.following import Change, explain_changes, extra_pins, upgraded_pins
from envbuild.lock.identity import Absent, Proof, allowed_files, prove
from envbuild.lock.index import size_of
from envbuild.lock.lock import kept_ones, lock
from envbuild.lock.model import Lock, Resolver, Target
from envbuild.lock.pip_tools import PipToolsResolver
from envbuild.lock.resolving import Question, asking, locked_wheel, parsed_requirements
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.lock.tags import same_version
from envbuild.lock.uv import UvResolver
from envbuild.lock.web import LateClient, make_client
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import Distribution, name_of
from envbuild.match.pins import REASON
from envbuild.match.stack import Gaps, PinChange, Stack
from envbuild.oci.digest import Digest


def _say_nothing(*_: object) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to lock."""

    cache: Path
    resolver: Literal["uv", "pip-tools"] = "uv"
    settings: IndexSettings | None = None
    """Where to look; None for what pip and uv are set to."""
    build: bool = False
    """Whether what no index has as a wheel may be built, which runs its projects' own code."""
    upgrade: tuple[str, ...] = ()
    """`name` or `name==version`: what is to be newer than in the run."""
    fixed: tuple[str, ...] = ()
    """Names that an upgrade never moves: the framework's."""
    extras: tuple[str, ...] = ()
    """Requirements to add under the lock."""
    changes: tuple[PinChange, ...] = ()
    """How the requirements differ from the run's distributions: what was replaced, and what was left out."""
    dropped: tuple[str, ...] = ()
    """Normalised names of distributions of the run that are left out by hand; the lock keeps them."""
    system: str | None = None
    """The run's operating system (`platform.system()`); what is for another one than Linux alone is left out."""
    raise_glibc: bool = False
    """Whether the target's glibc may be raised to the lowest that serves all wheels."""
    say: Callable[[str], object] = _say_nothing
    counted: Counted = _say_nothing
    """Progress in wheels read, while the lock is compared with the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRun:
    """The lock of a run, and everything that is to be said about it."""

    lock: Lock
    proof: Proof
    changes: tuple[Change, ...] = ()
    """What an upgrade changed."""
    added: tuple[str, ...] = ()
    """`fastapi==0.115.0`: what the extras added."""
    conflicts: tuple[Conflict, ...] = ()
    """Declared requirements that the lock does not hold, as the run did not."""
    required: frozenset[str] = frozenset()
    """Normalised names of what distributions of the lock require."""
    built: tuple[tuple[str, str], ...] = ()
    """What was built, by name, and from what."""
    warnings: tuple[str, ...] = ()
    """How the lock may differ from the run: dates that were moved, wheels that the record does not name."""
    remarks: tuple[str, ...] = ()
    """Which wheels were taken because they are the run's own, or from elsewhere than the record says."""
    left_out: tuple[tuple[str, str], ...] = ()
    """What of the run was left out by hand or is of no use on Linux, by name, and why."""

    def notes(self) -> list[str]:
        """All of it but the warnings in sentences, the comparison with the run first."""
        yanked = (f"{name} was withdrawn from its index ({why or 'no reason given'})" for name, why in self.lock.yanked)
        built = (f"{name} was built here from {source}" for name, source in self.built)
        added = [f"added: {', '.join(self.added)}"] if self.added else []
        conflicts = (conflict.told for conflict in self.conflicts)
        left = [f"{name} is left out: {why}" for name, why in self.left_out]
        return [self.proof.summary, *left, *map(str, self.changes), *added, *self.remarks, *yanked, *built, *conflicts]


def lock_run(
    requirements: tuple[str, ...],
    target: Target,
    distributions: Sequence[Distribution],
    options: Options,
    gaps: Gaps | None = None,
) -> LockedRun:
    """Lock a run's requirements for `target`, the very files of its distributions where they can be had.

    UnlockableError, a LockError, names everything that stands against it.
    """
    settings = options.settings or read_settings()
    _check_places(settings)
    with tempfile.TemporaryDirectory(prefix="envbuild-") as name:
        kept = kept_ones(parsed_requirements(requirements), distributions)
        direct = fetch_direct(kept, settings, options.cache, Path(name), options.say)
        found = _locked(requirements, target, distributions, options, settings, gaps, direct)
        run = _compared(found, distributions, options, direct)
    completed = (gaps.before or "none") if gaps else None
    return replace(run, lock=replace(run.lock, exclude_newer=completed))


def lock_stack(stack: Stack, target: Target, run: TrainingManifest, options: Options) -> LockedRun:
    """Lock what a stack requires of the run that it was decided for; UnlockableError as `lock_run`."""
    options = replace(
        options,
        fixed=(stack.distribution,),
        changes=stack.changes,
        dropped=stack.dropped,
        system=run.platform.system,
    )
    locked = lock_run(stack.requirements, target, run.distributions, options, stack.gaps)
    return replace(locked, warnings=(*locked.warnings, *_doubts(locked, run, stack.distribution)))


def _doubts(locked: LockedRun, run: TrainingManifest, framework: str) -> Iterator[str]:
    """Name what the run need not have had, and what the framework requires and a record that was guessed lacks."""
    if named := locked.proof.those("added"):
        added = ", ".join(f"{it.name}=={it.version}" for it in named)
        many = f"{len(named)} of {counted(len(locked.lock.wheels), 'wheel')}"
        yield f"the record does not name {many}, and the run may have had other versions: {added}"
    own = (it for it in locked.conflicts if it.requirer.partition(" ")[0] == framework and it.version is None)
    lacking = ", ".join(it.name for it in own if it.of_run)
    if lacking and run.source.format == "pip-freeze":
        todo = "if it does not list everything that was installed, read it with --from requirements"
        yield f"the record has {framework} without {lacking}, which it requires; {todo}"


def _compared(
    found: "_Found", distributions: Sequence[Distribution], options: Options, direct: Mapping[str, Direct | Fault]
) -> LockedRun:
    """Upgrade and extend a lock where that is wanted, and compare it with the run."""
    locked, settings, target = found.lock, found.settings, found.lock.target
    resolver = _resolver(options, settings)
    changes: tuple[Change, ...] = ()
    added: tuple[str, ...] = ()
    folders = tuple(dict.fromkeys(str(it.path.parent) for it in direct.values() if isinstance(it, Direct)))
    places = replace(settings, find_links=(*folders, *settings.find_links))
    with asking((), target, places, options.cache) as question:
        if options.upgrade:
            locked, changes = _upgraded(locked, distributions, resolver, options, question, direct)
        if options.extras:
            locked, added = _extended(locked, options.extras, resolver, question)
        proven = prove(locked, distributions, question, options.counted, _absent(options.changes, found.left_out))
        facts = question.reader.all_facts(proven.lock.wheels)
        swapped = (it for it in options.changes if it.before and it.after and "==" in it.before)
        pins = {it.name: f"{it.before}".partition("==")[2] for it in swapped}
        pins |= {wheel.name: wheel.version for wheel in proven.lock.wheels}
        conflicts = find_conflicts(proven.lock.wheels, facts, target, pins)
    dropped = tuple((name, _why_dropped(name, conflicts)) for name in options.dropped)
    return LockedRun(
        lock=replace(proven.lock, owners=_owners(proven.lock, distributions), dropped=options.dropped),
        proof=proven.proof,
        changes=changes,
        added=added,
        conflicts=tuple(_attributed(it, distributions) for it in conflicts),
        required=find_required(proven.lock.wheels, facts, target),
        built=tuple((source.name, str(source)) for source in found.built),
        warnings=found.lock.remarks,
        remarks=(
            *proven.remarks,
            *unhashed(proven.lock, direct),
            *elsewhere(proven.lock, distributions, settings),
        ),
        left_out=(*dropped, *found.left_out),
    )


def _absent(changes: Iterable[PinChange], left_out: Iterable[tuple[str, str]]) -> dict[str, Absent]:
    """Why a distribution of the run is not in its lock, by name."""
    changed = {it.name: Absent(why=it.reason, successor=name_of(it.after or "")) for it in changes if it.before}
    return changed | {name: Absent(why=why) for name, why in left_out}


def _why_dropped(name: str, conflicts: Iterable[Conflict]) -> str:
    """Name what stays and requires it."""
    dependants = ", ".join(sorted({it.requirer for it in conflicts if it.name == name}))
    return f"{REASON}; {f'still required by {dependants}' if dependants else 'nothing that stays requires it'}"


def _check_places(settings: IndexSettings) -> None:
    if settings.offline and not settings.find_links:
        what = "there is nowhere to look: no index may be asked, and no folder is given"
        todo = "give the folder that has the wheels: --find-links DIR (`envbuild lock --download DIR` makes one)"
        raise LockError(what, where="--offline", todo=todo)


def lock_extras(locked: Lock, extras: tuple[str, ...], options: Options) -> tuple[Lock, tuple[str, ...]]:
    """Add requirements and what they need to a lock, which moves nothing in it; also what was added, as pins.

    LockError names both sides where an extra and the lock exclude each other.
    """
    settings = options.settings or read_settings()
    with asking((), locked.target, settings, options.cache) as question:
        return _extended(locked, extras, _resolver(options, settings), question)


def confirm(run: LockedRun, cache: Path, true: Mapping[Digest, Collection[str]] | None = None) -> LockedRun:
    """Hold what an index showed of wheels against the files that were fetched since; LockError where it lied.

    What was called identical stays so only where every file of the wheel is what its RECORD says; `true` are those
    that somebody has held against it already, by the wheel's sha256.
    """
    with LateClient(IndexSettings(default=None)) as client:
        reader = FactReader(client, cache, true)
        false = reader.false_claims(run.lock.wheels)
        proven = {it.name for it in run.proof.those("identical")}
        wheels = [it for it in run.lock.wheels if it.name in proven]
        facts, untruths = reader.all_facts(wheels), reader.untruths(wheels)
    if false:
        what = f"the index showed other metadata than the files have: {', '.join(wheel.filename for wheel in false)}"
        todo = "find out why before using these files; what was said about their identity does not hold"
        raise LockError(what, where="range requests", todo=todo)
    doubts = {
        wheel.name: (known.doubt if known else "") or untruth
        for wheel, known, untruth in zip(wheels, facts, untruths, strict=True)
    }
    return replace(run, proof=run.proof.doubted({name: doubt for name, doubt in doubts.items() if doubt}))


def refuse_changed(before: Lock, after: Lock, where: str) -> None:
    """Refuse files that had other bytes when they were locked before; LockError names them all."""
    known = {wheel.filename: wheel.sha256 for wheel in before.wheels}
    changed = [it for it in after.wheels if known.get(it.filename, it.sha256) != it.sha256]
    if changed:
        lines = [f"  {it.filename}: locked as {known[it.filename]}, the index now has {it.sha256}" for it in changed]
        todo = "find out why the index changed released files; remove the old lock only if that is right"
        raise LockError(
            "\n".join(["files are not what they were when they were locked:", *lines]), where=where, todo=todo
        )


def _owners(locked: Lock, distributions: Iterable[Distribution]) -> tuple[tuple[str, str], ...]:
    """Whose file the run had where one locked distribution's was overwritten by another's."""
    names = {wheel.name for wheel in locked.wheels}
    pairs = (pair for it in distributions if canonicalize_name(it.name) in names for pair in it.overwritten)
    found = {path: name for path, by in pairs if (name := str(canonicalize_name(by))) in names}
    return tuple(sorted(found.items()))


def _attributed(conflict: Conflict, distributions: Iterable[Distribution]) -> Conflict:
    had = {str(canonicalize_name(it.name)): it.version for it in distributions}
    version = had.get(conflict.name)
    same = version is None if conflict.version is None else same_version(version, conflict.version)
    return replace(conflict, of_run=same)


def _resolver(options: Options, settings: IndexSettings) -> Resolver:
    kind = UvResolver if options.resolver == "uv" else PipToolsResolver
    return kind(settings=settings, cache=options.cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A lock, where its wheels were found in the end, and what it took."""

    lock: Lock
    settings: IndexSettings
    built: tuple[Source, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def _locked(
    requirements: tuple[str, ...],
    target: Target,
    distributions: Sequence[Distribution],
    options: Options,
    settings: IndexSettings,
    gaps: Gaps | None,
    direct: Mapping[str, Direct | Fault],
) -> _Found:
    """Lock; where that fails, raise the glibc, leave out what is for other systems, build what may be built, and
    lock again.
    """

    def attempt(settings: IndexSettings, without: Collection[str] = ()) -> Lock:
        with asking((), target, settings, options.cache) as question:
            return lock(
                tuple(it for it in requirements if name_of(it) not in without),
                target,
                _resolver(options, settings),
                distributions,
                gaps,
                prefer=lambda it: allowed_files(it, distributions, question),
                direct=direct,
            )

    try:
        return _Found(lock=attempt(settings), settings=settings)
    except UnlockableError as error:
        if options.raise_glibc and error.glibc:
            higher = replace(target, glibc=error.glibc)
            return _locked(requirements, higher, distributions, options, settings, gaps, direct)
        left_out = _left_out(error.faults, options, settings)
        faults = [it for it in error.faults if it.name not in left_out]
        sources = _sources(faults, distributions, settings) if options.build or not faults else None
        if sources is None:
            raise UnlockableError(faults, target, where=error.where) from error
    outcomes = [build_wheel(source, target, settings, options.cache, options.say) for source in sources]
    failed = [it for it in outcomes if isinstance(it, Fault)]
    if failed:
        raise UnlockableError(failed, target)
    folders = [str(it.parent) for it in outcomes if isinstance(it, Path)]
    settings = replace(settings, find_links=(*folders, *settings.find_links))
    left = tuple(left_out.items())
    return _Found(lock=attempt(settings, left_out), settings=settings, built=sources, left_out=left)


def _left_out(faults: Iterable[Fault], options: Options, settings: IndexSettings) -> dict[str, str]:
    """What a run on another system had that is for that system alone, by name, and why."""
    system = options.system
    if system in {None, "Linux"}:
        return {}
    with make_client(settings) as client:
        found = {fault.name: why_left_out(fault, f"{system}", client) for fault in faults}
    return {name: why for name, why in found.items() if why}


def _sources(
    faults: Iterable[Fault], distributions: Iterable[Distribution], settings: IndexSettings
) -> tuple[Source, ...] | None:
    """What each fault can be mended from; None when one cannot."""
    commits = {commit.name: commit for it in distributions if (commit := commit_of(it)) is not None}
    with make_client(settings) as client:
        found = [commits.get(fault.name) or _sdist(fault, lambda url: size_of(client, url)) for fault in faults]
    sources = tuple(source for source in found if source is not None)
    return sources if len(sources) == len(found) else None


def _sdist(fault: Fault, size: Callable[[str], int]) -> Sdist | None:
    file = fault.sdist
    return Sdist(file=locked_wheel(file, size(file.url))) if file is not None and file.sha256 is not None else None


def _upgraded(
    locked: Lock,
    distributions: Sequence[Distribution],
    resolver: Resolver,
    options: Options,
    question: Question,
    direct: Mapping[str, Direct | Fault],
) -> tuple[Lock, tuple[Change, ...]]:
    pins = upgraded_pins(locked, options.upgrade, options.fixed, question)
    after = lock(pins, locked.target, resolver, distributions, direct=direct)
    return after, explain_changes(locked, after, options.upgrade, question)


def _extended(
    locked: Lock, extras: Sequence[str], resolver: Resolver, question: Question
) -> tuple[Lock, tuple[str, ...]]:
    pins = extra_pins(locked, extras, resolver, question)
    if not pins:
        return locked, ()
    more = resolver.resolve(pins, locked.target)
    wheels = sorted((*locked.wheels, *more.wheels), key=lambda wheel: wheel.name)
    yanked = tuple(sorted((*locked.yanked, *more.yanked)))
    return replace(locked, wheels=tuple(wheels), yanked=yanked), pins
