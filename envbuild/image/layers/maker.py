"""Layers from wheels: found in the cache or the registry, else written, several at a time."""

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
from envbuild.image.layers.helper import Answer, Helper, LocalWheel, OpenWheel, Task, layer_files, open_wheel
from envbuild.image.layers.writer import LayerFile, LayerResult, Link, tarred, write_compressed, write_layer
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import LockedWheel
from envbuild.oci.blobs import GrowingBlob, open_file
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Layer, Opener
from envbuild.recipe import Recipe
from envbuild.retry import as_completed
from envbuild.wheel.install import Fingerprint, Scheme, fingerprint

_CORES = os.cpu_count() or 1
_HEAVY = 64 << 20
"""Bytes of wheels: a layer of this size is worth a process of its own, which takes 0.2 s to start."""
_AT_ONCE = 4
"""Layers that are written at a time: each has parts of itself in memory, and all cores work on it."""

Made = Callable[[Layer], None]
"""Receives a layer that had to be made."""
Begun = Callable[[GrowingBlob], None]
"""Receives a layer that takes long to write, as soon as that begins, so that it can be sent meanwhile."""


class Wheels(Protocol):
    """Wheels by their entry in the lock; some may still be downloading."""

    def path(self, wheel: LockedWheel) -> Path:
        """Return the verified file, as soon as it is there."""

    def stop(self) -> None:
        """End all waiting: the image is no longer needed."""


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """Wheels that are all on this machine, by their sha256."""

    paths: Mapping[Digest, Path]

    def path(self, wheel: LockedWheel) -> Path:
        """Return the file; BuildError if it is absent."""
        found = self.paths.get(wheel.sha256)
        if found is None:
            what = "a layer has left the cache since this run looked for it"
            raise BuildError(what, where=wheel.filename, todo="run again, while nobody prunes the cache")
        return found

    def stop(self) -> None:
        """Do nothing, as nothing waits."""


class OpenWheels:
    """Wheels, each opened when it is first requested, from several threads; closed with the stack."""

    def __init__(self, stack: ExitStack, recipe: Recipe, wheels: Wheels, proving: Container[Digest] = ()) -> None:
        self.stack, self._wheels, self._proving = stack, wheels, proving
        self.scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        self._open: dict[LockedWheel, OpenWheel] = {}
        self._proven: dict[Digest, frozenset[str]] = {}
        self._prints: dict[Digest, Fingerprint] = {}
        self._lock = threading.Lock()

    def __getitem__(self, wheel: LockedWheel) -> OpenWheel:
        path = self._wheels.path(wheel)  # outside the lock: others need not wait for this wheel
        with self._lock:
            if wheel not in self._open:
                self._open[wheel] = open_wheel(self.file(wheel, path), self.scheme, self.stack)
            return self._open[wheel]

    def layer_files(self, wheels: Sequence[LockedWheel]) -> list[LayerFile]:
        """Return all files of some wheels; of equal paths, that of the later wheel."""
        return layer_files(self[wheel] for wheel in wheels)

    def fingerprint(self, wheel: LockedWheel) -> Fingerprint:
        """Return the fingerprint of the wheel's installed files."""
        known = self._prints.get(wheel.sha256)
        return fingerprint(self[wheel].files) if known is None else known

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """Return Requires-Dist of the wheel's METADATA."""
        archive = self[wheel].archive
        members = (it for it in archive.members if it.name.endswith(".dist-info/METADATA") and it.name.count("/") == 1)
        return requirements_of(archive.read(next(members)).decode("utf-8", "replace"))

    def proven(self) -> dict[Digest, frozenset[str]]:
        """Return the members of each wheel that were read and match RECORD."""
        here = {wheel.sha256: frozenset(found.archive.verified_members) for wheel, found in self._open.items()}
        return {key: here.get(key, frozenset()) | self._proven.get(key, frozenset()) for key in here | self._proven}

    def learn(self, answer: Answer) -> None:
        """Take what the other process learned about wheels."""
        self._proven |= answer.verified_members
        self._prints |= answer.prints

    def file(self, wheel: LockedWheel, path: Path) -> LocalWheel:
        """Describe a wheel's file."""
        proving = wheel.sha256 in self._proving
        return LocalWheel(path=path, filename=wheel.filename, sha256=wheel.sha256, size=wheel.size, proving=proving)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOrder:
    """A layer to find or make."""

    label: str
    """Its line in the image's history."""
    key: Digest
    """Digest of everything that decides the bytes."""
    files: Callable[[OpenWheels], Sequence[LayerFile]]
    links: Sequence[Link] = ()
    weight: int = 0
    """Bytes of the wheels in it, for the progress."""
    prefix: str | None = None
    """The folder above the files; None for the environment's own."""
    writer: Callable[[BinaryIO, Executor], LayerResult] | None = None
    """Writes a layer without files of wheels."""
    compress: bool = False
    """Whether the files are not compressed yet, so that the layer is compressed as a whole."""
    wheels: Sequence[LockedWheel] = ()
    """The wheels, if the layer has all of their files and nothing else."""

    @property
    def heavy(self) -> bool:
        """Whether another process should write it."""
        return bool(self.wheels) and self.weight >= _HEAVY


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes layers within its block; a layer of the registry is only made if its bytes are needed."""

    recipe: Recipe
    cache: LayerCache
    wheels: Wheels
    opened: OpenWheels
    pool: Executor
    """Works on the parts of all layers."""
    helper: Helper
    """Writes heavy layers in parallel."""
    begun: Begun | None = None
    results: dict[Digest, LayerResult] = field(default_factory=dict)
    """Results by key."""
    remaking: threading.Lock = field(default_factory=threading.Lock)
    """Held while a layer is made again: that takes all cores, and its parts may be damaged too."""

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
        """Yield a maker whose threads and files end with the block."""
        with ExitStack() as stack:
            opened = OpenWheels(stack, recipe, wheels, proving)
            helper = stack.enter_context(closing(Helper()))
            pool = ThreadPoolExecutor(_CORES, thread_name_prefix="assemble", initializer=helper.give_way)
            stack.enter_context(pool)
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
        """Find or make the layers, in the given order; `made` receives each new layer at once."""
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
            self.helper.close()  # the next step needs its memory
        return [future.result() for future in futures]

    def layer(self, order: LayerOrder) -> Layer:
        """Find or make one layer."""
        cached = self.cache.get(order.key)
        claim = None if cached else self.cache.claim(order.key)
        path: Path | None = None
        if claim is not None:
            result, place = claim.value, "registry"  # nobody checks that the claim is true: docs/caches.md
            opener: Opener = partial(self._remake, order, result, "the registry")
        else:
            found = cached or self.cache.make(order.key, partial(self.write, order))
            result, path, place = found.result, found.path, "cache" if found.reused else ""
            opener = partial(self._open_checked, order, found) if found.reused else partial(open_file, path)
        self.results[order.key] = result
        descriptor = Descriptor(LAYER_GZIP, result.digest, result.size)
        return Layer(descriptor, result.diff_id, opener, order.label, bool(place), found=place, path=path)

    def write(self, order: LayerOrder, sink: BinaryIO) -> LayerResult:
        """Write the bytes of a layer."""
        if not order.heavy or self.begun is None:
            return self._write(order, sink, lambda: None)
        for wheel in order.wheels:
            self.wheels.path(wheel)  # before the registry waits for bytes
        with GrowingBlob(Path(sink.name), order.key, order.label, order.weight) as blob:
            self.begun(blob)
            result = self._write(order, sink, blob.abandon)
            sink.flush()
            blob.finish(Descriptor(LAYER_GZIP, result.digest, result.size), result.diff_id)
        return result

    def _write(self, order: LayerOrder, sink: BinaryIO, abandon: Callable[[], None]) -> LayerResult:
        """Write a layer here or in the other process; calls `abandon` if bytes of the file are discarded."""
        if order.writer:
            return order.writer(sink, self.pool)
        if order.heavy:
            wheels = [self.opened.file(wheel, self.wheels.path(wheel)) for wheel in order.wheels]
            answer = self.helper.write(Task(scheme=self.opened.scheme, wheels=wheels, file=sink.name))
            if answer:
                self.opened.learn(answer)
                return answer.result
        if os.fstat(sink.fileno()).st_size:
            abandon()
            sink.truncate(0)
        prefix = order.prefix or self.recipe.prefix
        files = order.files(self.opened)
        if order.compress:
            return write_compressed(tarred(prefix, files, order.links), sink, self.pool)
        return write_layer(sink, prefix, files, self.pool, order.links)

    def _open_checked(self, order: LayerOrder, found: CachedLayer) -> BinaryIO:
        """Open a cached layer after its bytes were checked; a damaged one is made again."""
        if self.cache.is_intact(found):
            return open_file(found.path)
        return self._remake(order, found.result, "the cache")

    def _remake(self, order: LayerOrder, expected: LayerResult, where: str) -> BinaryIO:
        """Make a layer that the image refers to and that is lost; BuildError if the result is another one."""
        with self.remaking, Maker.working(self.recipe, self.cache, self.wheels) as again:
            found = again.cache.get(order.key)
            if found is None or not again.cache.is_intact(found):
                found = again.cache.make(order.key, partial(again.write, order))
        if found.result != expected:
            what = f"{where} has another layer under {order.key} than these wheels give: {expected.digest}"
            todo = "find out who wrote it; build with --no-remote-cache and another cache (ENVBUILD_CACHE)"
            raise BuildError(what, where=order.label, todo=todo)
        return open_file(found.path)
