"""The bytecode layers of an image: which wheel's bytecode goes into which layer, and the files of each.

The rule is fixed and reads nothing but the lock, so no interpreter is needed to know a layer's key.
"""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from envbuild.image.bytecode.compiler import FORMAT, Compiling, Parcel, Source, Tally
from envbuild.image.config import Slot
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import LayerSpec, OpenWheels
from envbuild.image.layers.plan import Overlap
from envbuild.image.layers.writer import LayerFile
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe
from envbuild.wheel.archive import Member, WheelArchive
from envbuild.wheel.install import InstalledFile
from envbuild.wheel.name import WheelName

_LARGE = 64 << 20
"""Bytes of a wheel: from this size its bytecode is worth a layer, which costs time at each pull."""
_MOST_LARGE = 4
MOST_LAYERS = _MOST_LARGE + 2
"""Large wheels, the other wheels, the base's standard library."""
_TESTS = "/tests/"
"""Nearly half of the modules of scikit-learn with pandas; Python compiles one that is imported after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BytecodeLayer:
    """A layer of bytecode; it may turn out to be empty."""

    label: str
    """Its line in the image's history."""
    key: Digest
    """Digest of everything that decides the bytes."""
    prefix: str
    """The folder above all of its files."""
    parcels: tuple[Parcel, ...]
    """In the order of the lock: the later one wins if two have the same source."""
    note: str = "what is in a bytecode layer"

    @property
    def tally_key(self) -> Digest:
        """The key of the note with the number of files in the layer."""
        return Digest.of(canonical_json([self.note, str(self.key)]))


def plan_bytecode(recipe: Recipe, interpreter: str, overlaps: Sequence[Overlap]) -> Iterator[BytecodeLayer]:
    """Give the largest wheels with code a layer each, and the others one."""
    by_size = sorted(recipe.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    # A large wheel for one platform and any Python holds libraries of another language, as NVIDIA's do.
    large = [
        wheel
        for wheel in by_size
        if wheel.size >= _LARGE
        and any(tag.abi != "none" or tag.platform == "any" for tag in WheelName.parse(wheel.filename).tags)
    ][:_MOST_LARGE]
    others = sorted(set(by_size) - set(large), key=lambda wheel: wheel.name)
    for wheels in [[wheel] for wheel in large] + ([others] if others else []):
        parcels = tuple(_plan_parcel(recipe, interpreter, wheel, overlaps) for wheel in wheels)
        keys = [[wheel.filename, str(parcel.key)] for wheel, parcel in zip(wheels, parcels, strict=True)]
        yield BytecodeLayer(
            label="bytecode of " + ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels),
            key=Digest.of(canonical_json(["bytecode layer", recipe.layer_format, keys])),
            prefix=recipe.prefix,
            parcels=parcels,
        )


def _plan_parcel(recipe: Recipe, interpreter: str, wheel: LockedWheel, overlaps: Sequence[Overlap]) -> Parcel:
    # Their bytecode must not hide that of the wheel whose files replace them.
    lost = sorted(it.path for it in overlaps if it.path.endswith(".py") and wheel.name in it.losers)
    facts = [FORMAT, interpreter, recipe.prefix, recipe.target.python_minor]
    left_out = [it for it in wheel.left_out if any(name.endswith(".py") for name in it.names)]
    key = Digest.of(canonical_json(["bytecode", facts, str(wheel.sha256), lost, *left_out]))
    return Parcel(key, recipe.prefix, partial(_list_sources, wheel, frozenset(lost)), wheel)


def _list_sources(wheel: LockedWheel, lost: frozenset[str], opened: OpenWheels) -> list[Source]:
    """Return the sources that imports can find, without tests and those that another wheel's files replace."""
    files, archive = opened[wheel].files, opened[wheel].archive

    def read(file: InstalledFile) -> bytes:
        return archive.read(file.source) if isinstance(file.source, Member) else file.source

    paths = {file.path for file in files}
    skipped = lost | {path for path in paths if f"{path.rpartition('/')[0]}/__pycache__" in paths}
    site = f"{opened.scheme.site_packages}/"
    modules = [it for it in files if it.path.startswith(site) and it.path.endswith(".py")]
    served = [it for it in modules if it.path not in skipped and _TESTS not in it.path]
    return [Source(it.path, it.size, partial(read, it)) for it in served]


def plan_library(recipe: Recipe, compiling: Compiling) -> Iterator[BytecodeLayer]:
    """Yield the layer of the base's standard library; none if the interpreter's folder is unknown or the root."""
    home = posixpath.dirname(posixpath.dirname(recipe.python_path))
    if not home.strip("/"):
        return
    facts = [FORMAT, recipe.layer_format, compiling.identity, str(recipe.base_digest), recipe.python_path]
    key = Digest.of(canonical_json(["bytecode of the standard library", facts]))

    def list_sources(_opened: OpenWheels) -> list[Source]:
        interpreter = compiling.find()
        paths = {path: interpreter.home / path for path in interpreter.lacking}
        return [Source(name, path.stat().st_size, path.read_bytes) for name, path in paths.items()]

    label = "bytecode of the base's standard library"
    yield BytecodeLayer(label=label, key=key, prefix=home, parcels=(Parcel(key, home, list_sources),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytecode:
    """The bytecode of an image; an interpreter is only started if something has to be compiled."""

    layers: tuple[BytecodeLayer, ...]
    """All layers that may exist, lowest first; empty ones are left out later."""
    compiling: Compiling
    cache: LayerCache

    @classmethod
    def of(cls, recipe: Recipe, overlaps: Sequence[Overlap], compiling: Compiling, cache: LayerCache) -> "Bytecode":
        """Plan the bytecode of a recipe's wheels and of its base's standard library."""
        layers = (*plan_library(recipe, compiling), *plan_bytecode(recipe, compiling.identity, overlaps))
        return cls(layers=layers, compiling=compiling, cache=cache)

    def wheels_to_read(self) -> tuple[LockedWheel, ...]:
        """Return the wheels whose sources `specs` will need."""
        parcels = [parcel for layer in self.layers if self._find_settled(layer) is None for parcel in layer.parcels]
        return tuple(it.wheel for it in parcels if it.wheel and self.compiling.store.get(it.key) is None)

    def slots(self, *, known: bool = True) -> Iterator[Slot]:
        """Yield the layers that an image has or may have; `known` if the overlaps, and so the keys, are known."""
        self.cache.prefetch((), [layer.tally_key for layer in self.layers] if known else ())
        for layer in self.layers:
            tally = self._find_tally(layer) if known else None
            if tally is None or tally.compiled:
                yield Slot(label=layer.label, key=layer.key if known else None, optional=tally is None)

    def specs(self, opened: OpenWheels) -> tuple[list[LayerSpec], Tally]:
        """Compile what is not cached; return the layers that are not empty, and the counts of all.

        WheelError if a wheel is damaged, BuildError if the interpreter does not work.
        """
        self.cache.prefetch([it.key for it in self.layers], [it.tally_key for it in self.layers])
        settled = {layer.key: self._find_settled(layer) for layer in self.layers}
        parcels = [it for layer in self.layers if settled[layer.key] is None for it in layer.parcels]
        compiled = dict(zip([it.key for it in parcels], self.compiling.compile(parcels, opened), strict=True))
        specs, total = [], Tally()
        for layer in self.layers:
            tally = settled[layer.key]
            if tally is None:  # count what was compiled here, and not what the registry notes
                tally = sum((compiled[it.key].tally for it in layer.parcels), Tally())
                self.cache.store_note(layer.tally_key, tally.to_dict())
            total += tally
            if tally.compiled:
                files = partial(self._files, layer)
                specs.append(
                    LayerSpec(label=layer.label, key=layer.key, files=files, prefix=layer.prefix, compress=True)
                )
        return specs, total

    def _files(self, layer: BytecodeLayer, opened: OpenWheels) -> list[LayerFile]:
        """Return the files of a layer, below its prefix; their archives stay open as long as the wheels."""
        files: dict[str, LayerFile] = {}
        for compiled in self.compiling.compile(layer.parcels, opened):
            if compiled.tally.compiled:
                archive = opened.resources.enter_context(WheelArchive(compiled.path, f"bytecode {compiled.path.name}"))
                for it in archive.members:
                    files[it.name] = LayerFile(InstalledFile(it.name, executable=False, source=it), archive)
        return list(files.values())

    def _find_settled(self, layer: BytecodeLayer) -> Tally | None:
        """The number of files in a layer; None where it is not known, or the layer has files and is not cached."""
        tally = self._find_tally(layer)
        return tally if tally is not None and (not tally.compiled or self.cache.knows(layer.key)) else None

    def _find_tally(self, layer: BytecodeLayer) -> Tally | None:
        return self.cache.note_or_claim(layer.tally_key, Tally.from_dict)
