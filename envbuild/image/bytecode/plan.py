"""Which wheel's bytecode goes into which layer: a fixed rule that reads nothing but the lock."""

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename

from envbuild.image.bytecode.interpreter import FORMAT
from envbuild.image.overlap import Overlap
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe

_LARGE = 64 << 20
"""Bytes of a wheel: from there on the bytecode is worth what a layer of its own costs whoever pulls it."""
_MOST_LARGE = 4
MOST_LAYERS = _MOST_LARGE + 2
"""Large wheels, the other wheels, the base's standard library."""


@dataclass(frozen=True, slots=True)
class BytecodePlan:
    """The wheels whose bytecode shares a layer, sorted by name."""

    wheels: tuple[LockedWheel, ...]
    key: Digest
    """Everything that decides the layer's bytes. No interpreter need run to tell it."""

    @property
    def label(self) -> str:
        """What the image's history says."""
        return "bytecode of " + ", ".join(f"{wheel.name} {wheel.version}" for wheel in self.wheels)


def plan_bytecode(recipe: Recipe, interpreter: str, overlaps: Sequence[Overlap]) -> tuple[BytecodePlan, ...]:
    """Give the largest wheels with code a layer each, and the others one."""
    by_size = sorted(recipe.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    large = [wheel for wheel in by_size if wheel.size >= _LARGE and _has_code(wheel)][:_MOST_LARGE]
    others = sorted(set(by_size) - set(large), key=lambda wheel: wheel.name)
    plans = [[wheel] for wheel in large] + ([others] if others else [])
    return tuple(BytecodePlan(tuple(wheels), _key(recipe, interpreter, wheels, overlaps)) for wheels in plans)


def lost_paths(wheel: LockedWheel, overlaps: Sequence[Overlap]) -> list[str]:
    """Sources of a wheel that another wheel's files replace: their bytecode must not hide the other's."""
    return sorted(it.path for it in overlaps if it.path.endswith(".py") and wheel.name in it.losers)


def wheel_key(recipe: Recipe, interpreter: str, wheel: LockedWheel, overlaps: Sequence[Overlap]) -> Digest:
    """Everything that decides the bytecode of one wheel."""
    said = [FORMAT, interpreter, recipe.prefix, recipe.target.python_minor]
    return Digest.of(canonical_json(["bytecode", said, str(wheel.sha256), lost_paths(wheel, overlaps)]))


def library_key(recipe: Recipe, interpreter: str) -> Digest:
    """Everything that decides the bytecode of the base's standard library."""
    said = [FORMAT, recipe.layer_format, interpreter, str(recipe.base_digest), recipe.python_path]
    return Digest.of(canonical_json(["bytecode of the standard library", said]))


def _has_code(wheel: LockedWheel) -> bool:
    """A large wheel for one platform and any Python holds libraries of another language, as NVIDIA's do."""
    return any(tag.abi != "none" or tag.platform == "any" for tag in parse_wheel_filename(wheel.filename)[3])


def _key(recipe: Recipe, interpreter: str, wheels: Sequence[LockedWheel], overlaps: Sequence[Overlap]) -> Digest:
    keys = [[wheel.filename, str(wheel_key(recipe, interpreter, wheel, overlaps))] for wheel in wheels]
    return Digest.of(canonical_json(["bytecode layer", recipe.layer_format, keys]))
