"""The assembler: layers in parallel, then config and manifest."""

import os
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
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Image, Layer, canonical_json, manifest_bytes
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


def assemble(recipe: Recipe, base: Base, wheels: Mapping[Digest, Path], cache: LayerCache, report: Report) -> Assembled:
    """Make the image of a recipe from verified wheel files (by their sha256); WheelError or BuildError else."""
    plans = plan_layers(recipe)
    check_depth(len(plans) + 2, len(base.image.layers))
    with ExitStack() as stack:
        opened = {wheel: _open(stack, wheel, wheels[wheel.sha256], recipe) for wheel in recipe.wheels}
        overlaps = find_overlaps({wheel: found.files for wheel, found in opened.items()})
        maker = _Maker(recipe, cache, stack.enter_context(ThreadPoolExecutor(_CORES)))
        layers = maker.wheel_layers(plans, opened, report)
        layers.append(maker.environment_layer())
        if overlaps:
            layers.append(maker.overlap_layer(overlaps, opened))
    config = config_bytes(recipe, base, layers)
    # The base's name is left out: the same base has different names in different places, and must give one digest.
    annotations = {
        "org.opencontainers.image.base.digest": str(recipe.base_digest),
        "dev.envbuild.environment": str(recipe.environment),
    }
    everything = (*base.image.layers, *layers)
    image = Image(manifest_bytes(config, everything, annotations), config, everything)
    return Assembled(image=image, overlaps=tuple(overlaps))


def _open(stack: ExitStack, wheel: LockedWheel, path: Path, recipe: Recipe) -> _Wheel:
    check_locked(path, wheel.filename, wheel.size)
    archive = stack.enter_context(WheelArchive(path, wheel.filename))
    scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
    return _Wheel(archive, installed_files(archive, scheme))


@dataclass(frozen=True, slots=True)
class _Maker:
    """Finds layers in the cache, or makes them."""

    recipe: Recipe
    cache: LayerCache
    pool: Executor
    """Works on the parts of all layers."""

    def wheel_layers(
        self, plans: Sequence[LayerPlan], opened: Mapping[LockedWheel, _Wheel], report: Report
    ) -> list[Layer]:
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
        return self._layer("virtual environment", key, files, links)

    def overlap_layer(self, overlaps: Sequence[Overlap], opened: Mapping[LockedWheel, _Wheel]) -> Layer:
        """Put the winner of each overlap on top, as the order of the layers is by size and not that of the lock."""
        files = [
            LayerFile(
                next(file for file in opened[overlap.winner].files if file.path == overlap.path),
                opened[overlap.winner].archive,
            )
            for overlap in overlaps
        ]
        value = [[overlap.path, str(overlap.winner.sha256), overlap.winner.filename] for overlap in overlaps]
        recipe = self.recipe
        key = Digest.of(
            canonical_json(["overlaps", recipe.layer_format, recipe.prefix, recipe.target.python_minor, value])
        )
        return self._layer("paths that several packages share", key, files)

    def _wheel_layer(self, plan: LayerPlan, opened: Mapping[LockedWheel, _Wheel]) -> Layer:
        # in the order of the lock, so that the later wheel wins where two of them have the same path
        files = {
            file.path: LayerFile(file, opened[wheel].archive) for wheel in plan.wheels for file in opened[wheel].files
        }
        return self._layer(plan.label, plan.key, list(files.values()))

    def _layer(self, label: str, key: Digest, files: Sequence[LayerFile], links: Sequence[Link] = ()) -> Layer:
        cached = self.cache.get(key) or self.cache.make(
            key, lambda sink: write_layer(sink, self.recipe.prefix, files, self.pool, links)
        )
        descriptor = Descriptor(LAYER_GZIP, cached.result.digest, cached.result.size)
        return Layer(descriptor, cached.result.diff_id, partial(_open_binary, cached.path), label, cached.reused)


def _open_binary(path: Path) -> BinaryIO:
    return path.open("rb")
