"""The bytecode of a child: of what is added, and of what its parent has none for.

The parent's packages get the very layers that building the parent with bytecode gives: their keys are the same.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from envbuild.image.assembler import Compiling, bytecode_layers, find_overlap_note, shared_paths
from envbuild.image.bytecode.compiler import FORMAT, Compiled, Compiler, Parcel, Tally, compile_parcels
from envbuild.image.bytecode.layers import MOST_LAYERS, Bytecode
from envbuild.image.config import Slot
from envbuild.image.content import ContentFile, Measured
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import LayerOrder, Maker, OpenWheels
from envbuild.image.layers.plan import Overlap, plan_layers
from envbuild.image.layers.writer import LayerFile
from envbuild.image.rebase import BYTECODE_LINE, STDLIB_WORDS
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.recipe import LAYER_FORMAT, Recipe
from envbuild.wheel.archive import WheelArchive
from envbuild.wheel.install import InstalledFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildBytecode:
    """What is to have bytecode, and by what it is compiled."""

    compiling: Compiling
    below: Recipe
    """The parent's environment, on its own base; without wheels where they are not the child's."""
    above: Recipe
    """What is added, with the parent as its base."""
    lines: Collection[str]
    """What the history says of the parent's layers, without the word that marks them as ours."""

    @property
    def most(self) -> int:
        """How many layers there may be, without those of contents."""
        return MOST_LAYERS + (0 if self._has_packages else MOST_LAYERS)

    def wheels_to_read(self, cache: LayerCache) -> tuple[LockedWheel, ...]:
        """The wheels whose sources are likely to be needed."""
        sets = self._sets((), (), cache)
        return tuple(dict.fromkeys(wheel for it in sets for wheel in it.wheels_to_read()))

    def of_packages(self, overlaps: Sequence[Overlap], maker: Maker) -> tuple[list[LayerOrder], Tally]:
        """The layers that have something in them; what lacks is compiled here, as `Bytecode.layers` says."""
        before = () if self._has_packages else _overlaps(self.below, maker)
        made = [bytecode_layers(it, maker) for it in self._sets(before, overlaps, maker.cache)]
        return [order for orders, _ in made for order in orders], sum((tally for _, tally in made), Tally())

    def of_contents(self, contents: Sequence[Measured], cache: LayerCache) -> tuple[list[LayerOrder], Tally]:
        """The same for sources that are no wheel's; of one that several contents have, the last one counts."""
        found = self._contents_parcels(contents)
        parcels = [parcel for _, parcel in found]
        cache.look_up([it.key for it in parcels], map(_note, parcels))
        lacking = [it for it in parcels if not _is_settled(it, cache)]
        for parcel, compiled in zip(lacking, self._compiled(lacking), strict=True):
            cache.note(_note(parcel), compiled.tally.to_dict())
        tallies = [_tally(it, cache) or Tally() for it in parcels]
        orders = [
            LayerOrder(
                label=f"{BYTECODE_LINE} of {line}",
                key=parcel.key,
                files=partial(self._unpacked, parcel),
                prefix=parcel.prefix,
                compress=True,
            )
            for (line, parcel), tally in zip(found, tallies, strict=True)
            if tally.compiled
        ]
        return orders, sum(tallies, Tally())

    def _contents_parcels(self, contents: Sequence[Measured]) -> list[tuple[str, Parcel]]:
        last = {file.path: it for it in contents for file in it.files}
        seen = [(it.line, [file for file in it.files if last[file.path] is it]) for it in contents]
        return [(line, parcel) for line, files in seen for parcel in _parcels(files, self.compiling.identity)]

    def package_slots(self, overlaps: Sequence[Overlap] | None, cache: LayerCache) -> Iterator[Slot]:
        """The layers that `of_packages` makes or may make; `overlaps` is None where they are not known."""
        before = () if self._has_packages else find_overlap_note(self.below, cache)
        known = before is not None and overlaps is not None
        for it in self._sets(before or (), overlaps or (), cache):
            yield from it.slots(known=known)

    def content_slots(self, contents: Sequence[Measured], cache: LayerCache) -> Iterator[Slot]:
        """The layers that `of_contents` makes or may make."""
        for line, parcel in self._contents_parcels(contents):
            tally = _tally(parcel, cache)
            if tally is None or tally.compiled:
                yield Slot(label=f"{BYTECODE_LINE} of {line}", key=parcel.key, optional=tally is None)

    def _compiled(self, parcels: Sequence[Parcel]) -> list[Compiled]:
        by = self.compiling
        return compile_parcels(parcels, lambda: Compiler(by.find()), by.store, by.told)

    def _unpacked(self, parcel: Parcel, opened: OpenWheels) -> list[LayerFile]:
        [compiled] = self._compiled([parcel])
        archive = opened.stack.enter_context(WheelArchive(compiled.path, f"bytecode {compiled.path.name}"))
        return [LayerFile(InstalledFile(it.name, executable=False, source=it), archive) for it in archive.members]

    def _sets(self, before: Sequence[Overlap], overlaps: Sequence[Overlap], cache: LayerCache) -> list[Bytecode]:
        """Of a recipe without an interpreter's path there is no standard library."""
        library, packages = replace(self.below, wheels=()), replace(self.below, python_path="")
        return [
            *([] if self._has_library else [self.compiling.of(library, (), cache)]),
            *([] if self._has_packages else [self.compiling.of(packages, before, cache)]),
            self.compiling.of(replace(self.above, python_path=""), overlaps, cache),
        ]

    @property
    def _has_library(self) -> bool:
        return any(line.startswith(BYTECODE_LINE) and STDLIB_WORDS in line for line in self.lines)

    @property
    def _has_packages(self) -> bool:
        return any(line.startswith(BYTECODE_LINE) and STDLIB_WORDS not in line for line in self.lines)


def _overlaps(recipe: Recipe, maker: Maker) -> Sequence[Overlap]:
    return shared_paths(recipe, plan_layers(recipe), maker.cache, maker.opened)


@dataclass(frozen=True, slots=True)
class _Source:
    """A source that is no wheel's."""

    path: str
    """Below the prefix."""
    file: ContentFile

    def read(self) -> bytes:
        return self.file.read()


def _parcels(files: Sequence[ContentFile], identity: str) -> Iterator[Parcel]:
    """The sources below each folder of the root, as a layer has one folder that all of it lies in."""
    folders: dict[str, list[_Source]] = {}
    for file in files:
        top, slash, rest = file.path.partition("/")
        if slash and _importable(rest):
            folders.setdefault(f"/{top}", []).append(_Source(rest, file))
    for folder, sources in folders.items():
        rows = [[it.path, it.file.digest.hex] for it in sources]
        said = ["bytecode of content", FORMAT, LAYER_FORMAT, identity, folder, rows]
        yield Parcel(Digest.of(canonical_json(said)), folder, partial(tuple, sources))


def _importable(path: str) -> bool:
    """Whether an import may look for its bytecode; no name that an archive of bytecode could not hold is one."""
    name = path.rpartition("/")[2]
    plain = path.isprintable() and "\\" not in path and ":" not in path
    return plain and name.endswith(".py") and name.removesuffix(".py").isidentifier()


def _note(parcel: Parcel) -> Digest:
    """The key under which it is noted how much bytecode came of sources."""
    return Digest.of(canonical_json(["what is in the bytecode of content", str(parcel.key)]))


def _tally(parcel: Parcel, cache: LayerCache) -> Tally | None:
    return cache.find_note(_note(parcel), Tally.from_dict)


def _is_settled(parcel: Parcel, cache: LayerCache) -> bool:
    """Whether it is known what comes of sources, and somebody has the layer if that is anything."""
    tally = _tally(parcel, cache)
    return tally is not None and (not tally.compiled or cache.knows(parcel.key))
