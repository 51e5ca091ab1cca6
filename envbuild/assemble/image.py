"""The assembler: layers in parallel, then config and manifest."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from envbuild.assemble.archive import WheelArchive, check_locked
from envbuild.assemble.cache import LayerCache
from envbuild.assemble.config import config_bytes, environment_files
from envbuild.assemble.install import InstalledFile, Scheme, installed_files
from envbuild.assemble.layer import LayerFile, Link, write_layer
from envbuild.assemble.overlap import Overlap, find_overlaps
from envbuild.assemble.plan import LayerPlan, check_depth, plan_layers
from envbuild.errors import BuildError
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, LAYER_GZIP, Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.recipe import Base, Recipe

_CORES = os.cpu_count() or 1
_AT_ONCE = 4
"""Layers that are written at a time: each has parts of itself in memory, and is worked on by all cores."""
Report = Callable[[str, int, int], None]
"""What is being made, bytes done, bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The image, and what there is to say about it."""

    image: Image
    overlaps: tuple[Overlap, ...]


@dataclass(frozen=True, slots=True)
class _Wheel:
    archive: WheelArchive
    files: Sequence[InstalledFile]


def wheels_to_read(recipe: Recipe, cache: LayerCache) -> tuple[LockedWheel, ...]:
    """The wheels whose files `assemble` needs: those of layers that are not in the cache.

    All of them where it is not known yet which paths several of them have.
    """
    found = _kept_overlaps(recipe, cache)
    if found is None:
        return recipe.wheels
    lacking = {wheel for plan in plan_layers(recipe) if not cache.get(plan.key) for wheel in plan.wheels}
    winners = {it.winner for it in found} if found and not cache.get(_overlap_key(recipe, found)) else set()
    return tuple(wheel for wheel in recipe.wheels if wheel in lacking | winners)


def assemble(recipe: Recipe, base: Base, wheels: Mapping[Digest, Path], cache: LayerCache, report: Report) -> Assembled:
    """Make the image of a recipe from verified wheel files (by their sha256); WheelError or BuildError else.

    The files of `wheels_to_read` are enough.
    """
    plans = plan_layers(recipe)
    check_depth(len(plans) + 2, len(base.image.layers))
    with ExitStack() as stack:
        opened = _Opened(stack, recipe, wheels)
        overlaps = _overlaps(recipe, cache, opened)
        maker = _Maker(recipe, cache, stack.enter_context(ThreadPoolExecutor(_CORES)))
        layers = maker.wheel_layers(plans, opened, report)
        layers.append(maker.environment_layer())
        if overlaps:
            layers.append(maker.overlap_layer(overlaps, opened))
    config = config_bytes(recipe, base, layers)
    # The base's name is left out: the same base has different names in different places, and must give one digest.
    annotations = {
        "org.opencontainers.image.base.digest": str(recipe.base_digest),
        ENVIRONMENT: str(recipe.environment),
    }
    everything = (*base.image.layers, *layers)
    image = Image(manifest_bytes(config, everything, annotations), config, everything)
    return Assembled(image=image, overlaps=tuple(overlaps))


class _Opened:
    """Wheels, each opened when it is first asked for; from several threads."""

    def __init__(self, stack: ExitStack, recipe: Recipe, paths: Mapping[Digest, Path]) -> None:
        self._stack, self._paths = stack, paths
        self._scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        self._found: dict[LockedWheel, _Wheel] = {}
        self._lock = threading.Lock()

    def __getitem__(self, wheel: LockedWheel) -> _Wheel:
        with self._lock:
            if wheel not in self._found:
                self._found[wheel] = self._open(wheel)
            return self._found[wheel]

    def _open(self, wheel: LockedWheel) -> _Wheel:
        path = self._paths.get(wheel.sha256)
        if path is None:
            what = "a layer has left the cache since this run looked for it"
            raise BuildError(what, where=wheel.filename, todo="run again, while nobody prunes the cache")
        check_locked(path, wheel.filename, wheel.size)
        archive = self._stack.enter_context(WheelArchive(path, wheel.filename))
        return _Wheel(archive, installed_files(archive, self._scheme))


def _overlaps(recipe: Recipe, cache: LayerCache, opened: _Opened) -> Sequence[Overlap]:
    """What was found before for the same wheels, else what their directories say."""
    kept = _kept_overlaps(recipe, cache)
    if kept is not None:
        return kept
    found = find_overlaps({wheel: opened[wheel].files for wheel in recipe.wheels})
    cache.note(_wheels_key(recipe), [[it.path, it.winner.name, *it.losers] for it in found])
    return found


def _kept_overlaps(recipe: Recipe, cache: LayerCache) -> list[Overlap] | None:
    by_name = {wheel.name: wheel for wheel in recipe.wheels}
    rows = cache.noted(_wheels_key(recipe))
    if not isinstance(rows, list):
        return None
    try:
        return [Overlap(path, by_name[name], tuple(losers)) for path, name, *losers in rows]
    except (KeyError, TypeError, ValueError):
        return None


def _wheels_key(recipe: Recipe) -> Digest:
    wheels = [[wheel.filename, str(wheel.sha256)] for wheel in recipe.wheels]
    return Digest.of(
        canonical_json(["overlaps of", recipe.layer_format, recipe.prefix, recipe.target.python_minor, wheels])
    )


def _overlap_key(recipe: Recipe, overlaps: Sequence[Overlap]) -> Digest:
    value = [[overlap.path, str(overlap.winner.sha256), overlap.winner.filename] for overlap in overlaps]
    return Digest.of(
        canonical_json(["overlaps", recipe.layer_format, recipe.prefix, recipe.target.python_minor, value])
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    """Finds layers in the cache, or makes them."""

    recipe: Recipe
    cache: LayerCache
    pool: Executor
    """Works on the parts of all layers."""

    def wheel_layers(self, plans: Sequence[LayerPlan], opened: _Opened, report: Report) -> list[Layer]:
        total, done = sum(wheel.size for wheel in self.recipe.wheels), 0
        made: list[Layer] = []
        with ThreadPoolExecutor(min(_CORES, _AT_ONCE)) as several:
            futures = [several.submit(self._wheel_layer, plan, opened) for plan in plans]
            try:
                for plan, future in zip(plans, futures, strict=True):
                    made.append(future.result())
                    done += sum(wheel.size for wheel in plan.wheels)
                    report("assembling", done, total)
            except BaseException:
                several.shutdown(wait=False, cancel_futures=True)
                raise
        return made

    def environment_layer(self) -> Layer:
        recipe = self.recipe
        files, links = environment_files(recipe)
        value = [recipe.layer_format, recipe.prefix, recipe.python_path, recipe.target.python]
        key = Digest.of(canonical_json(["environment", value]))
        return self._layer("virtual environment", key, lambda: files, links)

    def overlap_layer(self, overlaps: Sequence[Overlap], opened: _Opened) -> Layer:
        key = _overlap_key(self.recipe, overlaps)
        return self._layer("paths that several packages share", key, lambda: _winning_files(overlaps, opened))

    def _wheel_layer(self, plan: LayerPlan, opened: _Opened) -> Layer:
        return self._layer(plan.label, plan.key, lambda: _files_of(plan, opened))

    def _layer(
        self, label: str, key: Digest, files: Callable[[], Sequence[LayerFile]], links: Sequence[Link] = ()
    ) -> Layer:
        cached = self.cache.get(key) or self.cache.make(
            key, lambda sink: write_layer(sink, self.recipe.prefix, files(), self.pool, links)
        )
        descriptor = Descriptor(LAYER_GZIP, cached.result.digest, cached.result.size)
        return Layer(descriptor, cached.result.diff_id, partial(_open_binary, cached.path), label, cached.reused)


def _files_of(plan: LayerPlan, opened: _Opened) -> list[LayerFile]:
    # in the order of the lock, so that the later wheel wins where two of them have the same path
    return list(
        {
            file.path: LayerFile(file, opened[wheel].archive) for wheel in plan.wheels for file in opened[wheel].files
        }.values()
    )


def _winning_files(overlaps: Sequence[Overlap], opened: _Opened) -> list[LayerFile]:
    """The winner of each overlap goes on top, as the order of the layers is by size and not that of the lock."""
    return [
        LayerFile(
            next(file for file in opened[overlap.winner].files if file.path == overlap.path),
            opened[overlap.winner].archive,
        )
        for overlap in overlaps
    ]


def _open_binary(path: Path) -> BinaryIO:
    return path.open("rb")
