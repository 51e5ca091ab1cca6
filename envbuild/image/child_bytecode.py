"""The bytecode of a child image: of what is added, and of what its parent has none for.

The parent's packages get the same layers as in a build of the parent with bytecode: their keys are equal.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from envbuild.image.assembler import Compiling, bytecode_layers, find_overlap_note, shared_paths
from envbuild.image.bytecode.compiler import FORMAT, Compiled, Compiler, Parcel, Source, Tally, compile_parcels
from envbuild.image.bytecode.layers import MOST_LAYERS, Bytecode, layer_files
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildBytecode:
    """What gets bytecode, and the interpreter that compiles it."""

    compiling: Compiling
    below: Recipe
    """The parent's environment, on its own base; without wheels if the child has an environment of its own."""
    above: Recipe
    """What is added, with the parent as its base."""
    lines: Collection[str]
    """The history lines of the parent's layers, without the mark of envbuild's layers."""

    @property
    def most(self) -> int:
        """The largest number of layers, without those of contents."""
        return MOST_LAYERS + (0 if self._has_packages else MOST_LAYERS)

    def wheels_to_read(self, cache: LayerCache) -> tuple[LockedWheel, ...]:
        """Return the wheels whose sources are probably needed."""
        sets = self._sets((), (), cache)
        return tuple(dict.fromkeys(wheel for it in sets for wheel in it.wheels_to_read()))

    def of_packages(self, overlaps: Sequence[Overlap], maker: Maker) -> tuple[list[LayerOrder], Tally]:
        """Return the layers of bytecode that are not empty; compiles and raises as `Bytecode.layers`."""
        below = self.below
        before = () if self._has_packages else shared_paths(below, plan_layers(below), maker.cache, maker.opened)
        results = [bytecode_layers(it, maker) for it in self._sets(before, overlaps, maker.cache)]
        return [order for orders, _ in results for order in orders], sum((tally for _, tally in results), Tally())

    def of_contents(self, contents: Sequence[Measured], cache: LayerCache) -> tuple[list[LayerOrder], Tally]:
        """Do the same for sources outside wheels; of a path that several contents have, the last one counts."""
        pairs = self._content_parcels(contents)
        parcels = [parcel for _, parcel in pairs]
        cache.look_up([it.key for it in parcels], map(_note_key, parcels))
        lacking = [it for it in parcels if not _is_settled(it, cache)]
        for parcel, compiled in zip(lacking, self._compile(lacking), strict=True):
            cache.note(_note_key(parcel), compiled.tally.to_dict())
        tallies = [_tally(it, cache) or Tally() for it in parcels]
        orders = [
            LayerOrder(
                label=f"{BYTECODE_LINE} of {line}",
                key=parcel.key,
                files=partial(self._files, parcel),
                prefix=parcel.prefix,
                compress=True,
            )
            for (line, parcel), tally in zip(pairs, tallies, strict=True)
            if tally.compiled
        ]
        return orders, sum(tallies, Tally())

    def _content_parcels(self, contents: Sequence[Measured]) -> list[tuple[str, Parcel]]:
        last = {file.path: it for it in contents for file in it.files}
        visible = [(it.line, [file for file in it.files if last[file.path] is it]) for it in contents]
        return [(line, parcel) for line, files in visible for parcel in _parcels(files, self.compiling.identity)]

    def package_slots(self, overlaps: Sequence[Overlap] | None, cache: LayerCache) -> Iterator[Slot]:
        """Yield the layers that `of_packages` makes or may make; `overlaps` is None if they are unknown."""
        before = () if self._has_packages else find_overlap_note(self.below, cache)
        known = before is not None and overlaps is not None
        for it in self._sets(before or (), overlaps or (), cache):
            yield from it.slots(known=known)

    def content_slots(self, contents: Sequence[Measured], cache: LayerCache) -> Iterator[Slot]:
        """Yield the layers that `of_contents` makes or may make."""
        for line, parcel in self._content_parcels(contents):
            tally = _tally(parcel, cache)
            if tally is None or tally.compiled:
                yield Slot(label=f"{BYTECODE_LINE} of {line}", key=parcel.key, optional=tally is None)

    def _compile(self, parcels: Sequence[Parcel]) -> list[Compiled]:
        by = self.compiling
        return compile_parcels(parcels, lambda: Compiler(by.find()), by.store, by.told)

    def _files(self, parcel: Parcel, opened: OpenWheels) -> list[LayerFile]:
        [compiled] = self._compile([parcel])
        return layer_files(compiled, opened.stack)

    def _sets(self, before: Sequence[Overlap], overlaps: Sequence[Overlap], cache: LayerCache) -> list[Bytecode]:
        """Split by layers: a recipe without an interpreter's path has no standard library."""
        library, packages = replace(self.below, wheels=()), replace(self.below, python_path="")
        has_library = any(line.startswith(BYTECODE_LINE) and STDLIB_WORDS in line for line in self.lines)
        return [
            *([] if has_library else [self.compiling.of(library, (), cache)]),
            *([] if self._has_packages else [self.compiling.of(packages, before, cache)]),
            self.compiling.of(replace(self.above, python_path=""), overlaps, cache),
        ]

    @property
    def _has_packages(self) -> bool:
        return any(line.startswith(BYTECODE_LINE) and STDLIB_WORDS not in line for line in self.lines)


def _parcels(files: Sequence[ContentFile], identity: str) -> Iterator[Parcel]:
    """Group the sources by the top folder of the root, as all files of a layer are below one folder."""
    tops: dict[str, list[tuple[str, ContentFile]]] = {}
    for file in files:
        top, slash, path = file.path.partition("/")
        if slash and _is_importable(path):
            tops.setdefault(f"/{top}", []).append((path, file))
    for folder, sources in tops.items():
        rows = [[path, file.digest.hex] for path, file in sources]
        key = Digest.of(canonical_json(["bytecode of content", FORMAT, LAYER_FORMAT, identity, folder, rows]))
        yield Parcel(key, folder, partial(list, [Source(path, file.read) for path, file in sources]))


def _is_importable(path: str) -> bool:
    """Whether an import may look for the bytecode of a path that an archive of bytecode can hold."""
    name = path.rpartition("/")[2]
    plain = path.isprintable() and "\\" not in path and ":" not in path
    return plain and name.endswith(".py") and name.removesuffix(".py").isidentifier()


def _note_key(parcel: Parcel) -> Digest:
    return Digest.of(canonical_json(["what is in the bytecode of content", str(parcel.key)]))


def _tally(parcel: Parcel, cache: LayerCache) -> Tally | None:
    return cache.find_note(_note_key(parcel), Tally.from_dict)


def _is_settled(parcel: Parcel, cache: LayerCache) -> bool:
    """Whether the number of compiled files is known, and the layer cached unless it is empty."""
    tally = _tally(parcel, cache)
    return tally is not None and (not tally.compiled or cache.knows(parcel.key))
