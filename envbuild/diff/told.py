"""What manifests, models, machines and locks say of a run, and what two of them can be held against each other by."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.utils import canonicalize_name, canonicalize_version

from envbuild.diff.facts import (
    PREDICTIONS,
    START,
    Differing,
    Facts,
    differing,
    facts_of_lock,
    facts_of_manifest,
    facts_of_section,
)
from envbuild.lock.model import Lock
from envbuild.manifest.artifact import Model
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import shape
from envbuild.stamp import Stamp

_NOT_OF_A_HOST = (
    "model", "model_uri", "golden", "code", "entry", "numerics", "source", "created", "disagreements",
    "contract.data", "contract.preprocessing",
)  # fmt: skip
"""What is of a run, and of no machine that a run could begin on."""
_OF_A_PROCESS = re.compile(r"native\.(process|(libraries|thread_pools)\..*|components\..*\.(loaded|path))")
"""What a process that has just started has not loaded yet."""

_PLACE = re.compile(r"model_uri|model\.uri|model\.files\..*\.generation")
"""Where a model lies, which is another place for each copy."""
_DIGEST = re.compile(r"model\.files\.(.*)\.(?:sha256|crc32c)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What something says of a run, and of what it says nothing."""

    facts: Facts
    sections: frozenset[str]
    """The first words of the facts that it could have."""
    silent: tuple[str, ...] = ()
    """Dotted names of facts that it cannot know."""
    packages: Mapping[str, str | None]
    """Versions of its distributions by their normalised names; None where nobody knows."""
    complete: bool = True
    """Whether distributions that it does not have were not there."""
    is_model: bool = False
    """Whether it is a model, of which there may be copies."""


def told_by_manifest(manifest: TrainingManifest) -> Told:
    """What a run's record says."""
    return Told(
        facts=facts_of_manifest(manifest),
        sections=frozenset(TrainingManifest.__dataclass_fields__),
        silent=manifest.source.unknown,
        packages={canonicalize_name(it.name): it.version for it in manifest.distributions},
        complete=manifest.source.complete,
    )


def told_by_host(manifest: TrainingManifest) -> Told:
    """What the capture of a machine says on which no run has begun."""
    told = told_by_manifest(manifest)
    return replace(told, silent=(*told.silent, *_NOT_OF_A_HOST))


def told_by_model(
    model: Model | None, manifest: TrainingManifest | None, stamp: Stamp | None, locks: Mapping[str, Lock]
) -> Told:
    """What a model says: its files now, and of a stamped one the run's record, the images and their locks by slot."""
    run = replace(manifest, model=model) if manifest else None
    facts = dict(facts_of_manifest(run) if run else facts_of_section("model", shape(model)) if model else {})
    facts |= facts_of_section("stamp", _stamp_facts(stamp)) if stamp else {}
    for slot, lock in locks.items():
        facts |= {(group, f"lock.{slot}.{name}"): text for (group, name), text in facts_of_lock(lock).items()}
    told = told_by_manifest(run) if run else Told(facts={}, sections=frozenset({"model"}), packages={}, complete=False)
    more = frozenset({"stamp", "lock"}) if stamp else frozenset()
    return replace(told, facts=facts, sections=told.sections | more, is_model=True)


def told_by_lock(lock: Lock) -> Told:
    """What a lock says, to another lock."""
    packages: dict[str, str | None] = {str(canonicalize_name(it.name)): it.version for it in lock.wheels}
    return Told(facts=facts_of_lock(lock), sections=frozenset(), packages=packages)


def differing_told(before: Told, after: Told) -> Differing:
    """Hold against each other what both could say; of packages what both know."""
    sections, silent = before.sections & after.sections, (*before.silent, *after.silent)
    facts = [_kept(side.facts, lambda name: _speaks(name, sections, silent)) for side in (before, after)]
    if before.is_model or after.is_model:
        facts = _wherever(*facts)
    if len({side.get((START, "native.process")) for side in facts}) > 1:
        facts = [_kept(side, lambda name: not _OF_A_PROCESS.fullmatch(name)) for side in facts]
    one, other = _common_slots(*facts)
    return differing(_without_gaps(one, other, after), _without_gaps(other, one, before))


def differing_locks(before: Told, after: Told) -> Differing:
    """Hold two locks against each other, wheel by wheel."""
    return differing(before.facts, after.facts)


def differing_packages(before: Told, after: Told) -> Differing:
    """Hold only the versions of the distributions against each other, where both are known."""
    sides = []
    for one, other in ((before, after), (after, before)):
        unknown = {name for name, version in other.packages.items() if version is None}
        names = {it for it in one.packages if it not in unknown and (other.complete or it in other.packages)}
        sides.append({(PREDICTIONS, it): _version(one.packages[it]) for it in names if one.packages[it] is not None})
    return differing(*sides)


def _stamp_facts(stamp: Stamp) -> dict[str, Any]:
    images = {
        " ".join(it.slot): {
            "image": it.image,
            "environment": it.environment.hex,
            "overrides": dict(it.overrides),
            "identity": it.identity or "unknown",
        }
        for it in stamp.images
    }
    return {**images, "created": stamp.created, "envbuild": stamp.envbuild}


def _wherever(before: Facts, after: Facts) -> list[Facts]:
    """Without where a model lies, and without digests of files of which the other side has only those of another kind.

    Of a folder here sha256 is known, and of one in a bucket what Cloud Storage says.
    """
    files = [{match[1] for _, name in side if (match := _DIGEST.fullmatch(name))} for side in (before, after)]
    both = files[0] & files[1]
    known = [{name for _, name in side if _DIGEST.fullmatch(name)} for side in (before, after)]

    def counts(name: str) -> bool:
        digest = _DIGEST.fullmatch(name)
        unknown = digest and digest[1] in both and not all(name in side for side in known)
        return not (_PLACE.fullmatch(name) or unknown)

    return [_kept(side, counts) for side in (before, after)]


def _kept(facts: Facts, which: Callable[[str], object]) -> Facts:
    """The facts whose names are wanted."""
    return {key: text for key, text in facts.items() if which(key[1])}


def _speaks(name: str, sections: frozenset[str], silent: Sequence[str]) -> bool:
    return name.partition(".")[0] in sections and not any(f"{name}.".startswith(f"{it}.") for it in silent)


def _common_slots(before: Facts, after: Facts) -> list[Facts]:
    """Without the locks of images that only one has: the stamp says already that there is no such image."""
    slots = [{_slot(name) for _, name in side if name.startswith("lock.")} for side in (before, after)]
    both = slots[0] & slots[1]
    return [_kept(side, lambda name: not name.startswith("lock.") or _slot(name) in both) for side in (before, after)]


def _slot(name: str) -> str:
    return name.split(".")[1]


def _without_gaps(facts: Facts, others: Facts, by: Told) -> Facts:
    """Leave out distributions that the other side need not have listed."""
    if by.complete:
        return facts
    listed = {name.split(".")[1] for _, name in others if name.startswith("distributions.")}
    return _kept(facts, lambda name: not name.startswith("distributions.") or name.split(".")[1] in listed)


def _version(text: str | None) -> str:
    return canonicalize_version(text or "", strip_trailing_zero=False)
