"""The assembler: layers in parallel, then config and manifest."""

import struct
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from envbuild.image.bytecode.compiler import Interpreter, Store, Tally
from envbuild.image.bytecode.layers import MOST_LAYERS as BYTECODE_LAYERS
from envbuild.image.bytecode.layers import Bytecode, BytecodeLayer
from envbuild.image.config import (
    CHECK_LINE,
    Slot,
    annotations,
    checkup_files,
    config_bytes,
    environment_files,
    find_problem,
)
from envbuild.image.debian.layer import SystemLayer, packages_key, packages_line
from envbuild.image.layers.cache import Decode, LayerCache
from envbuild.image.layers.maker import Begun, LayerOrder, Made, Maker, OpenWheels, Wheels
from envbuild.image.layers.plan import LayerPlan, Overlap, check_depth, find_overlaps, install_order, plan_layers
from envbuild.image.layers.writer import LayerFile, LayerResult
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json, manifest_bytes
from envbuild.recipe import Base, Recipe
from envbuild.wheel.install import Fingerprint, from_text, suspects, to_text

OVERLAPS_LINE = "paths that several packages share"
"""The history's line of the layer with files that several wheels have."""
Report = Callable[[str, int, int], None]
"""What is being made, bytes done, bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The image, and what there is to say about it."""

    image: Image
    overlaps: tuple[Overlap, ...]
    results: Mapping[Digest, LayerResult]
    """Our layers by their keys."""
    true: Mapping[Digest, Collection[str]]
    """By a wheel's sha256 the members that were read and found to be what its RECORD says."""
    bytecode: Tally | None = None
    """How much bytecode the image has; None where none was asked for."""
    remarks: tuple[str, ...] = ()
    """What there is to know of system packages that were only unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """By what sources are compiled, and where what was compiled is kept."""

    identity: str
    """What tells the base's interpreter from others: `Base.interpreter`."""
    find: Callable[[], Interpreter]
    """Gets the interpreter when something has to be compiled, or raises BuildError."""
    store: Store
    told: Callable[[int], object] = lambda _count: None
    """Told how many sources are about to be compiled."""

    def of(self, recipe: Recipe, overlaps: Sequence[Overlap], cache: LayerCache) -> Bytecode:
        """The bytecode of an image."""
        return Bytecode(
            recipe=recipe,
            identity=self.identity,
            overlaps=overlaps,
            find=self.find,
            cache=cache,
            store=self.store,
            told=self.told,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the assembler will ask the cache for."""

    layers: tuple[Digest, ...]
    notes: tuple[Digest, ...]


def cache_keys(recipe: Recipe) -> Keys:
    """The keys that can be told before a wheel is read."""
    system = (packages_key(recipe),) if recipe.packages else ()
    layers = (*system, *(plan.key for plan in plan_layers(recipe)), _environment(recipe).key, _checkup(recipe).key)
    return Keys(layers=layers, notes=(_wheels_key(recipe), *map(_remarks_key, system)))


def wheels_to_read(recipe: Recipe, cache: LayerCache, compiling: Compiling | None = None) -> tuple[LockedWheel, ...]:
    """The wheels whose files `assemble` needs: those of layers that nobody has made, in the order of the layers.

    Where it is not known yet which paths several wheels have, some more may be asked for while they are assembled.
    """
    plans, found = plan_layers(recipe), find_overlap_note(recipe, cache)
    lacking = [wheel for plan in plans if not cache.knows(plan.key) for wheel in plan.wheels]
    if found is None:
        known = kept_prints(plans, cache)
        unknown = [wheel for wheel in recipe.wheels if wheel not in known]
        # what those that are not known yet will clash with nobody knows; the others of this kind are few
        return tuple(dict.fromkeys((*lacking, *unknown, *suspects(known))))
    winners = [it.winner for it in found] if found and not cache.knows(_overlap_key(recipe, found)) else []
    sources = compiling.of(recipe, found, cache).wheels_to_read() if compiling else ()
    return tuple(dict.fromkeys((*lacking, *winners, *sources)))


def assemble(  # noqa: PLR0913, PLR0917 - the last five are for those who have them
    recipe: Recipe,
    base: Base,
    wheels: Wheels,
    cache: LayerCache,
    report: Report,
    made: Made = lambda _layer: None,
    compiling: Compiling | None = None,
    proving: Container[Digest] = (),
    system: SystemLayer | None = None,
    begun: Begun | None = None,
) -> Assembled:
    """Make the image of a recipe; WheelError or BuildError where a wheel is not fit for it.

    A layer is begun as soon as its wheels are there, and `made` is told each that had to be made as soon as it is;
    `begun` is told those that take a while before that. The
    wheels of `wheels_to_read` are enough, unless the bytes of a layer are asked for that only others have. Those of
    `proving`, by their sha256, are held against their RECORD as they are read. `system` is what a recipe with Debian
    packages needs.
    """
    plans = plan_layers(recipe)
    own = [_system_layer(recipe, system, cache)] if recipe.packages and system else []
    assert len(own) == bool(recipe.packages), "a recipe with packages is assembled with them"
    check_depth(len(own) + len(plans) + 3 + (BYTECODE_LAYERS if compiling else 0), len(base.image.layers))
    orders = [*own, *map(wheel_layer, plans), _environment(recipe), _checkup(recipe)]
    total = sum(order.weight for order in orders)
    done = 0

    def told(weight: int) -> None:
        nonlocal done
        done += weight
        report("assembling", done, total)

    with Maker.working(recipe, cache, wheels, proving, begun) as maker:
        layers = maker.layers(orders, told, made)
        if overlaps := shared_paths(recipe, plans, cache, maker.opened):
            layers += maker.layers([overlap_layer(recipe, overlaps)], told, made)
        bytecode, tally = bytecode_layers(compiling.of(recipe, overlaps, cache), maker) if compiling else ((), None)
        layers += maker.layers(bytecode, told, made)
    return Assembled(
        image=_put_together(recipe, base, layers),
        overlaps=tuple(overlaps),
        results=maker.results,
        true=maker.opened.true(),
        bytecode=tally,
        remarks=_remarks(recipe, cache),
    )


def _put_together(recipe: Recipe, base: Base, layers: Sequence[Layer]) -> Image:
    config = config_bytes(recipe, base, layers)
    everything = (*base.image.layers, *layers)
    return Image(manifest_bytes(config, everything, annotations(recipe)), config, everything)


def find_difference(
    image: Image, recipe: Recipe, base: Base, cache: LayerCache, compiling: Compiling | None = None
) -> str:
    """Say how the found image differs from the expected one; empty if it does not.

    The expected one is what `assemble` makes of its layers. Without a difference, all but their contents is proven. No
    layer is read. Which layers there are depends on the wheels too; where this machine never read them, on what `cache`
    has behind it.
    """
    shared = find_overlap_note(recipe, cache)
    slots = [
        *([Slot(label=packages_line(recipe.packages), key=packages_key(recipe))] if recipe.packages else ()),
        *(Slot(label=it.label, key=it.key) for it in plan_layers(recipe)),
        *(Slot(label=it.label, key=it.key) for it in (_environment(recipe), _checkup(recipe))),
        *overlap_slots(recipe, shared),
        *(compiling.of(recipe, shared or (), cache).slots(known=shared is not None) if compiling else ()),
    ]
    return find_problem(image, base.image, slots, cache, lambda layers: _put_together(recipe, base, layers))


def overlap_slots(recipe: Recipe, overlaps: Sequence[Overlap] | None) -> list[Slot]:
    """The layer of paths that several wheels have, where it is known that there are some, or nothing is known."""
    if overlaps is None:
        return [Slot(label=OVERLAPS_LINE, key=None, optional=True)]
    return [Slot(label=OVERLAPS_LINE, key=_overlap_key(recipe, overlaps))] if overlaps else []


def shared_paths(
    recipe: Recipe, plans: Sequence[LayerPlan], cache: LayerCache, opened: OpenWheels
) -> Sequence[Overlap]:
    """What was found before for the same wheels, else what the directories say of those that may overlap."""
    kept = find_overlap_note(recipe, cache)
    if kept is not None and not (why := _find_false_overlap(recipe, kept, cache, opened)):
        return kept
    if kept is not None:
        cache.ignore(_wheels_key(recipe), why)
    prints = kept_prints(plans, cache)
    for plan in plans:
        if new := {wheel: opened.fingerprint(wheel) for wheel in plan.wheels if wheel not in prints}:
            prints |= new
            cache.note(plan.paths, {str(wheel.sha256): to_text(prints[wheel]) for wheel in plan.wheels})
    files = {wheel: opened[wheel].files for wheel in suspects(prints)}
    found = find_overlaps(files, recipe.owned, lambda: _order(recipe, opened))
    ours = all(cache.noted(plan.paths, _prints_of(plan)) is not None for plan in plans)
    cache.note(_wheels_key(recipe), [[it.path, it.winner.name, *it.losers] for it in found], keep=ours)
    return found


def _order(recipe: Recipe, opened: OpenWheels) -> list[str]:
    """The order of installation by the pip that is among the wheels; every wheel is read for its METADATA."""
    pip = next((wheel.version for wheel in recipe.wheels if wheel.name == "pip"), None)
    return install_order({wheel.name: opened.requires(wheel) for wheel in recipe.wheels}, recipe.target, pip)


def _find_false_overlap(recipe: Recipe, overlaps: Sequence[Overlap], cache: LayerCache, opened: OpenWheels) -> str:
    """What wheels say against overlaps; those are only read that a layer has to be made of in any case."""
    if not overlaps or cache.knows(_overlap_key(recipe, overlaps)):
        return ""
    paths = {wheel: {file.path for file in opened[wheel].files} for wheel in {it.winner for it in overlaps}}
    absent = (f"{it.winner.name} has no file {it.path}" for it in overlaps if it.path not in paths[it.winner])
    return next(absent, "")


def kept_prints(plans: Sequence[LayerPlan], cache: LayerCache) -> dict[LockedWheel, Fingerprint]:
    """What is known of the paths in wheels, without reading one."""
    cache.look_up((), [plan.paths for plan in plans])
    found: dict[LockedWheel, Fingerprint] = {}
    for plan in plans:
        found |= cache.find_note(plan.paths, _prints_of(plan)) or {}
    return found


def _prints_of(plan: LayerPlan) -> Decode[dict[LockedWheel, Fingerprint]]:
    def decode(rows: Any) -> dict[LockedWheel, Fingerprint]:
        try:
            return {wheel: from_text(rows[str(wheel.sha256)]) for wheel in plan.wheels}
        except (KeyError, TypeError, struct.error) as error:
            raise ValueError("it does not have the paths of these wheels") from error

    return decode


def find_overlap_note(recipe: Recipe, cache: LayerCache) -> list[Overlap] | None:
    """What is noted of paths that several wheels have."""
    return cache.find_note(_wheels_key(recipe), _overlaps_of(recipe))


def _overlaps_of(recipe: Recipe) -> Decode[list[Overlap]]:
    by_name = {wheel.name: wheel for wheel in recipe.wheels}

    def decode(rows: Any) -> list[Overlap]:
        if not isinstance(rows, list):
            raise ValueError("shared paths have to be a list")  # noqa: TRY004 - decoders raise nothing else
        try:
            found = [Overlap(path, by_name[name], tuple(losers)) for path, name, *losers in rows]
        except (KeyError, TypeError) as error:
            raise ValueError("it has rows that name no path and wheels of the lock") from error
        for it in found:
            if not isinstance(it.path, str) or not it.losers or not by_name.keys() >= set(it.losers):
                raise ValueError(f"{it.path!r:.100} is not shared by wheels of the lock")
        return found

    return decode


def _wheels_key(recipe: Recipe) -> Digest:
    wheels = [[wheel.filename, str(wheel.sha256)] for wheel in recipe.wheels]
    value = ["overlaps of", recipe.layer_format, recipe.prefix, recipe.target.python_minor, wheels]
    return Digest.of(canonical_json([*value, *recipe.owners]))


def _overlap_key(recipe: Recipe, overlaps: Sequence[Overlap]) -> Digest:
    value = [[overlap.path, str(overlap.winner.sha256), overlap.winner.filename] for overlap in overlaps]
    return Digest.of(
        canonical_json(["overlaps", recipe.layer_format, recipe.prefix, recipe.target.python_minor, value])
    )


def _environment(recipe: Recipe) -> LayerOrder:
    files, links = environment_files(recipe)
    value = [recipe.layer_format, recipe.prefix, recipe.python_path, recipe.target.python]
    key = Digest.of(canonical_json(["environment", value]))
    return LayerOrder(label="virtual environment", key=key, files=lambda _: files, links=links)


def _checkup(recipe: Recipe) -> LayerOrder:
    files = checkup_files(recipe)
    contents = [str(Digest.of(it.file.source)) for it in files if isinstance(it.file.source, bytes)]
    key = Digest.of(canonical_json(["checkup", recipe.layer_format, recipe.prefix, contents]))
    return LayerOrder(label=CHECK_LINE, key=key, files=lambda _: files)


def _system_layer(recipe: Recipe, system: SystemLayer, cache: LayerCache) -> LayerOrder:
    key = packages_key(recipe)

    def write(sink: BinaryIO, pool: Executor) -> LayerResult:
        return system.write(recipe.packages, sink, pool, lambda told: cache.note(_remarks_key(key), told))

    return LayerOrder(
        label=packages_line(recipe.packages),
        key=key,
        files=lambda _: (),
        weight=sum(it.size for it in recipe.packages),
        writer=write,
    )


def _remarks_key(key: Digest) -> Digest:
    return Digest.of(canonical_json(["remarks on", str(key)]))


def _remarks(recipe: Recipe, cache: LayerCache) -> tuple[str, ...]:
    """What was said when the layer of packages was made, here or elsewhere."""
    return (cache.find_note(_remarks_key(packages_key(recipe)), _lines) or ()) if recipe.packages else ()


def _lines(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(it, str) and it.isprintable() for it in value):
        raise ValueError("remarks on packages have to be lines of text")
    return tuple(value)


def wheel_layer(plan: LayerPlan) -> LayerOrder:
    """What is ordered for the wheels of one plan."""
    weight = sum(wheel.size for wheel in plan.wheels)
    return LayerOrder(
        label=plan.label,
        key=plan.key,
        files=lambda opened: opened.layer_files(plan.wheels),
        weight=weight,
        wheels=plan.wheels,
    )


def overlap_layer(recipe: Recipe, overlaps: Sequence[Overlap]) -> LayerOrder:
    """The layer on top that has the winners of paths that several wheels have."""
    files = partial(_winning_files, overlaps)
    return LayerOrder(label=OVERLAPS_LINE, key=_overlap_key(recipe, overlaps), files=files)


def bytecode_layers(bytecode: Bytecode, maker: Maker) -> tuple[Sequence[LayerOrder], Tally]:
    """The layers of bytecode that have something in them; what lacks is compiled here."""
    wanted = bytecode.wanted()
    maker.cache.look_up([it.key for it in wanted], [it.contents for it in wanted])
    layers, tally = bytecode.layers(maker.opened)
    return [_bytecode_layer(bytecode, layer) for layer in layers], tally


def _bytecode_layer(bytecode: Bytecode, layer: BytecodeLayer) -> LayerOrder:
    def files(opened: OpenWheels) -> list[LayerFile]:
        return bytecode.files(layer, opened, opened.stack)

    return LayerOrder(label=layer.label, key=layer.key, files=files, prefix=layer.prefix, compress=True)


def _winning_files(overlaps: Sequence[Overlap], opened: OpenWheels) -> list[LayerFile]:
    """The winner of each overlap goes on top, as the order of the layers is by size and not that of the lock."""
    return [
        LayerFile(
            next(file for file in opened[overlap.winner].files if file.path == overlap.path),
            opened[overlap.winner].archive,
        )
        for overlap in overlaps
    ]
