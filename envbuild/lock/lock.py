"""The lock of requirements: one wheel for each, or every reason why not; and the pins that change or extend a lock."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import LockError, UsageError
from envbuild.lock.dependencies import Conflict, find_conflict, find_conflicts
from envbuild.lock.faults import Fault, UnlockableError, archive_fault, hash_fault, origin_fault
from envbuild.lock.model import Lock, Target, same_version
from envbuild.lock.resolution import IndexSession, parsed_requirements
from envbuild.lock.resolvers import Resolver, Tree, resolve_tree
from envbuild.lock.settings import local_path
from envbuild.lock.sources import Direct
from envbuild.manifest.packages import Distribution, exact_version, name_of
from envbuild.match.pins import broken_profile_limits
from envbuild.match.stack import Gaps


def lock(
    requirements: tuple[str, ...],
    target: Target,
    resolver: Resolver,
    distributions: Iterable[Distribution] = (),
    gaps: Gaps | None = None,
    prefer: Callable[[Lock], Lock] = lambda it: it,
    direct: Mapping[str, Direct | Fault] | None = None,
) -> Lock:
    """Lock the requirements with `resolver`, and compare the files with the origins of the run's `distributions`.

    `prefer` may replace files by others of the same releases first. With `gaps` dependencies are added.
    A distribution from no index is accepted only as a wheel in a find-links folder: an index may have another project
    under its name. One from an address is locked as in `direct`, by name; without that, `origin_fault` decides.
    UnlockableError names everything that cannot be locked.
    """
    parsed = parsed_requirements(requirements)
    kept = required_distributions(parsed, distributions)
    origin_faults = {
        str(canonicalize_name(item.name)): fault for item in kept if (fault := origin_fault(item)) is not None
    }
    direct_wheels: dict[str, Direct] = {}
    run = {str(canonicalize_name(item.name)): item for item in kept}
    for name, found in (direct or {}).items():
        fault = found.find_fault(target) if isinstance(found, Direct) else found
        if fault and name in run:
            origin_faults[name] = fault
        elif isinstance(found, Direct) and name in run:
            direct_wheels[name] = found
    locked = prefer(_resolve(parsed, target, resolver, gaps, origin_faults, direct_wheels))
    faults = _remaining_faults(locked, origin_faults)
    for wheel in locked.wheels:
        had = run.get(wheel.name)
        changed = (archive_fault(had, wheel) or hash_fault(had, wheel)) if had else None
        faults += [changed] if changed else []
    faults += _known_failures(locked, gaps) if gaps else []
    if faults:
        raise UnlockableError(faults, target)
    return locked


def required_distributions(
    requirements: Sequence[Requirement], distributions: Iterable[Distribution]
) -> list[Distribution]:
    """The distributions that are required in exactly the version of the run."""
    pins = {canonicalize_name(it.name): text for it in requirements if (text := exact_version(it))}
    return [it for it in distributions if same_version(it.version, pins.get(canonicalize_name(it.name), ""))]


def _resolve(
    requirements: Sequence[Requirement],
    target: Target,
    resolver: Resolver,
    gaps: Gaps | None,
    origin_faults: Mapping[str, Fault],
    direct_wheels: Mapping[str, Direct],
) -> Lock:
    """Resolve all but direct wheels, and collect all faults.

    Without gaps in two runs: what came from an index, then what did not, in find-links folders only.
    """
    split = gaps is None  # gaps have to be resolved together with everything else
    names = {it: str(canonicalize_name(it.name)) for it in requirements}
    texts = {name: "" if split else it.requirement for name, it in direct_wheels.items()}
    parts = [Lock(target=target, wheels=tuple(it.wheel for it in direct_wheels.values()))]
    faults: list[Fault] = []
    where = ""
    for local in (False, True):
        own = [it for it in requirements if (split and names[it] in origin_faults) == local]
        asked = tuple(filter(None, (texts.get(names[it], str(it)) for it in own)))
        try:
            parts += [resolver.resolve(asked, target, gaps, local=local)] if asked or not local else []
        except UnlockableError as error:
            faults += [origin_faults.get(fault.name, fault) for fault in error.faults]
            where = where or error.where
    if faults:
        faults += [fault for part in parts for fault in _remaining_faults(part, origin_faults)]
        raise UnlockableError(faults, target, where=where)
    joined = join_locks(*parts)
    direct = tuple(sorted(name for name, it in direct_wheels.items() if local_path(it.wheel.url) is None))
    return replace(joined, date_warnings=tuple(text for part in parts for text in part.date_warnings), direct=direct)


def join_locks(*parts: Lock) -> Lock:
    """The wheels of several locks for one target, and which of them were withdrawn."""
    wheels = sorted((wheel for part in parts for wheel in part.wheels), key=lambda wheel: wheel.name)
    yanked = sorted(pair for part in parts for pair in part.yanked)
    return Lock(target=parts[0].target, wheels=tuple(wheels), yanked=tuple(yanked))


def _remaining_faults(locked: Lock, origin_faults: Mapping[str, Fault]) -> list[Fault]:
    """The faults of wheels that are in no folder of this machine: of those nothing proves the origin."""
    return [
        origin_faults[wheel.name]
        for wheel in locked.wheels
        if wheel.name in origin_faults and local_path(wheel.url) is None
    ]


def _known_failures(locked: Lock, gaps: Gaps) -> list[Fault]:
    """The distributions that are known to fail with the locked version of another."""
    complete = "set source.complete to true in the manifest that `envbuild convert` writes of it"
    return [
        Fault(
            it.pin,
            f"`{it.limit.breaks}` fails with {it.other}: {it.limit.reason}",
            f"take {name_of(it.other)} out of the record, so that one that fits is added, or pin one that fits "
            f"({it.limit.requirement}) by ==; if the run really had both, {complete}",
        )
        for it in broken_profile_limits({wheel.name: wheel.version for wheel in locked.wheels}, gaps.limits)
        if it.limit.breaks
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A distribution that an upgrade changed."""

    name: str
    before: str | None
    """Version; None when it is added."""
    after: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.before or '(not there)'} -> {self.after}: {self.reason}"


def upgraded_pins(
    locked: Lock, upgrades: Sequence[str], not_upgraded: Collection[str], session: IndexSession
) -> tuple[str, ...]:
    """The pins of a lock after `upgrades` (`name`, `name==version`) and what must follow them.

    Names in `not_upgraded` never move: the framework itself, which everything else was matched to. Requirements that
    the lock does not satisfy now stay unsatisfied. UsageError for a name that is not in the lock; LockError if nothing
    fits.
    """
    asked = {str(canonicalize_name(it.name)): it for it in parsed_requirements(upgrades)}
    if absent := sorted(asked.keys() - {it.name for it in locked.wheels}):
        todo = "name a distribution of the run"
        raise UsageError(f"the run does not have {', '.join(absent)}", where="--upgrade-package", todo=todo)
    overrides = tuple(text for name, text in _conflict_overrides(locked, session).items() if name not in asked)
    pins = {it.name: f"{it.name}=={it.version}" for it in locked.wheels}
    # With all of the run's pins preferred, a resolver would rather keep the old release than let others follow.
    framework = [pins[name] for name in sorted(pins.keys() & set(not_upgraded) - asked.keys())]
    newest = _solve(session, [*map(str, asked.values()), *framework], Tree(overrides=overrides))
    stays = {*not_upgraded, *(name for name, _ in locked.yanked)}
    inputs = [f"{name}=={newest[name]}" for name in asked]
    for it in locked.wheels:
        version = Version(it.version)
        if it.name in asked:
            continue
        if it.name in stays or version.local:  # a local build has no index with newer ones
            inputs.append(pins[it.name])
        else:
            inputs.append(f"{it.name}>={it.version}" if version.is_prerelease else it.name)
    tree = Tree(overrides=overrides, preferred=tuple(pins.values()), upgraded=tuple(asked))
    return tuple(f"{name}=={version}" for name, version in sorted(_solve(session, inputs, tree).items()))


def explain_changes(before: Lock, after: Lock, upgrades: Sequence[str], session: IndexSession) -> tuple[Change, ...]:
    """List what an upgrade changed, and which requirement made each follow."""
    old = {it.name: it.version for it in before.wheels}
    asked = {str(canonicalize_name(Requirement(text).name)) for text in upgrades}
    unmet = find_conflicts(after.wheels, session.reader.all_facts(after.wheels), after.target, old)
    reasons = {it.name: f"{it.requirer} requires {it.requirement}" for it in reversed(unmet)}
    return tuple(
        Change(
            name=it.name,
            before=old.get(it.name),
            after=it.version,
            reason="it was asked for" if it.name in asked else reasons.get(it.name, "nothing else fits together"),
        )
        for it in after.wheels
        if not same_version(old.get(it.name), it.version)
    )


def extra_pins(locked: Lock, extras: Sequence[str], resolver: Resolver, session: IndexSession) -> tuple[str, ...]:
    """The pins that `extras` (requirements) add to a lock without moving its own; LockError names both sides."""
    overrides = tuple(_conflict_overrides(locked, session).values())
    tree = Tree(constraints=constraints_of(locked, session), overrides=overrides)
    try:
        found = _solve(session, extras, tree)
    except LockError as error:
        raise _explain_conflict(locked, extras, resolver, session, error) from error
    names = {it.name for it in locked.wheels}
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()) if name not in names)


def constraints_of(locked: Lock, session: IndexSession) -> tuple[str, ...]:
    """The constraints that keep a lock as it is; without a network, folders have the wheels from addresses."""
    return (replace(locked, direct=()) if session.settings.offline else locked).pins


def _solve(session: IndexSession, inputs: Sequence[str], tree: Tree) -> dict[str, str]:
    return resolve_tree(replace(session, requirements=parsed_requirements(inputs)), tree)


def _explain_conflict(
    locked: Lock, extras: Sequence[str], resolver: Resolver, session: IndexSession, error: LockError
) -> LockError:
    """Name what an extra requires and what the lock has instead; `error` where that cannot be found out."""
    pins = {it.name: it.version for it in locked.wheels}
    try:
        free = _solve(session, extras, Tree())
        wheels = resolver.resolve(tuple(f"{name}=={version}" for name, version in free.items()), locked.target).wheels
    except LockError:
        return error
    conflicts: list[Conflict | None] = [find_conflict("the extra", it, pins) for it in parsed_requirements(extras)]
    conflicts += find_conflicts(wheels, session.reader.all_facts(wheels), locked.target, pins)
    sides = [str(it) for it in conflicts if it is not None and it.version is not None]
    if not sides:
        return error
    head = f"{', '.join(extras)} cannot be added to the lock, which nothing may move:"
    todo = "ask for an older release of the extra, or train with the newer one"
    return LockError("\n  - ".join([head, *sides]), where=error.where, todo=todo)


def _conflict_overrides(locked: Lock, session: IndexSession) -> dict[str, str]:
    """Overrides by name that make a resolver accept the lock's conflicts: the run had them too."""
    conflicts = find_conflicts(locked.wheels, session.reader.all_facts(locked.wheels), locked.target)
    never = "; python_version < '0'"
    return {it.name: f"{it.name}=={it.version}" if it.version else f"{it.name} {never}" for it in conflicts}
