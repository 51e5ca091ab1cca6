"""What an image says of itself against its base and its lock: told from manifest and config, without a layer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from packaging.version import Version

from envbuild.errors import BuildError
from envbuild.image.config import CHECK_LINE, OURS, annotations, config_bytes
from envbuild.image.debian.layer import packages_line
from envbuild.image.layers.plan import plan_layers
from envbuild.image.rebase import ENVIRONMENT_LINE, derive_recipe, named_base, named_environment
from envbuild.lock import Lock, Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json, history_lines, manifest_bytes
from envbuild.recipe import USER, Base, Recipe
from envbuild.verify.findings import Finding, compared

_NAMED = 5
"""Layers of others that are shown; the first is what one looks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image, and what it is said to be: a lock on a base."""

    image: Image
    base: Base
    lock: Lock

    @classmethod
    def of(cls, image: Image, base: Base, lock: Lock) -> Self:
        """Give the base the name that the image has it by, as it may come from a mirror; BuildError for bad JSON."""
        named = replace(base, asked=named_base(image)[0])
        return cls(image=_with_history(image), base=named, lock=lock)

    @property
    def own(self) -> tuple[Layer, ...]:
        """The layers above the base, each with the line that the image's history has for it."""
        return self.image.layers[len(self.base.image.layers) :]

    @property
    def lock_there(self) -> Lock:
        """The lock on the base: it stays an image's own when the base is replaced by a patched one."""
        return replace(self.lock, target=self.base.target)

    def recipe(self) -> Recipe:
        """What it was built from if the lock is its own; BuildError where nothing can be."""
        return derive_recipe(self.image, self.base, self.lock_there)


def standing(subject: Subject, recipe: Recipe) -> Iterator[Finding]:
    """Hold everything that the image says of itself against what the lock on this base gives."""
    yield environment_finding(subject, recipe)
    yield _layers(subject, recipe)
    config = config_bytes(recipe, subject.base, _without_prefix(subject.own))
    yield _config(subject.image, config, recipe)
    wanted = Digest.of(manifest_bytes(config, subject.image.layers, annotations(recipe)))
    yield compared(
        "manifest",
        wanted=str(wanted),
        found=str(subject.image.digest),
        ok="it says nothing but what lock, base and layers give",
        differs=f"lock, base and layers give another one, {wanted}",
    )


def base_finding(subject: Subject) -> Finding:
    """Whether the image begins with the layers of the base that it names, and the lock fits that base."""
    base = subject.base
    found, wanted = named_base(subject.image)[1], str(base.digest)
    wrong = _wrong_base(subject)
    stands = f"the image stands on {base.name}, and begins with its layers ({len(base.image.layers)})"
    return Finding(about="base", agrees=not wrong, says=wrong or stands, wanted=wanted, found=found)


def environment_finding(subject: Subject, recipe: Recipe) -> Finding:
    """Whether the image's environment id is that of the lock on its base: the digest over all wheels and settings."""
    wanted, found = str(recipe.environment), named_environment(subject.image)
    return compared(
        "environment",
        wanted=wanted,
        found=found,
        ok=f"{recipe.environment.short} is the lock's {len(recipe.wheels)} wheels on that base",
        differs=f"the image says {found or 'none'}, and the lock on that base gives {wanted}",
    )


def _wrong_base(subject: Subject) -> str:
    """Why the image does not stand on the base; empty where it does."""
    image, base = subject.image, subject.base
    said = named_base(image)[1]
    if said not in (str(base.digest), str(base.image.digest)):
        return f"the image says that it stands on {said or 'no base'}, which is not {base.name} ({base.digest})"
    pairs = [[(it.descriptor.digest, it.diff_id) for it in one.layers] for one in (image, base.image)]
    if pairs[0][: len(pairs[1])] != pairs[1]:
        return f"the image's first {len(pairs[1])} layers are not those of {base.name}"
    return _wrong_target(subject.lock.target, base.target)


def _wrong_target(locked: Target, base: Target) -> str:
    """Why the lock's wheels cannot be meant for the base; another patch release of Python is no reason."""
    minors = (locked.python_minor, locked.machine), (base.python_minor, base.machine)
    if minors[0] != minors[1]:
        there, here = (f"Python {python} on {machine}" for python, machine in minors)
        return f"the lock is for {there}, and the base has {here}"
    if Version(base.glibc) < Version(locked.glibc):
        return f"the lock is for glibc {locked.glibc}, and the base has {base.glibc}"
    return ""


def _layers(subject: Subject, recipe: Recipe) -> Finding:
    """Whether all layers on the base are of envbuild, and those that the lock gives are there by name."""
    own = _without_prefix(subject.own)
    plans = plan_layers(recipe)
    lines = {it.created_by for it in own}
    lacking = [plan for plan in plans if plan.label not in lines]
    foreign = [it.created_by or "(no history)" for it in subject.own if not it.created_by.startswith(OURS)]
    faults = [f"it lacks that of {plan.label}" for plan in lacking]
    if recipe.packages and (line := packages_line(recipe.packages)) not in lines:
        faults.append(f"it lacks that of {line}")
    faults += [f"it lacks that of the {line}" for line in (ENVIRONMENT_LINE, CHECK_LINE) if line not in lines]
    faults += [f"this one is not of envbuild: {line[:200]}" for line in foreign[:_NAMED]]
    total, below = len(subject.image.layers), len(subject.base.image.layers)
    return Finding(
        about="layers",
        agrees=not faults,
        says="; ".join(faults) or f"{total} layers and diff ids: {below} of the base, {total - below} of the lock",
        packages=tuple(f"{wheel.name} {wheel.version}" for plan in lacking for wheel in plan.wheels),
    )


def _config(image: Image, expected: bytes, recipe: Recipe) -> Finding:
    wanted = Digest.of(expected)
    changed = ", ".join(_changed(json.loads(expected), json.loads(image.config)))
    finding = compared(
        "config",
        wanted=str(wanted),
        found=str(image.config_digest),
        ok="it is what base, variables and layers give, byte for byte",
        differs=f"it is not what base, variables and layers give: {changed or 'the same values in other bytes'}",
    )
    if recipe.user == USER:
        return finding
    says = f"the image runs as user {recipe.user or 'root'}, and envbuild's run as {USER}"
    return Finding(about="config", agrees=False, says=says, wanted=USER, found=recipe.user)


def _changed(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The keys whose values are others; below `config`, where most can be set, the keys there."""
    for key in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(key), found.get(key)
        if key == "config" and isinstance(one, dict) and isinstance(other, dict):
            yield from _changed(one, other)
        elif one != other:
            yield key


def _with_history(image: Image) -> Image:
    """The image whose layers have the whole lines of its history, as one that was made here has them without a prefix.

    BuildError where its own words cannot be read, or written again.
    """
    try:
        config = json.loads(image.config)
        canonical_json([config, json.loads(image.manifest)])  # half a surrogate pair can be parsed, but not written
        lines = history_lines(config, len(image.layers))
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError("the image's config or manifest is not valid JSON", where=str(image.digest)) from error
    layers = tuple(replace(it, created_by=line) for it, line in zip(image.layers, lines, strict=True))
    return replace(image, layers=layers)


def _without_prefix(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(replace(it, created_by=it.created_by.removeprefix(OURS)) for it in layers)
