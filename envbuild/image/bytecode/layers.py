"""Which files of a wheel have bytecode, and where it goes (PEP 3147)."""

import posixpath
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envbuild.image.bytecode.compiler import (
    CORES,
    FORMAT,
    Compiled,
    Compiler,
    Interpreter,
    Parcel,
    Store,
    Tally,
    Told,
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
from envbuild.wheel.install import InstalledFile, Scheme


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A source in a wheel."""

    file: InstalledFile
    archive: WheelArchive

    @property
    def path(self) -> str:
        """Below the prefix."""
        return self.file.path

    def read(self) -> bytes:
        """The content, checked."""
        return self.archive.read(self.file.source) if isinstance(self.file.source, Member) else self.file.source


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """A source of the base's standard library."""

    path: str
    """Below the interpreter's prefix: `lib/python3.11/os.py`."""
    home: Path
    """A copy of what lies below that."""

    def read(self) -> bytes:
        """The content, which was checked."""
        return (self.home / self.path).read_bytes()


def wheel_sources(
    files: Sequence[InstalledFile], archive: WheelArchive, site_packages: str, lost: Collection[str]
) -> list[WheelSource]:
    """The sources that imports may find, sorted by path, without those that another wheel's files replace."""
    paths = {file.path for file in files}
    taken = {*lost} | {file.path for file in files if f"{file.path.rpartition('/')[0]}/__pycache__" in paths}
    kept = [file for file in files if file.path.startswith(f"{site_packages}/") and file.path.endswith(".py")]
    return [WheelSource(file, archive) for file in kept if file.path not in taken]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BytecodeLayer:
    """A layer that is wanted."""

    label: str
    """What the image's history says."""
    key: Digest
    """Everything that decides the bytes."""
    prefix: str
    """The folder that its files lie below."""
    wheels: tuple[LockedWheel, ...]
    """Whose bytecode it holds; none for the base's standard library."""

    @property
    def contents(self) -> Digest:
        """The key under which it is noted how much is in the layer."""
        return Digest.of(canonical_json(["what is in a bytecode layer", str(self.key)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytecode:
    """The bytecode of one image; no interpreter is asked for until something has to be compiled."""

    recipe: Recipe
    identity: str
    """What tells the base's interpreter from others: `Base.interpreter`."""
    overlaps: Sequence[Overlap]
    find: Callable[[], Interpreter]
    """Gets the interpreter, or raises BuildError."""
    cache: LayerCache
    store: Store
    processes: int = CORES
    told: Told = lambda _count: None

    def wanted(self) -> tuple[BytecodeLayer, ...]:
        """All layers that there may be, lowest first; those that turn out to be empty are left out later."""
        home = posixpath.dirname(posixpath.dirname(self.recipe.python_path))
        key = library_key(self.recipe, self.identity)
        label = "bytecode of the base's standard library"
        library = [BytecodeLayer(label=label, key=key, prefix=home, wheels=())] if home.strip("/") else []
        plans = plan_bytecode(self.recipe, self.identity, self.overlaps)
        prefix = self.recipe.prefix
        return (*library, *(BytecodeLayer(label=it.label, key=it.key, prefix=prefix, wheels=it.wheels) for it in plans))

    def wheels_to_read(self) -> tuple[LockedWheel, ...]:
        """The wheels whose sources `layers` will need."""
        unknown = [layer for layer in self.wanted() if not self._settled(layer)]
        return tuple(wheel for layer in unknown for wheel in layer.wheels if self.store.get(self._key(wheel)) is None)

    def slots(self, *, known: bool) -> Iterator[Slot]:
        """The layers of bytecode that an image has or may have; `known` if the overlaps are known, and so are keys."""
        wanted = self.wanted()
        self.cache.look_up((), [layer.contents for layer in wanted] if known else ())
        for layer in wanted:
            tally = self._noted(layer) if known else None
            if tally is None or tally.compiled:
                yield Slot(label=layer.label, key=layer.key if known else None, optional=tally is None)

    def layers(self, opened: OpenWheels) -> tuple[tuple[BytecodeLayer, ...], Tally]:
        """Compile all that nobody has; return the layers that have something in them, and what there is to say.

        WheelError where a wheel is damaged, BuildError where the interpreter does not work.
        """
        wanted = self.wanted()
        lacking = [layer for layer in wanted if not self._settled(layer)]
        self._compile([parcel for layer in lacking for parcel in self._parcels(layer, opened)])
        # Count what was compiled here, not what the registry says.
        tallies = [self._tally(layer, opened, known=layer not in lacking) for layer in wanted]
        filled = tuple(layer for layer, tally in zip(wanted, tallies, strict=True) if tally.compiled)
        return filled, sum(tallies, Tally())

    def files(self, layer: BytecodeLayer, opened: OpenWheels, stack: ExitStack) -> list[LayerFile]:
        """The files of a layer, below its prefix; the stack holds what has to stay open until they are written."""
        found: dict[str, LayerFile] = {}
        # in the order of the lock, so that the later wheel wins where two of them have the same source
        for compiled in self._compile(list(self._parcels(layer, opened))):
            if compiled.tally.compiled:
                archive = stack.enter_context(WheelArchive(compiled.path, f"bytecode {compiled.path.name}"))
                files = (InstalledFile(it.name, executable=False, source=it) for it in archive.members)
                found |= {file.path: LayerFile(file, archive) for file in files}
        return list(found.values())

    def _compile(self, parcels: Sequence[Parcel]) -> list[Compiled]:
        return compile_parcels(parcels, lambda: Compiler(self.find(), self.processes), self.store, self.told)

    def _parcels(self, layer: BytecodeLayer, opened: OpenWheels) -> Iterator[Parcel]:
        if not layer.wheels:
            yield Parcel(layer.key, layer.prefix, self._library)
        for wheel in layer.wheels:
            yield Parcel(self._key(wheel), layer.prefix, partial(self._sources, wheel, opened))

    def _sources(self, wheel: LockedWheel, opened: OpenWheels) -> list[WheelSource]:
        scheme = Scheme(prefix=self.recipe.prefix, python_minor=self.recipe.target.python_minor)
        found = opened[wheel]
        return wheel_sources(found.files, found.archive, scheme.site_packages, lost_paths(wheel, self.overlaps))

    def _library(self) -> list[LibrarySource]:
        interpreter = self.find()
        return [LibrarySource(path, interpreter.home) for path in interpreter.lacking]

    def _key(self, wheel: LockedWheel) -> Digest:
        return wheel_key(self.recipe, self.identity, wheel, self.overlaps)

    def _settled(self, layer: BytecodeLayer) -> bool:
        """Whether it is known what is in a layer, and somebody has it if there is anything."""
        tally = self._noted(layer)
        return tally is not None and (not tally.compiled or self.cache.knows(layer.key))

    def _tally(self, layer: BytecodeLayer, opened: OpenWheels, *, known: bool) -> Tally:
        noted = self._noted(layer) if known else None
        if noted is None:
            noted = sum((it.tally for it in self._compile(list(self._parcels(layer, opened)))), Tally())
            self.cache.note(layer.contents, noted.to_dict())
        return noted

    def _noted(self, layer: BytecodeLayer) -> Tally | None:
        return self.cache.find_note(layer.contents, Tally.from_dict)
