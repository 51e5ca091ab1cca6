"""What a lock needs besides the run's pins: a newer release and what must follow it, or extras under it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import LockError, UsageError
from envbuild.lock.conflicts import Conflict, find_conflict, find_conflicts
from envbuild.lock.model import Lock, Resolver
from envbuild.lock.resolving import Question, parsed_requirements
from envbuild.lock.tags import same_version
from envbuild.lock.uv import Tree, resolve_tree


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


def upgraded_pins(locked: Lock, wanted: Sequence[str], fixed: Collection[str], question: Question) -> tuple[str, ...]:
    """The pins of a lock after an upgrade of `wanted` (`name`, `name==version`) and of what must follow.

    `fixed` names never move: the framework itself, which all else was matched to. What the lock does not hold already
    is left as it is. UsageError for a name that is not in the lock; LockError when nothing fits, in uv's words.
    """
    asked = _wanted(locked, wanted)
    kept = _as_it_is(find_conflicts(locked.wheels, question.reader.all_facts(locked.wheels), locked.target))
    overrides = tuple(text for name, text in kept.items() if name not in asked)
    pins = {it.name: f"{it.name}=={it.version}" for it in locked.wheels}
    # With all of the run's pins preferred, a resolver would rather keep the old release than let others follow.
    framework = [pins[name] for name in sorted(pins.keys() & set(fixed) - asked.keys())]
    newest = _tree(question, [*map(str, asked.values()), *framework], Tree(overrides=overrides))
    stays = {*fixed, *(name for name, _ in locked.yanked)}
    free = [_may_move(it.name, it.version, it.name in stays) for it in locked.wheels if it.name not in asked]
    tree = Tree(overrides=overrides, preferred=tuple(pins.values()), upgraded=tuple(asked))
    found = _tree(question, [*(f"{name}=={newest[name]}" for name in asked), *free], tree)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


def _tree(question: Question, inputs: Sequence[str], tree: Tree) -> dict[str, str]:
    return resolve_tree(replace(question, requirements=parsed_requirements(inputs)), tree)


def explain_changes(before: Lock, after: Lock, wanted: Sequence[str], question: Question) -> tuple[Change, ...]:
    """Say what an upgrade changed, and which requirement made each follow."""
    old = {it.name: it.version for it in before.wheels}
    asked = {str(canonicalize_name(Requirement(text).name)) for text in wanted}
    unmet = find_conflicts(after.wheels, question.reader.all_facts(after.wheels), after.target, old)
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


def extra_pins(locked: Lock, extras: Sequence[str], resolver: Resolver, question: Question) -> tuple[str, ...]:
    """The pins that `extras` (requirements) add to a lock, which moves none of its own; LockError names both sides."""
    kept = _as_it_is(find_conflicts(locked.wheels, question.reader.all_facts(locked.wheels), locked.target))
    try:
        tree = Tree(constraints=constraints_of(locked, question), overrides=tuple(kept.values()))
        found = _tree(question, extras, tree)
    except LockError as error:
        raise _both_sides(locked, extras, resolver, question, error) from error
    held = {it.name for it in locked.wheels}
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()) if name not in held)


def constraints_of(locked: Lock, question: Question) -> tuple[str, ...]:
    """What keeps a resolver from moving anything in a lock; without a network, folders have what has an address."""
    return (replace(locked, direct=()) if question.settings.offline else locked).pins


def _both_sides(
    locked: Lock, extras: Sequence[str], resolver: Resolver, question: Question, error: LockError
) -> LockError:
    """Name what an extra requires and what the lock has instead; uv's own words where that cannot be found out."""
    pins = {it.name: it.version for it in locked.wheels}
    try:
        free = _tree(question, extras, Tree())
        wheels = resolver.resolve(tuple(f"{name}=={version}" for name, version in free.items()), locked.target).wheels
    except LockError:
        return error
    found = [find_conflict("the extra", it, pins) for it in parsed_requirements(extras)]
    found += find_conflicts(wheels, question.reader.all_facts(wheels), locked.target, pins)
    sides = [str(it) for it in found if it is not None and it.version is not None]
    if not sides:
        return error
    head = f"{', '.join(extras)} cannot be added to the lock, which nothing may move:"
    todo = "ask for an older release of the extra, or train with the newer one"
    return LockError("\n  - ".join([head, *sides]), where=error.where, todo=todo)


def _wanted(locked: Lock, wanted: Sequence[str]) -> Mapping[str, Requirement]:
    asked = {str(canonicalize_name(it.name)): it for it in parsed_requirements(wanted)}
    absent = sorted(asked.keys() - {it.name for it in locked.wheels})
    if absent:
        todo = "name a distribution of the run"
        raise UsageError(f"the run does not have {', '.join(absent)}", where="--upgrade-package", todo=todo)
    return asked


def _as_it_is(conflicts: Iterable[Conflict]) -> dict[str, str]:
    """Overrides by name that make a resolver accept what is there and miss what is not: the run had it so."""
    never = "; python_version < '0'"
    return {it.name: f"{it.name}=={it.version}" if it.version else f"{it.name} {never}" for it in conflicts}


def _may_move(name: str, version: str, stays: bool) -> str:
    """The requirement for a distribution that others may move; a local build has no index to move on."""
    parsed = Version(version)
    if stays or parsed.local:
        return f"{name}=={version}"
    return f"{name}>={version}" if parsed.is_prerelease else name
