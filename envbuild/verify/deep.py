"""An image made anew from its lock and base, with nothing that anybody kept: what it has to be, to the last byte."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from envbuild.base.interpreter import compiling_on
from envbuild.base.resolve import inspect, known_facts
from envbuild.base.system import unpacker
from envbuild.errors import BaseError
from envbuild.image.assembler import assemble
from envbuild.image.config import OURS
from envbuild.image.debian.layer import packages_line
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import Wheels
from envbuild.image.layers.plan import plan_layers
from envbuild.oci.image import Image, Layer
from envbuild.recipe import Base, Recipe
from envbuild.verify.findings import Finding, compared
from envbuild.verify.standing import Subject

_CHUNK = 1 << 20


def read_anew(base: Base, folder: Path) -> Base:
    """Read the base's layers again, as what the cache knows of them may be what a registry said; BaseError."""
    machine = base.target.machine
    facts = inspect(base.image, base.name, machine, known_facts(folder))
    return replace(base, target=facts.target(machine), python_path=facts.python_path, interpreter=facts.interpreter)


def make_anew(
    recipe: Recipe, base: Base, wheels: Wheels, folder: Path, report: Callable[[str, int, int], None], cache: Path
) -> Image:
    """Assemble the image with an empty cache in `folder`; BuildError as `assemble`, and where bytecode cannot be made.

    Debian packages come from `cache` or the mirror, held to the lock as wheels are: LockError where it has one no more.
    Layers leave the disk as soon as their digests are known, so it holds only those that are at work.
    """
    todo = "verify on a machine that can run the base, or without --deep"
    compiling = compiling_on(base, folder, todo) if recipe.bytecode else None
    system = unpacker(recipe.packages, base, cache, folder)
    return assemble(recipe, base, wheels, LayerCache(folder), report, _forget, compiling, system=system).image


def deep_findings(subject: Subject, recipe: Recipe, anew: Image) -> Iterator[Finding]:
    """Hold each layer above the base, and the manifest over them all, against the image that was made anew."""
    wanted = {it.created_by: it for it in anew.layers[len(subject.base.image.layers) :]}
    found = {it.created_by.removeprefix(OURS): it for it in subject.own}
    packages = {
        plan.label: tuple(f"{wheel.name} {wheel.version}" for wheel in plan.wheels) for plan in plan_layers(recipe)
    }
    packages[packages_line(recipe.packages)] = tuple(f"{it.name} {it.version}" for it in recipe.packages)
    faults = [it for line in wanted if (it := _layer(line, wanted[line], found, packages.get(line, ())))]
    faults += [
        Finding(
            about="layer", agrees=False, says=f"the lock gives none of {line or '(no history)'}", found=_both(layer)
        )
        for line, layer in found.items()
        if line not in wanted
    ]
    same = f"{len(wanted)} layers, made anew from {len(recipe.wheels)} wheels, are the image's byte for byte"
    yield from faults or [Finding(about="layers made anew", agrees=True, says=same)]
    yield compared(
        "manifest made anew",
        wanted=str(anew.digest),
        found=str(subject.image.digest),
        ok=f"{anew.digest} is the image's",
        differs=f"{anew.digest} is not the image's {subject.image.digest}",
    )


def blob_findings(image: Image) -> Iterator[Finding]:
    """Read the layers that lie on this machine to their last byte; those of a registry are checked by whoever pulls."""
    here = [layer for layer in image.layers if not layer.origin]
    faults = [it for layer in here if (it := _unlike(layer))]
    same = f"the bytes of {len(here)} layers in the layout are those of their digests"
    yield from faults or ([Finding(about="blobs", agrees=True, says=same)] if here else [])


def _unlike(layer: Layer) -> Finding | None:
    """What is wrong with the bytes of a layer, if anything is."""
    try:
        with layer.open() as blob:
            while blob.read(_CHUNK):
                pass
    except BaseError as error:
        says = f"{error.what}: {layer.created_by.removeprefix(OURS) or layer.diff_id}"
        return Finding(about="blobs", agrees=False, says=says, wanted=str(layer.descriptor.digest), found=error.where)
    return None


def _layer(line: str, made: Layer, found: Mapping[str, Layer], packages: tuple[str, ...]) -> Finding | None:
    """What differs in the layer of this line, if anything does."""
    layer = found.get(line)
    if layer and _both(layer) == _both(made):
        return None
    digest, diff_id = made.descriptor.digest, made.diff_id
    if layer is None:
        says = f"the image has none of {line}"
    elif layer.descriptor.digest != digest:
        says = f"{line} is {digest}, and the image has {layer.descriptor.digest}"
    else:
        says = f"{line} has the diff id {diff_id}, and the image says {layer.diff_id}"
    return Finding(
        about="layer",
        agrees=False,
        says=says,
        wanted=_both(made),
        found=_both(layer) if layer else "",
        packages=packages,
    )


def _both(layer: Layer) -> str:
    """The blob's digest and size, and the diff id."""
    return f"{layer.descriptor.digest} of {layer.descriptor.size} bytes, diff id {layer.diff_id}"


def _forget(layer: Layer) -> None:
    if layer.path:
        layer.path.unlink(missing_ok=True)
