"""The bytecode layers of an image: which wheel's bytecode goes into which layer, and the files of each.

The rule is fixed and reads nothing but the lock, so no interpreter is needed to know a layer's key.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from packaging.utils import parse_wheel_filename

from envbuild.image.bytecode.compiler import (
    CORES,
    FORMAT,
    Compiled,
    Compiler,
    Interpreter,
    Parcel,
    Source,
    Store,
    Tally,
    compile_parcels,
)
from envbuild.image.config import Slot
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import OpenWheels
from envbuild.image.layers.plan import Overlap
from envbuild.image.layers.writer import LayerFile
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import Recipe
from envbuild.wheel.archive import Member, WheelArchive
from envbuild.wheel.install import InstalledFile

_LARGE = 64 << 20
"""Bytes of a wheel: from this size its bytecode is worth a layer, which costs time at each pull."""
_MOST_LARGE = 4
MOST_LAYERS = _MOST_LARGE + 2
"""Large wheels, the other wheels, the base's standard library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BytecodeLayer:
    """A layer of bytecode; it may turn out to be empty."""

    label: str
    """Its line in the image's history."""
    key: Digest
    """Digest of everything that decides the bytes."""
    prefix: str
    """The folder above all of its files."""
    wheels: tuple[LockedWheel, ...]
    """The wheels whose bytecode it holds; none for the base's standard library."""

    @property
    def contents(self) -> Digest:
        """The key of the note with the number of files in the layer."""
        return Digest.of(canonical_json(["what is in a bytecode layer", str(self.key)]))


def plan_bytecode(recipe: Recipe, interpreter: str, overlaps: Sequence[Overlap]) -> tuple[BytecodeLayer, ...]:
    """Give the largest wheels with code a layer each, and the others one."""
    by_size = sorted(recipe.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    # A large wheel for one platform and any Python holds libraries of another language, as NVIDIA's do.
    large = [
        wheel
        for wheel in by_size
        if wheel.size >= _LARGE
        and any(tag.abi != "none" or tag.platform == "any" for tag in parse_wheel_filename(wheel.filename)[3])
    ][:_MOST_LARGE]
    others = sorted(set(by_size) - set(large), key=lambda wheel: wheel.name)
    layers = []
    for wheels in [[wheel] for wheel in large] + ([others] if others else []):
        keys = [[wheel.filename, str(_wheel_key(recipe, interpreter, wheel, overlaps))] for wheel in wheels]
        layers.append(
            BytecodeLayer(
                label="bytecode of " + ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels),
                key=Digest.of(canonical_json(["bytecode layer", recipe.layer_format, keys])),
                prefix=recipe.prefix,
                wheels=tuple(wheels),
            )
        )
    return tuple(layers)


def _wheel_key(recipe: Recipe, interpreter: str, wheel: LockedWheel, overlaps: Sequence[Overlap]) -> Digest:
    facts = [FORMAT, interpreter, recipe.prefix, recipe.target.python_minor]
    return Digest.of(canonical_json(["bytecode", facts, str(wheel.sha256), _lost_paths(wheel, overlaps)]))


def _lost_paths(wheel: LockedWheel, overlaps: Sequence[Overlap]) -> list[str]:
    """Return the sources of a wheel that another wheel's files replace: their bytecode must not hide the other's."""
    return sorted(it.path for it in overlaps if it.path.endswith(".py") and wheel.name in it.losers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytecode:
    """The bytecode of one image; an interpreter is only started if something has to be compiled."""

    recipe: Recipe
    identity: str
    """The identity of the base's interpreter: `Base.interpreter`."""
    overlaps: Sequence[Overlap]
    find: Callable[[], Interpreter]
    """Gets the interpreter; BuildError if it cannot run."""
    cache: LayerCache
    store: Store
    processes: int = CORES
    told: Callable[[int], object] = lambda _count: None

    def possible_layers(self) -> tuple[BytecodeLayer, ...]:
        """Return all layers that may exist, lowest first; empty ones are left out later."""
        recipe = self.recipe
        home = posixpath.dirname(posixpath.dirname(recipe.python_path))
        facts = [FORMAT, recipe.layer_format, self.identity, str(recipe.base_digest), recipe.python_path]
        key = Digest.of(canonical_json(["bytecode of the standard library", facts]))
        label = "bytecode of the base's standard library"
        library = [BytecodeLayer(label=label, key=key, prefix=home, wheels=())] if home.strip("/") else []
        return (*library, *plan_bytecode(recipe, self.identity, self.overlaps))

    def wheels_to_read(self) -> tuple[LockedWheel, ...]:
        """Return the wheels whose sources `layers` will need."""
        unknown = [layer for layer in self.possible_layers() if not self._is_settled(layer)]
        return tuple(wheel for layer in unknown for wheel in layer.wheels if self.store.get(self._key(wheel)) is None)

    def slots(self, *, known: bool) -> Iterator[Slot]:
        """Yield the layers that an image has or may have; `known` if the overlaps, and so the keys, are known."""
        possible = self.possible_layers()
        self.cache.look_up((), [layer.contents for layer in possible] if known else ())
        for layer in possible:
            tally = self._noted(layer) if known else None
            if tally is None or tally.compiled:
                yield Slot(label=layer.label, key=layer.key if known else None, optional=tally is None)

    def layers(self, opened: OpenWheels) -> tuple[tuple[BytecodeLayer, ...], Tally]:
        """Compile what is not cached; return the layers that are not empty, and the counts of all.

        WheelError if a wheel is damaged, BuildError if the interpreter does not work.
        """
        possible = self.possible_layers()
        lacking = [layer for layer in possible if not self._is_settled(layer)]
        self._compile([parcel for layer in lacking for parcel in self._parcels(layer, opened)])
        tallies = []
        for layer in possible:
            tally = None if layer in lacking else self._noted(layer)
            if tally is None:  # count what was compiled here, and not what the registry notes
                tally = sum((it.tally for it in self._compile(list(self._parcels(layer, opened)))), Tally())
                self.cache.note(layer.contents, tally.to_dict())
            tallies.append(tally)
        filled = tuple(layer for layer, tally in zip(possible, tallies, strict=True) if tally.compiled)
        return filled, sum(tallies, Tally())

    def files(self, layer: BytecodeLayer, opened: OpenWheels) -> list[LayerFile]:
        """Return the files of a layer, below its prefix; their archives stay open as long as the wheels."""
        files: dict[str, LayerFile] = {}
        # In the order of the lock, so that the later wheel wins if two have the same source.
        for compiled in self._compile(list(self._parcels(layer, opened))):
            files |= {it.file.path: it for it in layer_files(compiled, opened.stack)}
        return list(files.values())

    def _compile(self, parcels: Sequence[Parcel]) -> list[Compiled]:
        return compile_parcels(parcels, lambda: Compiler(self.find(), self.processes), self.store, self.told)

    def _parcels(self, layer: BytecodeLayer, opened: OpenWheels) -> Iterator[Parcel]:
        if not layer.wheels:
            yield Parcel(layer.key, layer.prefix, self._library)
        for wheel in layer.wheels:
            yield Parcel(self._key(wheel), layer.prefix, partial(self._sources, wheel, opened))

    def _sources(self, wheel: LockedWheel, opened: OpenWheels) -> list[Source]:
        """Return the sources that imports can find, without those that another wheel's files replace."""
        files, archive = opened[wheel].files, opened[wheel].archive
        paths = {file.path for file in files}
        skipped = {*_lost_paths(wheel, self.overlaps)}
        skipped |= {path for path in paths if f"{path.rpartition('/')[0]}/__pycache__" in paths}
        site = f"{opened.scheme.site_packages}/"
        modules = [it for it in files if it.path.startswith(site) and it.path.endswith(".py")]
        return [Source(it.path, partial(_read, it, archive)) for it in modules if it.path not in skipped]

    def _library(self) -> list[Source]:
        interpreter = self.find()
        return [Source(path, (interpreter.home / path).read_bytes) for path in interpreter.lacking]

    def _key(self, wheel: LockedWheel) -> Digest:
        return _wheel_key(self.recipe, self.identity, wheel, self.overlaps)

    def _is_settled(self, layer: BytecodeLayer) -> bool:
        """Whether the number of files in a layer is known, and the layer cached unless it is empty."""
        tally = self._noted(layer)
        return tally is not None and (not tally.compiled or self.cache.knows(layer.key))

    def _noted(self, layer: BytecodeLayer) -> Tally | None:
        return self.cache.find_note(layer.contents, Tally.from_dict)


def _read(file: InstalledFile, archive: WheelArchive) -> bytes:
    return archive.read(file.source) if isinstance(file.source, Member) else file.source


def layer_files(compiled: Compiled, stack: ExitStack) -> list[LayerFile]:
    """Return the files of an archive of bytecode, which stays open until the stack ends."""
    if not compiled.tally.compiled:
        return []
    archive = stack.enter_context(WheelArchive(compiled.path, f"bytecode {compiled.path.name}"))
    return [LayerFile(InstalledFile(it.name, executable=False, source=it), archive) for it in archive.members]
