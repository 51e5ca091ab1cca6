"""Layers from wheels: found in the cache or the registry, else written, several at a time."""

import os
import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from envbuild.errors import BuildError
from envbuild.image.layers.cache import CachedLayer, LayerCache
from envbuild.image.layers.helper import Answer, Helper, LocalWheel, OpenWheel, Task, open_wheel
from envbuild.image.layers.writer import LayerFile, LayerResult, Link, tar_layer, write_compressed, write_layer
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import LockedWheel
from envbuild.oci.blobs import GrowingBlob, open_file
from envbuild.oci.compression import Compression
from envbuild.oci.deflate import LastBlockError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Layer, Opener
from envbuild.recipe import Recipe
from envbuild.report import SILENT, Reporter
from envbuild.retry import as_completed
from envbuild.wheel.install import Fingerprint, Scheme, fingerprint

_CORES = os.cpu_count() or 1
_HEAVY = 64 << 20
"""Bytes of wheels: a layer of this size is worth a process of its own, which takes 0.2 s to start."""
_AT_ONCE = 4
"""Layers that are written at a time: each has parts of itself in memory, and all cores work on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyOptions:
    """Which wheels to verify, and who learns of layers while they are made."""

    reporter: Reporter = SILENT
    wheels_to_verify: Container[Digest] = ()
    """By sha256: wheels whose files are compared with their RECORD as they are read."""
    on_layer: Callable[[Layer], object] = lambda _layer: None
    """Receives each new layer as soon as it is written."""
    on_start: Callable[[GrowingBlob], object] | None = None
    """Receives a layer that takes long to write, as soon as that begins, so that it can be sent meanwhile."""


DEFAULTS = AssemblyOptions()


class Wheels(Protocol):
    """Wheels by their entry in the lock; some may still be downloading."""

    def path(self, wheel: LockedWheel) -> Path:
        """Return the verified file, as soon as it is there."""

    def stop(self) -> None:
        """End all waiting: the image is no longer needed."""


class OpenWheels:
    """Wheels, each opened when it is first requested, from several threads; closed with `resources`."""

    def __init__(self, resources: ExitStack, recipe: Recipe, wheels: Wheels, to_verify: Container[Digest] = ()) -> None:
        self.resources, self._wheels, self._to_verify = resources, wheels, to_verify
        self.scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        self._open: dict[LockedWheel, OpenWheel] = {}
        self._verified: dict[Digest, frozenset[str]] = {}
        self._prints: dict[Digest, Fingerprint] = {}
        self._lock = threading.Lock()

    def __getitem__(self, wheel: LockedWheel) -> OpenWheel:
        path = self._wheels.path(wheel)  # outside the lock: others need not wait for this wheel
        with self._lock:
            if wheel not in self._open:
                self._open[wheel] = open_wheel(self.file(wheel, path), self.scheme, self.resources)
            return self._open[wheel]

    def fingerprint(self, wheel: LockedWheel) -> Fingerprint:
        """Return the fingerprint of the wheel's installed files."""
        known = self._prints.get(wheel.sha256)
        return fingerprint(self[wheel].files) if known is None else known

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """Return Requires-Dist of the wheel's METADATA."""
        archive = self[wheel].archive
        members = (it for it in archive.members if it.name.endswith(".dist-info/METADATA") and it.name.count("/") == 1)
        return requirements_of(archive.read(next(members)).decode("utf-8", "replace"))

    def verified_members(self) -> dict[Digest, frozenset[str]]:
        """Return the members of each wheel that were read and match RECORD."""
        here = {wheel.sha256: frozenset(found.archive.verified_members) for wheel, found in self._open.items()}
        return {key: here.get(key, frozenset()) | self._verified.get(key, frozenset()) for key in here | self._verified}

    def learn(self, answer: Answer) -> None:
        """Take what the other process learned about wheels."""
        self._verified |= answer.verified_members
        self._prints |= answer.prints

    def file(self, wheel: LockedWheel, path: Path) -> LocalWheel:
        """Describe a wheel's file."""
        return LocalWheel(
            path=path,
            filename=wheel.filename,
            sha256=wheel.sha256,
            size=wheel.size,
            verify_record=wheel.sha256 in self._to_verify,
            left_out=wheel.left_out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A layer to find or make."""

    label: str
    """Its line in the image's history."""
    key: Digest
    """Digest of everything that decides the bytes."""
    files: Callable[[OpenWheels], Sequence[LayerFile]]
    links: Sequence[Link] = ()
    weight: int = 0
    """Bytes of its contents, for the progress and for whether it is `heavy`."""
    prefix: str | None = None
    """The folder above the files; None for the environment's own."""
    writer: Callable[[BinaryIO, Executor, Compression], LayerResult] | None = None
    """Writes a layer without files of wheels."""
    compress: bool = False
    """Whether the files are not compressed yet, so that the layer is compressed as a whole."""
    wheels: Sequence[LockedWheel] = ()
    """The wheels, if the layer has all of their files and nothing else."""

    @property
    def heavy(self) -> bool:
        """Whether another process should write it."""
        return bool(self.wheels) and self.weight >= _HEAVY


class Maker:
    """Makes layers within its block; a layer of the registry is only made if its bytes are needed."""

    def __init__(self, recipe: Recipe, cache: LayerCache, wheels: Wheels, options: AssemblyOptions = DEFAULTS) -> None:
        self._recipe, self._cache, self._wheels, self._options = recipe, cache, wheels, options
        self._stack = ExitStack()
        self.opened = OpenWheels(self._stack, recipe, wheels, options.wheels_to_verify)
        self.results: dict[Digest, LayerResult] = {}
        """Results by key."""
        self._helper = self._stack.enter_context(closing(Helper()))  # writes heavy layers in parallel
        # Works on the parts of all layers.
        pool = ThreadPoolExecutor(_CORES, thread_name_prefix="assemble", initializer=self._helper.give_way)
        self._pool = self._stack.enter_context(pool)
        self._remaking = threading.Lock()  # making a layer again takes all cores, and its parts may be damaged too
        self._done = self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def layers(self, specs: Sequence[LayerSpec]) -> list[Layer]:
        """Find or make the layers, in the given order."""
        heavy = any(spec.heavy and not self._cache.knows(spec.key) for spec in specs)
        if heavy:
            self._helper.start()
        give_way = self._helper.give_way if heavy else None
        self._total += sum(spec.weight for spec in specs)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="layer", initializer=give_way) as several:
            futures = {several.submit(self.layer, spec): spec for spec in specs}
            try:
                for future in as_completed(futures):
                    layer = future.result()
                    if not layer.reused:
                        self._options.on_layer(layer)
                    self._done += futures[future].weight
                    self._options.reporter.progress("assembling", self._done, self._total)
            except BaseException:
                several.shutdown(wait=False, cancel_futures=True)
                self._wheels.stop()
                self._helper.stop()
                raise
        if heavy:
            self._helper.close()  # the next step needs its memory
        return [future.result() for future in futures]

    def layer(self, spec: LayerSpec) -> Layer:
        """Find or make one layer."""
        cached = self._cache.get(spec.key)
        claim = None if cached else self._cache.claim(spec.key)
        path: Path | None = None
        if claim is not None:
            result, place = claim.value, "registry"  # nobody checks that the claim is true: docs/caches.md
            opener: Opener = partial(self._open, spec, result, "the registry")
        else:
            found = cached or self._cache.make(spec.key, partial(self.write, spec))
            result, path, place = found.result, found.path, "cache" if found.reused else ""
            opener = partial(self._open, spec, result, "the cache", found) if found.reused else partial(open_file, path)
        self.results[spec.key] = result
        return Layer(result.descriptor, result.diff_id, opener, spec.label, bool(place), found=place, path=path)

    def write(self, spec: LayerSpec, sink: BinaryIO) -> LayerResult:
        """Write the bytes of a layer."""
        if not spec.heavy or self._options.on_start is None:
            return self._write(spec, sink, lambda: None)
        for wheel in spec.wheels:
            self._wheels.path(wheel)  # before the registry waits for bytes
        key = self._cache.compressed_key(spec.key)
        with GrowingBlob(Path(sink.name), key, spec.label, spec.weight) as blob:
            self._options.on_start(blob)
            result = self._write(spec, sink, blob.abandon)
            sink.flush()
            blob.finish(result.descriptor, result.diff_id)
        return result

    def _write(self, spec: LayerSpec, sink: BinaryIO, abandon: Callable[[], None]) -> LayerResult:
        """Write a layer here or in the other process; calls `abandon` if bytes of the file are discarded."""
        compression = self._cache.compression
        if spec.writer:
            return spec.writer(sink, self._pool, compression)
        splice = not spec.compress
        if spec.heavy:
            wheels = [self.opened.file(wheel, self._wheels.path(wheel)) for wheel in spec.wheels]
            task = Task(scheme=self.opened.scheme, wheels=wheels, compression=compression, file=sink.name)
            try:
                if answer := self._helper.write(task):
                    self.opened.learn(answer)
                    return answer.result
            except LastBlockError:
                splice = False
        prefix, files = spec.prefix or self._recipe.prefix, spec.files(self.opened)
        if splice:
            _empty(sink, abandon)
            with suppress(LastBlockError):
                return write_layer(sink, prefix, files, self._pool, spec.links, compression)
        _empty(sink, abandon)
        return write_compressed(tar_layer(prefix, files, self._pool, spec.links), sink, self._pool, compression)

    def _open(self, spec: LayerSpec, expected: LayerResult, where: str, found: CachedLayer | None = None) -> BinaryIO:
        """Open a layer of the cache after its bytes were checked; one that is damaged or lost is made again.

        `found` is what the cache had at first: another run may have removed its entry since, and not the bytes.
        BuildError if the result is another one.
        """
        found = found or self._cache.get(spec.key)
        if found is None or not self._cache.is_intact(found):
            with self._remaking, Maker(self._recipe, self._cache, self._wheels) as again:
                found = self._cache.get(spec.key)
                if found is None or not self._cache.is_intact(found):
                    found = self._cache.make(spec.key, partial(again.write, spec))
        if found.result != expected:
            what = f"{where} has another layer under {spec.key} than these wheels give: {expected.digest}"
            todo = "find out who wrote it; build with --no-remote-cache and another cache (ENVBUILD_CACHE)"
            raise BuildError(what, where=spec.label, todo=todo)
        return open_file(found.path)


def _empty(sink: BinaryIO, abandon: Callable[[], None]) -> None:
    if sink.seek(0, os.SEEK_END):
        abandon()
        sink.seek(0)
        sink.truncate()
