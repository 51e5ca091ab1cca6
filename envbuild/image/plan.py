"""Which wheel goes into which layer: a fixed rule that reads nothing but the lock."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from envbuild.errors import BuildError
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe

_LARGE = 32 << 20
"""A wheel of this many bytes has a layer to itself, so that it is reused whatever changes beside it.

Smaller ones are not worth it: engines unpack one layer after the other, and each costs them 0.1 to 0.15 s.
"""
_MEDIUM = 1 << 20
"""Wheels of this many bytes are kept apart from the small ones, which change most often and then cost little."""
_MOST_LARGE, _MEDIUM_GROUPS = 22, 2
MOST_WITH_BASE = 100
"""Engines mount one file system a layer and stop near 125; users put layers on top."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The wheels of one layer, sorted by name."""

    wheels: tuple[LockedWheel, ...]
    key: Digest
    """Everything that decides the layer's bytes."""

    @property
    def paths(self) -> Digest:
        """The key of what is noted of the paths in its wheels."""
        return Digest.of(canonical_json(["paths of", str(self.key)]))

    @property
    def label(self) -> str:
        """What the image's history says."""
        return ", ".join(f"{wheel.name} {wheel.version}" for wheel in self.wheels)


def plan_layers(recipe: Recipe) -> tuple[LayerPlan, ...]:
    """Give large wheels a layer each, largest first; share out the others by size and a hash of their name.

    Such a wheel's group depends on nothing but itself, so a change to one package changes one group.
    """
    by_size = sorted(recipe.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    large = [wheel for wheel in by_size if wheel.size >= _LARGE][:_MOST_LARGE]
    groups: dict[int, list[LockedWheel]] = {}
    for wheel in by_size[len(large) :]:
        groups.setdefault(_group(wheel), []).append(wheel)
    shared = [sorted(groups[number], key=lambda wheel: wheel.name) for number in sorted(groups)]
    return tuple(_plan(recipe, wheels) for wheels in [[wheel] for wheel in large] + shared)


def _group(wheel: LockedWheel) -> int:
    """Small ones come last, in a group of their own."""
    return sha256(wheel.name.encode()).digest()[0] % _MEDIUM_GROUPS if wheel.size >= _MEDIUM else _MEDIUM_GROUPS


def _plan(recipe: Recipe, wheels: Sequence[LockedWheel]) -> LayerPlan:
    key = {
        "format": recipe.layer_format,
        "prefix": recipe.prefix,
        "python": recipe.target.python_minor,
        "wheels": [[wheel.filename, str(wheel.sha256)] for wheel in wheels],
    }
    return LayerPlan(tuple(wheels), Digest.of(canonical_json(key)))


def check_depth(ours: int, base: int) -> None:
    """Refuse an image that engines could not mount."""
    if ours + base > MOST_WITH_BASE:
        raise BuildError(
            f"the image would have {ours + base} layers, more than the {MOST_WITH_BASE} that every engine can mount",
            where=f"{base} layers of the base, {ours} of the environment",
            todo="use a base with fewer layers (squash it, or build one from Dockerfile.base)",
        )
