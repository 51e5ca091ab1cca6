"""The assembler: makes layers in parallel, then config and manifest."""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

from envbuild.image.bytecode.compiler import Compiling, Tally
from envbuild.image.bytecode.layers import MOST_LAYERS as BYTECODE_LAYERS
from envbuild.image.bytecode.layers import Bytecode
from envbuild.image.config import (
    CHECK_LINE,
    Slot,
    annotations,
    config_bytes,
    environment_files,
    find_problem,
    startup_check_files,
)
from envbuild.image.debian.layer import SystemLayer, packages_key, packages_line
from envbuild.image.layers.cache import Decode, LayerCache
from envbuild.image.layers.helper import layer_files
from envbuild.image.layers.maker import DEFAULTS, AssemblyOptions, LayerSpec, Maker, OpenWheels, Wheels
from envbuild.image.layers.plan import LayerPlan, Overlap, check_depth, find_overlaps, install_order, plan_layers
from envbuild.image.layers.writer import LayerFile, LayerResult, write_compressed
from envbuild.lock.model import LockedWheel
from envbuild.oci.compression import Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.oci.rootfs import read_tar
from envbuild.recipe import LAYER_FORMAT, Base, Recipe
from envbuild.wheel.install import Fingerprint, find_wheels_to_compare, from_text, to_text

OVERLAPS_LINE = "paths that several packages share"
"""The history line of the layer with files that several wheels contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The image, and facts about it that people and later stages need."""

    image: Image
    overlaps: tuple[Overlap, ...]
    results: Mapping[Digest, LayerResult]
    """The environment's layers by key."""
    verified_members: Mapping[Digest, Collection[str]]
    """By a wheel's sha256: the members that were read and match RECORD."""
    bytecode: Tally | None = None
    """Counts of the bytecode; None if none was requested."""
    remarks: tuple[str, ...] = ()
    """Notes on system packages that were only unpacked; of an image built on top, on files that clash."""


def prefetch_layer_keys(recipe: Recipe, cache: LayerCache) -> None:
    """Ask the shared cache for the keys of all layers and notes at once, before a wheel is read."""
    remarks = [_remarks_key(packages_key(recipe))] if recipe.packages else []
    cache.prefetch([spec.key for spec in _plan_specs(recipe, None, cache)], [_overlap_note_key(recipe), *remarks])


def _plan_specs(recipe: Recipe, system: SystemLayer | None, cache: LayerCache) -> list[LayerSpec]:
    """Return the layers that the recipe alone decides, lowest first."""
    packages = [_packages_spec(recipe, system, cache)] if recipe.packages else []
    return [*packages, *map(wheels_spec, plan_layers(recipe)), _environment_spec(recipe), _startup_check_spec(recipe)]


def wheels_to_read(recipe: Recipe, cache: LayerCache, compiling: Compiling | None = None) -> tuple[LockedWheel, ...]:
    """Return the wheels whose files `assemble` needs: those of layers that are not cached, in the order of the layers.

    While overlapping paths are unknown, `assemble` may request more wheels.
    """
    plans, overlaps = plan_layers(recipe), find_overlap_note(recipe, cache)
    lacking = [wheel for plan in plans if not cache.knows(plan.key) for wheel in plan.wheels]
    if overlaps is None:
        known = find_fingerprints(plans, cache)
        unknown = [wheel for wheel in recipe.wheels if wheel not in known]
        return tuple(dict.fromkeys((*lacking, *unknown, *find_wheels_to_compare(known))))
    lacks_overlaps = bool(overlaps) and not cache.knows(_overlap_layer_key(recipe, overlaps))
    winners = [it.winner for it in overlaps] if lacks_overlaps else []
    sources = Bytecode.of(recipe, overlaps, compiling, cache).wheels_to_read() if compiling else ()
    return tuple(dict.fromkeys((*lacking, *winners, *sources)))


def assemble(
    recipe: Recipe,
    base: Base,
    wheels: Wheels,
    cache: LayerCache,
    options: AssemblyOptions = DEFAULTS,
    compiling: Compiling | None = None,
    system: SystemLayer | None = None,
) -> Assembled:
    """Make the image of a recipe; WheelError or BuildError if a wheel is not fit for it.

    Work on a layer begins as soon as its wheels are available. The wheels of `wheels_to_read` are sufficient, unless
    the bytes of a layer are requested that only the registry has. `system` is required for a recipe with Debian
    packages.
    """
    assert system or not recipe.packages, "a recipe with packages is assembled with them"
    assert recipe.compression.plain == cache.compression, "the cache is that of the recipe's layers"
    specs = _plan_specs(recipe, system, cache)
    replaces = recipe.compression.replaces
    replaced = {it.diff_id: _base_spec(it, base) for it in base.image.layers if replaces(it.descriptor.media_type)}
    check_depth(len(specs) + 1 + (BYTECODE_LAYERS if compiling else 0), len(base.image.layers))
    with Maker(recipe, cache, wheels, options) as maker:
        made = maker.layers([*replaced.values(), *specs])
        below, layers = made[: len(replaced)], made[len(replaced) :]
        if overlaps := detect_overlaps(recipe, cache, maker.opened):
            layers += maker.layers([overlaps_spec(recipe, overlaps)])
        tally = None
        if compiling:
            bytecode, tally = Bytecode.of(recipe, overlaps, compiling, cache).specs(maker.opened)
            layers += maker.layers(bytecode)
    remarks_key = _remarks_key(packages_key(recipe)) if recipe.packages else None
    return Assembled(
        image=_join(recipe, _replace_layers(base, below), layers),
        overlaps=tuple(overlaps),
        results=maker.results,
        verified_members=maker.opened.verified_members(),
        bytecode=tally,
        remarks=(cache.note_or_claim(remarks_key, _decode_remarks) or ()) if remarks_key else (),
    )


def _base_spec(layer: Layer, base: Base) -> LayerSpec:
    """Return the layer of a base, recompressed: its tar alone decides the bytes."""

    def write(sink: BinaryIO, pool: Executor, compression: Compression) -> LayerResult:
        return write_compressed(read_tar(layer, base.name), sink, pool, compression)

    return LayerSpec(
        label=layer.created_by,
        key=_base_layer_key(layer),
        files=lambda _: (),
        weight=layer.descriptor.size,
        writer=write,
    )


def _base_layer_key(layer: Layer) -> Digest:
    return Digest.of(canonical_json(["layer of a base", LAYER_FORMAT, str(layer.diff_id)]))


def _replace_layers(base: Base, layers: Iterable[Layer]) -> Base:
    """Return the base with these layers in place of those of the same content."""
    new = {it.diff_id: it for it in layers}
    return replace(base, image=replace(base.image, layers=tuple(new.get(it.diff_id, it) for it in base.image.layers)))


def _join(recipe: Recipe, base: Base, layers: Sequence[Layer]) -> Image:
    config = config_bytes(recipe, base, layers)
    everything = (*base.image.layers, *layers)
    return Image(manifest_bytes(config, everything, annotations(recipe)), config, everything)


def find_difference(
    image: Image, recipe: Recipe, base: Base, cache: LayerCache, compiling: Compiling | None = None
) -> str:
    """Describe how an existing image differs from the image that `assemble` makes of its layers; empty if equal.

    No layer is read, so an empty answer proves everything but the contents of the layers. The list of layers depends on
    which wheels overlap: if this machine never read them, the registry's notes (through `cache`) say that.
    """
    overlaps = find_overlap_note(recipe, cache)
    slots = [
        *(Slot(label=it.label, key=it.key) for it in _plan_specs(recipe, None, cache)),
        *overlap_slots(recipe, overlaps),
        *(Bytecode.of(recipe, overlaps or (), compiling, cache).slots(known=overlaps is not None) if compiling else ()),
    ]
    below = []
    for own, there in zip(base.image.layers, image.layers, strict=False):
        if recipe.compression.replaces(own.descriptor.media_type) and own.diff_id == there.diff_id:
            known = cache.get(_base_layer_key(own))
            found = Descriptor(cache.compression.media_type, there.descriptor.digest, there.descriptor.size)
            below.append(replace(own, descriptor=known.result.descriptor if known else found))
    return find_problem(image, base.image, slots, cache, partial(_join, recipe, _replace_layers(base, below)))


def overlap_slots(recipe: Recipe, overlaps: Sequence[Overlap] | None) -> list[Slot]:
    """Return the slot of the layer with overlapping paths: optional if the overlaps are unknown, absent if none."""
    if overlaps is None:
        return [Slot(label=OVERLAPS_LINE, key=None, optional=True)]
    return [Slot(label=OVERLAPS_LINE, key=_overlap_layer_key(recipe, overlaps))] if overlaps else []


def detect_overlaps(recipe: Recipe, cache: LayerCache, opened: OpenWheels) -> Sequence[Overlap]:
    """Return the overlaps noted for these wheels, else find them in the directories of wheels that may overlap."""
    plans = plan_layers(recipe)
    kept = find_overlap_note(recipe, cache)
    if kept is not None and not (why := _find_false_overlap(recipe, kept, cache, opened)):
        return kept
    if kept is not None:
        cache.ignore(_overlap_note_key(recipe), why)
    prints = find_fingerprints(plans, cache)
    for plan in plans:
        if new := {wheel: opened.fingerprint(wheel) for wheel in plan.wheels if wheel not in prints}:
            prints |= new
            texts = {str(wheel.sha256): to_text(prints[wheel]) for wheel in plan.wheels}
            cache.store_note(plan.fingerprints_key, texts)
    files = {wheel: opened[wheel].files for wheel in find_wheels_to_compare(prints)}
    pip = next((wheel.version for wheel in recipe.wheels if wheel.name == "pip"), None)

    def order() -> list[str]:  # reads the METADATA of every wheel
        return install_order({wheel.name: opened.requires(wheel) for wheel in recipe.wheels}, recipe.target, pip)

    overlaps = find_overlaps(files, recipe.owner_by_path, order)
    local = all(cache.local_note(plan.fingerprints_key, _fingerprint_decoder(plan)) is not None for plan in plans)
    cache.store_note(_overlap_note_key(recipe), [[it.path, it.winner.name, *it.losers] for it in overlaps], keep=local)
    return overlaps


def _find_false_overlap(recipe: Recipe, overlaps: Sequence[Overlap], cache: LayerCache, opened: OpenWheels) -> str:
    """Describe how wheels contradict noted overlaps; reads only wheels that are needed for the layer anyway."""
    if not overlaps or cache.knows(_overlap_layer_key(recipe, overlaps)):
        return ""
    paths = {wheel: {file.path for file in opened[wheel].files} for wheel in {it.winner for it in overlaps}}
    absent = (f"{it.winner.name} has no file {it.path}" for it in overlaps if it.path not in paths[it.winner])
    return next(absent, "")


def find_fingerprints(plans: Sequence[LayerPlan], cache: LayerCache) -> dict[LockedWheel, Fingerprint]:
    """Return the noted fingerprints of wheels; no wheel is read."""
    cache.prefetch((), [plan.fingerprints_key for plan in plans])
    prints: dict[LockedWheel, Fingerprint] = {}
    for plan in plans:
        prints |= cache.note_or_claim(plan.fingerprints_key, _fingerprint_decoder(plan)) or {}
    return prints


def _fingerprint_decoder(plan: LayerPlan) -> Decode[dict[LockedWheel, Fingerprint]]:
    def decode(rows: Any) -> dict[LockedWheel, Fingerprint]:
        try:
            return {wheel: from_text(rows[str(wheel.sha256)]) for wheel in plan.wheels}
        except (KeyError, TypeError, struct.error) as error:
            raise ValueError("the note does not have the paths of these wheels") from error

    return decode


def find_overlap_note(recipe: Recipe, cache: LayerCache) -> list[Overlap] | None:
    """Return the noted overlaps of the recipe's wheels; None if there is no valid note."""
    by_name = {wheel.name: wheel for wheel in recipe.wheels}

    def decode(rows: Any) -> list[Overlap]:
        if not isinstance(rows, list):
            raise ValueError("shared paths have to be a list")  # noqa: TRY004 - decoders raise nothing else
        try:
            overlaps = [Overlap(path, by_name[name], tuple(losers)) for path, name, *losers in rows]
        except (KeyError, TypeError) as error:
            raise ValueError("a row does not name a path and wheels of the lock") from error
        for it in overlaps:
            if not isinstance(it.path, str) or not it.losers or not by_name.keys() >= set(it.losers):
                raise ValueError(f"{it.path!r:.100} is not shared by wheels of the lock")
        return overlaps

    return cache.note_or_claim(_overlap_note_key(recipe), decode)


def _overlap_note_key(recipe: Recipe) -> Digest:
    wheels = [wheel.content_key for wheel in recipe.wheels]
    value = ["overlaps of", recipe.layer_format, recipe.prefix, recipe.target.python_minor, wheels]
    return Digest.of(canonical_json([*value, *recipe.owners]))


def _overlap_layer_key(recipe: Recipe, overlaps: Sequence[Overlap]) -> Digest:
    rows = [[overlap.path, str(overlap.winner.sha256), overlap.winner.filename] for overlap in overlaps]
    value = ["overlaps", recipe.layer_format, recipe.prefix, recipe.target.python_minor, rows]
    return Digest.of(canonical_json(value))


def _environment_spec(recipe: Recipe) -> LayerSpec:
    files, links = environment_files(recipe)
    value = [recipe.layer_format, recipe.prefix, recipe.python_path, recipe.target.python]
    key = Digest.of(canonical_json(["environment", value]))
    return LayerSpec(label="virtual environment", key=key, files=lambda _: files, links=links)


def _startup_check_spec(recipe: Recipe) -> LayerSpec:
    files = startup_check_files(recipe)
    contents = [str(Digest.of(it.file.source)) for it in files if isinstance(it.file.source, bytes)]
    key = Digest.of(canonical_json(["checkup", recipe.layer_format, recipe.prefix, contents]))
    return LayerSpec(label=CHECK_LINE, key=key, files=lambda _: files)


def _packages_spec(recipe: Recipe, system: SystemLayer | None, cache: LayerCache) -> LayerSpec:
    key = packages_key(recipe)

    def write(sink: BinaryIO, pool: Executor, compression: Compression) -> LayerResult:
        assert system
        return system.write(recipe.packages, sink, pool, partial(cache.store_note, _remarks_key(key)), compression)

    return LayerSpec(
        label=packages_line(recipe.packages),
        key=key,
        files=lambda _: (),
        weight=sum(it.size for it in recipe.packages),
        writer=write,
    )


def _remarks_key(key: Digest) -> Digest:
    return Digest.of(canonical_json(["remarks on", str(key)]))


def _decode_remarks(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(it, str) and it.isprintable() for it in value):
        raise ValueError("remarks on packages have to be lines of text")
    return tuple(value)


def wheels_spec(plan: LayerPlan) -> LayerSpec:
    """Return the layer of one plan's wheels."""
    return LayerSpec(
        label=plan.label,
        key=plan.key,
        files=lambda opened: layer_files(opened[wheel] for wheel in plan.wheels),
        weight=sum(wheel.size for wheel in plan.wheels),
        wheels=plan.wheels,
    )


def overlaps_spec(recipe: Recipe, overlaps: Sequence[Overlap]) -> LayerSpec:
    """Return the top layer with the winners of overlapping paths.

    It lies on top because the layers are ordered by size, and not as pip installs the wheels.
    """

    def files(opened: OpenWheels) -> list[LayerFile]:
        pairs = ((overlap.path, opened[overlap.winner]) for overlap in overlaps)
        return [
            LayerFile(next(file for file in wheel.files if file.path == path), wheel.archive) for path, wheel in pairs
        ]

    return LayerSpec(label=OVERLAPS_LINE, key=_overlap_layer_key(recipe, overlaps), files=files)
