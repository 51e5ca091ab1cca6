"""A run's lock from end to end: pins, builds, upgrades and extras, and how the result compares with the run."""

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.utils import canonicalize_name

from envbuild.errors import LockError, counted
from envbuild.lock.dependencies import (
    Conflict,
    find_conflicts,
    find_needed,
    find_required,
    marker_environment,
    read_declared,
)
from envbuild.lock.facts import FactReader, WheelFacts
from envbuild.lock.faults import Fault, UnlockableError, listed, version_faults, why_foreign
from envbuild.lock.identity import Absence, Proof, choose_allowed_files, prove_identity
from envbuild.lock.index import LateClient, make_client, size_of
from envbuild.lock.lock import (
    Change,
    constraints_of,
    explain_changes,
    extra_pins,
    join_locks,
    lock,
    required_distributions,
    upgraded_pins,
)
from envbuild.lock.model import Lock, LockedWheel, Target, same_version
from envbuild.lock.resolution import IndexSession, locked_wheel, open_session, parsed_requirements
from envbuild.lock.resolvers import PipToolsResolver, Resolver, Tree, UvResolver, resolve_tree
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.lock.sources import (
    Commit,
    Direct,
    build_wheel,
    commit_of,
    describe_source,
    fetch_direct,
    note_other_places,
    note_unhashed,
)
from envbuild.lock.variants import choose_variants, fits_variant, other_variants
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import Distribution, name_of
from envbuild.match.pins import ONLY_IMPORTED, REASON
from envbuild.match.stack import Gaps, PinChange, Stack, Variant
from envbuild.oci.digest import Digest
from envbuild.report import SILENT, Reporter

_MANY = 10
"""Distributions that a note on what was not imported is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to lock."""

    cache: Path
    resolver: Literal["uv", "pip-tools"] = "uv"
    settings: IndexSettings | None = None
    """Where to look; None for pip's and uv's own settings."""
    build_from_source: bool = False
    """Whether distributions without a wheel may be built from source, which runs their projects' own code."""
    upgrade: tuple[str, ...] = ()
    """`name` or `name==version`: what is to be newer than in the run."""
    not_upgraded: tuple[str, ...] = ()
    """Names that an upgrade never moves: the framework's."""
    extras: tuple[str, ...] = ()
    """Requirements to add, with the versions of the lock fixed."""
    changes: tuple[PinChange, ...] = ()
    """How the requirements differ from the run's distributions: replaced and left out."""
    dropped: tuple[str, ...] = ()
    """Normalised names of distributions of the run that `--drop` leaves out; recorded in `Lock.dropped`."""
    not_imported: tuple[str, ...] = ()
    """Of these, what the requirements need in turn is locked too, in the run's version, and the others are left out."""
    unimported: tuple[str, ...] = ()
    """What the run did not import and is locked all the same; a note says how many of them nothing requires."""
    variant: Variant = "gpu"
    """Whether wheel variants may need a GPU."""
    system: str | None = None
    """The run's operating system (`platform.system()`); what is only for another one than Linux is left out."""
    raise_glibc: bool = False
    """Whether the target's glibc may be raised to the lowest that serves all wheels."""
    reporter: Reporter = SILENT
    """Gets what is about to be fetched or built, and how many wheels are compared with the run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockResult:
    """The lock for a run, and how it differs from what the run had."""

    lock: Lock
    proof: Proof
    changes: tuple[Change, ...] = ()
    """What an upgrade changed."""
    added: tuple[str, ...] = ()
    """`fastapi==0.115.0`: what the extras added."""
    conflicts: tuple[Conflict, ...] = ()
    """Declared requirements that the lock does not satisfy, each with whether the run had that conflict."""
    required: frozenset[str] = frozenset()
    """Normalised names of what distributions of the lock require."""
    built: tuple[tuple[str, str], ...] = ()
    """What was built, by name, and from what."""
    warnings: tuple[str, ...] = ()
    """How the lock may differ from the run: dates that were moved, wheels that the record does not name."""
    source_notes: tuple[str, ...] = ()
    """Which wheels were taken because they are the run's own, or from another place than in the record."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Distributions of the run that were dropped or are of no use on Linux, by name, and why."""

    def notes(self) -> list[str]:
        """Everything but the warnings in sentences, the comparison with the run first."""
        yanked = (f"{name} was withdrawn from its index ({why or 'no reason given'})" for name, why in self.lock.yanked)
        built = (f"{name} was built here from {source}" for name, source in self.built)
        added = [f"added: {', '.join(self.added)}"] if self.added else []
        conflicts = (f"{it}, {'as' if it.of_run else 'unlike'} in the run" for it in self.conflicts)
        unused = [name for name, why in self.left_out if why == ONLY_IMPORTED]
        left = [f"{name} is left out: {why}" for name, why in self.left_out if why != ONLY_IMPORTED]
        many = f"{counted(len(unused), 'distribution')} left out, as the run did not import them: {listed(unused)}"
        left += [f"{many}; pylock.toml names all"] if unused else []
        changes = map(str, self.changes)
        return [self.proof.note, *left, *changes, *added, *self.source_notes, *yanked, *built, *conflicts]


def lock_run(
    requirements: tuple[str, ...],
    target: Target,
    distributions: Sequence[Distribution],
    options: Options,
    gaps: Gaps | None = None,
) -> LockResult:
    """Lock a run's requirements, with its own files where an index has them; UnlockableError names every fault."""
    settings = options.settings or read_settings()
    if settings.offline and not settings.find_links:
        what = "there is no place to look: --offline forbids indexes, and no folder is given"
        todo = "give the folder that has the wheels: --find-links DIR (`envbuild lock --download DIR` makes one)"
        raise LockError(what, where="--offline", todo=todo)
    with tempfile.TemporaryDirectory(prefix="envbuild-") as name:
        direct: dict[str, Direct | Fault] = {}

        def attempt(requirements: tuple[str, ...], gaps: Gaps | None) -> _FirstLock:
            kept = required_distributions(parsed_requirements(requirements), distributions)
            kept = [it for it in kept if it.wheel_variant is None or fits_variant(it.wheel_variant, options.variant)]
            new = [it for it in kept if str(canonicalize_name(it.name)) not in direct]
            folder = Path(tempfile.mkdtemp(dir=name))
            direct.update(fetch_direct(new, settings, options.cache, folder, options.reporter))
            return _first_lock(requirements, target, distributions, options, settings, gaps, direct)

        # What the run had is found before anything is added to an incomplete record.
        first = attempt(requirements, None if options.not_imported else gaps)
        while needed := _find_needed(first, requirements, distributions, options):
            requirements += needed
            first = attempt(requirements, None)
        if options.not_imported and gaps:
            first = attempt(requirements, gaps)
        result = _finish_lock(first, distributions, options, direct)
    as_of = (gaps.before or "none") if gaps else None
    return replace(result, lock=replace(result.lock, as_of=as_of))


def lock_stack(stack: Stack, target: Target, run: TrainingManifest, options: Options) -> LockResult:
    """Lock what a stack requires of the run that it was decided for; UnlockableError as `lock_run`."""
    options = replace(options, not_upgraded=(stack.distribution,), changes=stack.changes, dropped=stack.dropped)
    undecided = tuple(it for it in stack.not_imported if it not in stack.dropped)
    options = replace(options, system=run.platform.system, not_imported=undecided, variant=stack.variant)
    options = replace(options, unimported=stack.unimported)
    faults = version_faults(run.distributions, {*stack.dropped, *stack.not_imported})
    named = "" if run.imported else " and --imported NAMES"
    others = "" if stack.not_imported else f", or what the run did not import by {ONLY_IMPORTED}{named}"
    try:
        locked = lock_run(stack.requirements, target, run.distributions, options, stack.gaps)
    except UnlockableError as error:
        raise UnlockableError([*error.faults, *faults], error.target, where=error.where, others=others) from error
    if faults:
        raise UnlockableError(faults, target, others=others)
    return replace(locked, warnings=(*locked.warnings, *_record_warnings(locked, run, stack.distribution)))


def lock_extras(locked: Lock, extras: tuple[str, ...], options: Options) -> tuple[Lock, tuple[str, ...]]:
    """Add requirements and what they need to a lock without moving anything in it; also the pins that were added.

    LockError names both sides where an extra and the lock exclude each other.
    """
    settings = options.settings or read_settings()
    with open_session((), locked.target, settings, options.cache) as session:
        return _extend(locked, extras, _resolver(options, settings), session)


def lock_above(requirements: Sequence[str], below: Lock, options: Options) -> Lock:
    """Lock what requirements add to an environment, whose own wheels stay; only the new wheels. LockError."""
    whole, _ = lock_extras(below, tuple(requirements), options)
    names = {it.name for it in below.wheels}
    wheels = tuple(it for it in whole.wheels if it.name not in names)
    added = Lock(target=whole.target, wheels=wheels, yanked=tuple(it for it in whole.yanked if it[0] not in names))
    # The new wheels may require what the run lacked although its own wheels require it too: an override hides that.
    pins = {it.name: it.version for it in whole.wheels}
    with open_session((), whole.target, options.settings, options.cache) as session:
        declared = session.reader.all_facts(added.wheels)
        conflicts = find_conflicts(added.wheels, declared, whole.target, pins)
    missing = tuple(it.requirement for it in conflicts if it.version is None)
    if not missing:
        return added
    with open_session(missing, whole.target, options.settings, options.cache) as session:
        found = resolve_tree(session, Tree(constraints=constraints_of(whole, session)))
    more = tuple(f"{name}=={version}" for name, version in found.items() if name not in pins)
    return join_locks(added, lock_run(more, whole.target, (), replace(options, extras=(), upgrade=())).lock)


def find_unused(requirements: Sequence[str], below: Lock, above: Lock, options: Options) -> Iterator[str]:
    """Name the requirements locked above a lock that add nothing: another machine's, or unknown extras."""
    locked = {it.name: it for it in (*below.wheels, *above.wheels)}
    environment = marker_environment(below.target)
    with open_session(tuple(requirements), below.target, options.settings, options.cache) as session:
        for it in session.requirements:
            if it.marker and not it.marker.evaluate(dict(environment)):
                yield f"{it} adds nothing: its marker does not hold in this image"
                continue
            wheel = locked.get(canonicalize_name(it.name)) if it.extras else None
            known = session.reader.extras(wheel) if wheel else None
            if wheel and known is not None and (unknown := sorted(set(map(canonicalize_name, it.extras)) - known)):
                yield f"{wheel.name} {wheel.version} has no extra {', '.join(unknown)}: {it} adds nothing for it"


def verify_files(
    locked: LockResult, cache: Path, verified_members: Mapping[Digest, Collection[str]] | None = None
) -> LockResult:
    """Compare what an index sent of wheels with the files that were fetched since; LockError where they differ.

    Of the wheels whose files are here, one stays identical only if all its members are as in RECORD;
    `verified_members` were compared already, by wheel.
    """
    with LateClient(IndexSettings(default=None)) as client:
        reader = FactReader(client, cache, verified_members)
        false = reader.find_false_claims(locked.lock.wheels)
        identical = {it.name for it in locked.proof.with_outcome("identical")}
        wheels = [it for it in locked.lock.wheels if it.name in identical]
        facts, mismatches = reader.all_facts(wheels), reader.mismatches(wheels)
    if false:
        what = f"the index showed other metadata than the files have: {', '.join(wheel.filename for wheel in false)}"
        todo = "find out why before using these files; the statements about their identity are not valid"
        raise LockError(what, where="range requests", todo=todo)
    triples = zip(wheels, facts, mismatches, strict=True)
    reasons = {wheel.name: (known.doubt if known else "") or mismatch for wheel, known, mismatch in triples}
    return replace(locked, proof=locked.proof.with_unknown({name: why for name, why in reasons.items() if why}))


def refuse_changed(before: Lock, after: Lock, where: str) -> None:
    """Refuse files that had other bytes when they were locked before; LockError names them all."""
    known = {wheel.filename: wheel.sha256 for wheel in before.wheels}
    changed = [it for it in after.wheels if known.get(it.filename, it.sha256) != it.sha256]
    if changed:
        head = "files are not what they were when they were locked:"
        lines = [f"  {it.filename}: locked as {known[it.filename]}, the index now has {it.sha256}" for it in changed]
        todo = "find out why the index changed released files; remove the old lock only if that is right"
        raise LockError("\n".join([head, *lines]), where=where, todo=todo)


def _find_needed(
    first: "_FirstLock", requirements: Collection[str], distributions: Iterable[Distribution], options: Options
) -> tuple[str, ...]:
    """Pins of what the run did not import and the locked wheels need; UnlockableError for one of unknown version."""
    if not options.not_imported:
        return ()
    target = first.lock.target
    with open_session((), target, first.settings, options.cache) as session:
        without = f"leave out {ONLY_IMPORTED}"
        declared = read_declared(session.reader, first.lock.wheels, ONLY_IMPORTED, without, options.reporter)
    others = {*options.not_imported} - {name_of(it) for it in requirements}
    new = find_needed(requirements, declared, marker_environment(target), {*declared, *others}) & others
    found = [it for it in distributions if canonicalize_name(it.name) in new]
    if faults := version_faults(found):
        raise UnlockableError(faults, target)
    return tuple(sorted(f"{canonicalize_name(it.name)}=={it.version}" for it in found))


class _FirstLock(NamedTuple):
    """A lock before upgrades and extras, the settings that it was made with, and what it took."""

    lock: Lock
    settings: IndexSettings
    build_sources: tuple[Commit | LockedWheel, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def _first_lock(
    requirements: tuple[str, ...],
    target: Target,
    distributions: Sequence[Distribution],
    options: Options,
    settings: IndexSettings,
    gaps: Gaps | None,
    direct: Mapping[str, Direct | Fault],
) -> _FirstLock:
    """Lock; where that fails, raise the glibc, leave out what is for other systems, build wheels, and lock again."""

    def attempt(settings: IndexSettings, without: Collection[str] = ()) -> Lock:
        with open_session((), target, settings, options.cache) as session:
            return lock(
                tuple(it for it in requirements if name_of(it) not in without),
                target,
                _resolver(options, settings),
                distributions,
                gaps,
                prefer=lambda it: choose_allowed_files(it, distributions, session),
                direct=direct,
                variants=choose_variants(kept, session, options.variant),
            )

    kept = required_distributions(parsed_requirements(requirements), distributions)
    try:
        return _FirstLock(lock=attempt(settings), settings=settings)
    except UnlockableError as error:
        if options.raise_glibc and error.glibc:
            higher = replace(target, glibc=error.glibc)
            return _first_lock(requirements, higher, distributions, options, settings, gaps, direct)
        left_out: dict[str, str] = {}
        if options.system and options.system != "Linux":
            with make_client(settings) as client:
                reasons = {it.name: why_foreign(it, options.system, client) for it in error.faults}
            left_out = {name: why for name, why in reasons.items() if why}
        faults = [it for it in error.faults if it.name not in left_out]
        sources = _find_sources(faults, distributions, settings) if options.build_from_source or not faults else None
        if sources is None:
            raise UnlockableError(faults, target, where=error.where) from error
    outcomes = [build_wheel(source, target, settings, options.cache, options.reporter) for source in sources]
    if failed := [it for it in outcomes if isinstance(it, Fault)]:
        raise UnlockableError(failed, target)
    folders = [str(it.parent) for it in outcomes if isinstance(it, Path)]
    settings = replace(settings, find_links=(*folders, *settings.find_links))
    left = tuple(left_out.items())
    return _FirstLock(lock=attempt(settings, left_out), settings=settings, build_sources=sources, left_out=left)


def _find_sources(
    faults: Iterable[Fault], distributions: Iterable[Distribution], settings: IndexSettings
) -> tuple[Commit | LockedWheel, ...] | None:
    """What a wheel of each fault can be built from; None when there is nothing for one of them."""
    commits = {commit.name: commit for it in distributions if (commit := commit_of(it)) is not None}
    sources: list[Commit | LockedWheel] = []
    with make_client(settings) as client:
        for fault in faults:
            if commit := commits.get(fault.name):
                sources.append(commit)
            elif fault.sdist is not None and fault.sdist.sha256 is not None:
                sources.append(locked_wheel(fault.sdist, size_of(client, fault.sdist.url)))
            else:
                return None
    return tuple(sources)


def _resolver(options: Options, settings: IndexSettings) -> Resolver:
    kind = UvResolver if options.resolver == "uv" else PipToolsResolver
    return kind(settings=settings, cache=options.cache)


def _extend(
    locked: Lock, extras: Sequence[str], resolver: Resolver, session: IndexSession
) -> tuple[Lock, tuple[str, ...]]:
    pins = extra_pins(locked, extras, resolver, session)
    if not pins:
        return locked, ()
    joined = join_locks(locked, resolver.resolve(pins, locked.target))
    return replace(locked, wheels=joined.wheels, yanked=joined.yanked), pins


def _finish_lock(
    first: _FirstLock, distributions: Sequence[Distribution], options: Options, direct: Mapping[str, Direct | Fault]
) -> LockResult:
    """Upgrade and extend a lock where the options say so, and compare it with the run."""
    locked, settings, target = first.lock, first.settings, first.lock.target
    resolver = _resolver(options, settings)
    changes, added = tuple[Change, ...](), tuple[str, ...]()
    folders = tuple(dict.fromkeys(str(it.path.parent) for it in direct.values() if isinstance(it, Direct)))
    places = replace(settings, find_links=(*folders, *settings.find_links))
    with open_session((), target, places, options.cache) as session:
        if options.upgrade:
            pins = upgraded_pins(locked, options.upgrade, options.not_upgraded, session)
            had = required_distributions(parsed_requirements(pins), distributions)
            variants = choose_variants(had, session, options.variant)
            after = lock(pins, locked.target, resolver, distributions, direct=direct, variants=variants)
            locked, changes = after, explain_changes(locked, after, options.upgrade, session)
        if options.extras:
            locked, added = _extend(locked, options.extras, resolver, session)
        absent = {it.name: Absence(it.reason, name_of(it.after or "")) for it in options.changes if it.before}
        unused = dict.fromkeys(sorted({*options.not_imported} - {it.name for it in locked.wheels}), ONLY_IMPORTED)
        absent |= {name: Absence(why) for name, why in (*first.left_out, *unused.items())}
        locked, proof, own_wheels = prove_identity(locked, distributions, session, options.reporter, absent)
        facts = session.reader.all_facts(locked.wheels)
    conflicts = _compare_conflicts(locked, facts, distributions, options.changes)
    names = {wheel.name for wheel in locked.wheels}
    pairs = (pair for it in distributions if canonicalize_name(it.name) in names for pair in it.overwritten)
    owners = {path: name for path, by in pairs if (name := str(canonicalize_name(by))) in names}
    identical = {it.name for it in proof.with_outcome("identical")}
    differing = [it for it in distributions if canonicalize_name(it.name) not in identical]
    reasons = {it.name: it.reason for it in options.changes if it.name in options.dropped}
    drop_reasons = {}
    for name in options.dropped:
        dependants = ", ".join(sorted({it.requirer for it in conflicts if it.name == name}))
        why = f"still required by {dependants}" if dependants else "nothing that stays requires it"
        drop_reasons[name] = f"{reasons[name]}; {why}" if reasons[name] != ONLY_IMPORTED else ONLY_IMPORTED
    reasons |= unused
    drop_reasons |= unused
    locked = replace(
        locked,
        owners=tuple(sorted(owners.items())),
        dropped=tuple(sorted(reasons)),
        drop_reasons=tuple(sorted((name, why) for name, why in reasons.items() if why != REASON)),
    )
    return LockResult(
        lock=locked,
        proof=proof,
        changes=changes,
        added=added,
        conflicts=conflicts,
        required=find_required(locked.wheels, facts, target),
        built=tuple((source.name, describe_source(source)) for source in first.build_sources),
        warnings=(*first.lock.date_warnings, *other_variants(locked, differing, options.variant)),
        source_notes=(
            *own_wheels,
            *note_unhashed(locked, direct),
            *note_other_places(locked, distributions, settings),
            *_note_unused(locked, facts, distributions, options),
        ),
        left_out=(*drop_reasons.items(), *first.left_out),
    )


def _note_unused(
    locked: Lock, facts: Sequence[WheelFacts | None], distributions: Sequence[Distribution], options: Options
) -> Iterator[str]:
    """Say how many of the run's distributions it neither imported nor required for that, where these are many."""
    declared = {wheel.name: known.requires for wheel, known in zip(locked.wheels, facts, strict=True) if known}
    used = {str(canonicalize_name(it.name)) for it in distributions}.difference(options.unimported)
    roots = (used & declared.keys()) | {name_of(it.after) for it in options.changes if it.after}
    strict = {*declared, *options.unimported}
    unused = set(options.unimported) - find_needed(roots, declared, marker_environment(locked.target), strict)
    if len(unused) >= _MANY and len(declared) == len(locked.wheels):
        what = f"{len(unused)} of {len(distributions)} distributions were not imported by the run"
        yield f"{what}, nor required by what was; {ONLY_IMPORTED} leaves them out"


def _compare_conflicts(
    locked: Lock,
    facts: Sequence[WheelFacts | None],
    distributions: Iterable[Distribution],
    changes: Iterable[PinChange],
) -> tuple[Conflict, ...]:
    """The lock's conflicts, each with whether the run had it too; what was replaced counts with its old version."""
    replaced = (it for it in changes if it.before and it.after and "==" in it.before)
    pins = {it.name: f"{it.before}".partition("==")[2] for it in replaced}
    pins |= {wheel.name: wheel.version for wheel in locked.wheels}
    had = {str(canonicalize_name(it.name)): it.version for it in distributions}
    return tuple(
        replace(it, of_run=same_version(had.get(it.name), it.version) if it.version else had.get(it.name) is None)
        for it in find_conflicts(locked.wheels, facts, locked.target, pins)
    )


def _record_warnings(locked: LockResult, run: TrainingManifest, framework: str) -> Iterator[str]:
    """Warn of wheels that the record does not name, and of the framework's requirements that a freeze lacks."""
    if named := locked.proof.with_outcome("added"):
        added = ", ".join(f"{it.name}=={it.version}" for it in named)
        many = f"{len(named)} of {counted(len(locked.lock.wheels), 'wheel')}"
        yield f"the record does not name {many}, and the run may have had other versions: {added}"
    own = (it for it in locked.conflicts if it.requirer.partition(" ")[0] == framework and it.version is None)
    lacking = ", ".join(it.name for it in own if it.of_run)
    if lacking and run.source.format == "pip-freeze":
        todo = "if it does not list everything that was installed, read it with --from requirements"
        yield f"the record has {framework} without {lacking}, which it requires; {todo}"
