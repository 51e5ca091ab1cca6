"""Where the assembler gets wheels from, and how it opens them."""

import os
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from envbuild.errors import BuildError
from envbuild.image.layers.cache import CachedLayer, LayerCache
from envbuild.image.layers.helper import Helper, LocalWheel, OpenWheel, Task, layer_files, open_wheel
from envbuild.image.layers.writer import LayerFile, LayerResult, Link, tarred, write_compressed, write_layer
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import LockedWheel
from envbuild.oci.blobs import GrowingBlob
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Layer, Opener
from envbuild.recipe import Recipe
from envbuild.retry import as_completed
from envbuild.wheel.install import Fingerprint, Scheme, fingerprint


class Wheels(Protocol):
    """Wheels by what is locked; one may still be on its way."""

    def path(self, wheel: LockedWheel) -> Path:
        """The verified file, as soon as it is there."""

    def stop(self) -> None:
        """Let nobody wait any more: the image is not wanted."""


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """Wheels that are all here, by their sha256."""

    paths: Mapping[Digest, Path]

    def path(self, wheel: LockedWheel) -> Path:
        """The file; BuildError where it is not here."""
        found = self.paths.get(wheel.sha256)
        if found is None:
            what = "a layer has left the cache since this run looked for it"
            raise BuildError(what, where=wheel.filename, todo="run again, while nobody prunes the cache")
        return found

    def stop(self) -> None:
        """Do nothing, as nobody waits."""


class OpenWheels:
    """Wheels, each opened when it is first asked for, from several threads; closed with the stack."""

    def __init__(self, stack: ExitStack, recipe: Recipe, wheels: Wheels, proving: Container[Digest] = ()) -> None:
        self.stack, self._wheels, self._proving = stack, wheels, proving
        self.scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        self._found: dict[LockedWheel, OpenWheel] = {}
        self._true: dict[Digest, frozenset[str]] = {}
        self._prints: dict[Digest, Fingerprint] = {}
        self._lock = threading.Lock()

    def __getitem__(self, wheel: LockedWheel) -> OpenWheel:
        path = self._wheels.path(wheel)  # without the lock: others need not wait for this one
        with self._lock:
            if wheel not in self._found:
                self._found[wheel] = self._open(wheel, path)
            return self._found[wheel]

    def layer_files(self, wheels: Sequence[LockedWheel]) -> list[LayerFile]:
        """All files of some wheels; in the order of the lock, so that the later wheel wins where two have one path."""
        return layer_files(self[wheel] for wheel in wheels)

    def fingerprint(self, wheel: LockedWheel) -> Fingerprint:
        """What the wheel puts where."""
        known = self._prints.get(wheel.sha256)
        return fingerprint(self[wheel].files) if known is None else known

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """Requires-Dist of the wheel's METADATA."""
        archive = self[wheel].archive
        members = (it for it in archive.members if it.name.endswith(".dist-info/METADATA") and it.name.count("/") == 1)
        return requirements_of(archive.read(next(members)).decode("utf-8", "replace"))

    def true(self) -> dict[Digest, frozenset[str]]:
        """The members of each wheel that were read and found to be what its RECORD says."""
        found = {wheel.sha256: frozenset(found.archive.true) for wheel, found in self._found.items()}
        return {key: found.get(key, frozenset()) | self._true.get(key, frozenset()) for key in found | self._true}

    def learn(self, true: Mapping[Digest, frozenset[str]], prints: Mapping[Digest, Fingerprint]) -> None:
        """Take what another process found in wheels that it read."""
        self._true |= true
        self._prints |= prints

    def _open(self, wheel: LockedWheel, path: Path) -> OpenWheel:
        return open_wheel(self.file(wheel, path), self.scheme, self.stack)

    def file(self, wheel: LockedWheel, path: Path) -> LocalWheel:
        """A wheel as it lies there."""
        proving = wheel.sha256 in self._proving
        return LocalWheel(path=path, filename=wheel.filename, sha256=wheel.sha256, size=wheel.size, proving=proving)


_CORES = os.cpu_count() or 1
_HEAVY = 64 << 20
"""Bytes of wheels: a layer of so many is worth a process of its own, which takes 0.2 s to begin."""
_AT_ONCE = 4
"""Layers that are written at a time: each has parts of itself in memory, and is worked on by all cores."""


Made = Callable[[Layer], None]
"""Told a layer that had to be made."""
Begun = Callable[[GrowingBlob], None]
"""Told a layer that takes a while to write, as it is begun, so that it can be sent meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOrder:
    """A layer that is wanted."""

    label: str
    """What the image's history says."""
    key: Digest
    """Everything that decides the bytes."""
    files: Callable[[OpenWheels], Sequence[LayerFile]]
    links: Sequence[Link] = ()
    weight: int = 0
    """Bytes of the wheels in it, for the progress."""
    prefix: str | None = None
    """The folder that the files lie below; None for the environment's own."""
    writer: Callable[[BinaryIO, Executor], LayerResult] | None = None
    """Writes a layer that no wheel has a part in."""
    compress: bool = False
    """Whether nobody has compressed its files, so that the layer has them compressed together."""
    wheels: Sequence[LockedWheel] = ()
    """The wheels, where the layer is all of their files and nothing else."""

    @property
    def heavy(self) -> bool:
        """Whether another process had better write it."""
        return bool(self.wheels) and self.weight >= _HEAVY


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes layers while its block lasts; a layer that only others have is made when somebody needs its bytes."""

    recipe: Recipe
    cache: LayerCache
    wheels: Wheels
    opened: OpenWheels
    pool: Executor
    """Works on the parts of all layers."""
    helper: Helper
    """Writes heavy layers beside it."""
    begun: Begun | None = None
    results: dict[Digest, LayerResult] = field(default_factory=dict)
    """What came of each key."""
    remaking: threading.Lock = field(default_factory=threading.Lock)
    """Held by who makes a layer again: each has all cores, and what it is made of may be damaged too."""

    @classmethod
    @contextmanager
    def working(
        cls,
        recipe: Recipe,
        cache: LayerCache,
        wheels: Wheels,
        proving: Container[Digest] = (),
        begun: Begun | None = None,
    ) -> Iterator[Self]:
        """Yield one whose threads and files end with the block."""
        with ExitStack() as stack:
            opened = OpenWheels(stack, recipe, wheels, proving)
            helper = stack.enter_context(closing(Helper()))
            pool = stack.enter_context(
                ThreadPoolExecutor(_CORES, thread_name_prefix="assemble", initializer=helper.give_way)
            )
            yield cls(
                recipe=recipe,
                cache=cache,
                wheels=wheels,
                opened=opened,
                pool=pool,
                helper=helper,
                begun=begun,
            )

    def layers(self, orders: Sequence[LayerOrder], report: Callable[[int], None], made: Made) -> list[Layer]:
        """Find or make the layers, in the order given; `made` is told each one that had to be made, at once."""
        heavy = any(order.heavy and not self.cache.knows(order.key) for order in orders)
        if heavy:
            self.helper.start()
        give_way = self.helper.give_way if heavy else None
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="layer", initializer=give_way) as several:
            futures = {several.submit(self.layer, order): order for order in orders}
            try:
                for future in as_completed(futures):
                    layer = future.result()
                    if not layer.reused:
                        made(layer)
                    report(futures[future].weight)
            except BaseException:
                several.shutdown(wait=False, cancel_futures=True)
                self.wheels.stop()
                self.helper.stop()
                raise
        if heavy:
            self.helper.close()  # what comes after needs its memory
        return [future.result() for future in futures]

    def layer(self, order: LayerOrder) -> Layer:
        """Find or make one layer."""
        cached = self.cache.get(order.key)
        claim = None if cached else self.cache.elsewhere(order.key)
        if claim is not None:
            known = self.results[order.key] = claim.value  # that it is true, nobody checks: docs/caches.md
            return _layer(order, known, partial(self._remade, order, known), "registry", None)
        found = cached or self.cache.make(order.key, partial(self.write, order))
        self.results[order.key] = found.result
        opener = partial(self._intact, order, found) if found.reused else partial(_open, found.path)
        return _layer(order, found.result, opener, "cache" if found.reused else "", found.path)

    def write(self, order: LayerOrder, sink: BinaryIO) -> LayerResult:
        """Write the bytes of a layer."""
        if not order.heavy or self.begun is None:
            return self._written(order, sink, lambda: None)
        for wheel in order.wheels:
            self.wheels.path(wheel)  # no registry is to wait for a download
        with GrowingBlob(Path(sink.name), order.key, order.label, order.weight) as blob:
            self.begun(blob)
            result = self._written(order, sink, blob.abandon)
            sink.flush()
            blob.finish(Descriptor(LAYER_GZIP, result.digest, result.size), result.diff_id)
        return result

    def _written(self, order: LayerOrder, sink: BinaryIO, abandon: Callable[[], None]) -> LayerResult:
        """Write a layer here or beside; `abandon` is called where what was written is thrown away."""
        if order.writer:
            return order.writer(sink, self.pool)
        if order.heavy and (found := self._beside(order, sink)):
            return found
        if os.fstat(sink.fileno()).st_size:
            abandon()
            sink.truncate(0)
        prefix = order.prefix or self.recipe.prefix
        files = order.files(self.opened)
        if order.compress:
            return write_compressed(tarred(prefix, files, order.links), sink, self.pool)
        return write_layer(sink, prefix, files, self.pool, order.links)

    def _beside(self, order: LayerOrder, sink: BinaryIO) -> LayerResult | None:
        """Let the other process write a layer; None where it does not, and anything may be in the file."""
        wheels = [self.opened.file(wheel, self.wheels.path(wheel)) for wheel in order.wheels]
        task = Task(scheme=self.opened.scheme, wheels=wheels, file=sink.name)
        answer = self.helper.write(task)
        if answer is None:
            return None
        self.opened.learn(answer.true, answer.prints)
        return answer.result

    def _intact(self, order: LayerOrder, found: CachedLayer) -> BinaryIO:
        """Open a layer of the cache after its bytes were read; a damaged one is made again."""
        return _open(found.path) if self.cache.is_intact(found) else self._remade(order, found.result, "the cache")

    def _remade(self, order: LayerOrder, expected: LayerResult, where: str = "the registry") -> BinaryIO:
        """Open a layer that the image counts on and nobody has any more: make it, and see that it is the one."""
        with self.remaking, Maker.working(self.recipe, self.cache, self.wheels) as again:
            found = again.cache.get(order.key)
            if found is None or not again.cache.is_intact(found):
                found = again.cache.make(order.key, partial(again.write, order))
        if found.result != expected:
            what = f"{where} has another layer under {order.key} than these wheels give: {expected.digest}"
            todo = "find out who wrote it; build with --no-remote-cache and another cache (ENVBUILD_CACHE)"
            raise BuildError(what, where=order.label, todo=todo)
        return _open(found.path)


def _layer(order: LayerOrder, result: LayerResult, opener: Opener, found: str, path: Path | None) -> Layer:
    descriptor = Descriptor(LAYER_GZIP, result.digest, result.size)
    return Layer(descriptor, result.diff_id, opener, order.label, bool(found), found=found, path=path)


def _open(path: Path) -> BinaryIO:
    return path.open("rb")
