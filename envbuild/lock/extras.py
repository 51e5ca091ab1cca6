"""More distributions above a lock: what it has stays as it is, and what it lacks is locked beside it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from envbuild.lock.conflicts import find_conflicts, marker_environment
from envbuild.lock.following import constraints_of
from envbuild.lock.model import Lock
from envbuild.lock.resolving import asking
from envbuild.lock.run import Options, lock_extras, lock_run
from envbuild.lock.uv import Tree, resolve_tree


def lock_above(requirements: Sequence[str], below: Lock, options: Options) -> Lock:
    """Lock what requirements add to an environment, with each of its own wheels as a constraint.

    The result has the new wheels alone, so no pin can move; it is for the same target. LockError names both sides where
    a requirement and the environment exclude each other.
    """
    whole, _ = lock_extras(below, tuple(requirements), options)
    added = _without(whole, {it.name for it in below.wheels})
    lacking = _lacking(whole, added, options)
    return _joined(added, lacking) if lacking.wheels else added


def useless(requirements: Sequence[str], below: Lock, above: Lock, options: Options) -> Iterator[str]:
    """Say what of requirements that were locked above a lock adds nothing: another machine's, or unknown extras."""
    there = {it.name: it for it in (*below.wheels, *above.wheels)}
    environment = marker_environment(below.target)
    with asking(tuple(requirements), below.target, options.settings, options.cache) as question:
        for it in question.requirements:
            if it.marker and not it.marker.evaluate(dict(environment)):
                yield f"{it} adds nothing: its marker does not hold in this image"
                continue
            wheel = there.get(canonicalize_name(it.name)) if it.extras else None
            known = question.reader.extras(wheel) if wheel else None
            if wheel and known is not None and (unknown := sorted(set(map(canonicalize_name, it.extras)) - known)):
                yield f"{wheel.name} {wheel.version} has no extra {', '.join(unknown)}: {it} adds nothing for it"


def _lacking(whole: Lock, added: Lock, options: Options) -> Lock:
    """What the new wheels require and the run was without though it required it too: extras of a run leave that out."""
    pins = {it.name: it.version for it in whole.wheels}
    with asking((), whole.target, options.settings, options.cache) as question:
        declared = question.reader.all_facts(added.wheels)
        missing = [it for it in find_conflicts(added.wheels, declared, whole.target, pins) if it.version is None]
    if not missing:
        return Lock(target=whole.target, wheels=())
    wanted = tuple(it.requirement for it in missing)
    with asking(wanted, whole.target, options.settings, options.cache) as question:
        found = resolve_tree(question, Tree(constraints=constraints_of(whole, question)))
    more = tuple(f"{name}=={version}" for name, version in found.items() if name not in pins)
    return lock_run(more, whole.target, (), replace(options, extras=(), upgrade=())).lock


def _without(lock: Lock, names: Collection[str]) -> Lock:
    wheels = tuple(it for it in lock.wheels if it.name not in names)
    return Lock(target=lock.target, wheels=wheels, yanked=tuple(it for it in lock.yanked if it[0] not in names))


def _joined(one: Lock, other: Lock) -> Lock:
    wheels = tuple(sorted((*one.wheels, *other.wheels), key=lambda it: it.name))
    return Lock(target=one.target, wheels=wheels, yanked=tuple(sorted((*one.yanked, *other.yanked))))
