"""The builder without a daemon: downloads, layers and uploads run at the same time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from envbuild.build.builder import Builder, BuildResult
from envbuild.build.order import Reporter
from envbuild.errors import RegistryError, VerifyError, counted
from envbuild.image.assembler import Assembled, assemble, cache_keys, find_difference, wheels_to_read
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import Begun
from envbuild.image.layers.writer import LayerResult
from envbuild.lock.download import Arrivals
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings
from envbuild.oci.blobs import GrowingBlob
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.registry.pull import environment_tag, find_environment
from envbuild.registry.push import PushResult, Upload, push

"""Letters of a layer's name beside a bar."""


class Assembler(Builder):
    """Assembles an image without a daemon, with the same bytes everywhere."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> BuildResult:
        """Reuse the image of the registry, or assemble it, and push it if requested."""
        try:
            image = self._existing()
        except VerifyError as error:
            self.report.warn(
                f"not using the registry's image of this environment: {error.what}; building it here without the "
                "registry's cache"
            )
            return replace(self, shared=None).assemble(settings)
        return self._reuse(image, settings) if image else self.assemble(settings)

    def _existing(self) -> Image | None:
        """Return the target repository's image of this environment; VerifyError if its content differs."""
        if self.target is None or not self.order.remote_cache:
            return None
        try:
            claim = find_environment(self.target, self.recipe.environment, machine=self.recipe.target.machine)
        except RegistryError as error:
            self.report.warn(f"not using the registry's image of this environment: {error.what}; building it")
            return None
        return claim.prove(self._find_difference) if claim else None

    def _find_difference(self, image: Image) -> str:
        """Return how an image of the registry differs from the one that would be built."""
        cache = LayerCache(self.order.cache, self.shared)
        return find_difference(image, self.recipe, self.base, cache, self.compiling)

    def _reuse(self, image: Image, settings: IndexSettings) -> BuildResult:
        """Push the found image by its digest; nothing is built."""
        self.report.note(f"the registry has the environment {self.recipe.environment.short} already; nothing is built")
        run = self.confirmed({})
        imports = self.try_imports(run, image, settings)
        assembled = Assembled(image=image, overlaps=(), results={}, true={})
        assert self.target is not None, "the image was found in the target repository"
        return BuildResult(assembled=assembled, pushed=push(image, self.target), run=run, imports=imports, found=True)

    def assemble(self, settings: IndexSettings) -> BuildResult:
        """Assemble the image, and push it if requested; its tags are set after all checks."""
        cache = LayerCache(self.order.cache, self.shared, self.report.note)
        keys = cache_keys(self.recipe)
        cache.look_up(keys.layers, keys.notes)
        needed = self._needed(cache)
        # Until the end, as a layer that turns out to be damaged when it is written or loaded is made again.
        arrivals = self.until.enter_context(Arrivals(self.order.cache, reporter=self.report, settings=settings))
        with self._upload() as upload:
            self._announce(needed)
            arrivals.start(needed)
            offer = upload.offer if upload else lambda _layer: None
            if needed:
                for layer in self.base.image.layers:
                    offer(layer)
            assembled = assemble(
                self.recipe,
                self.base,
                arrivals,
                cache,
                self.report.progress,
                offer,
                self.compiling,
                self._proving,
                self.system.layer,
                self._sender(upload),
            )
            self.prove(cache, arrivals)
            _tell(assembled, self.report, self.recipe.owned)
            run = self.confirmed(assembled.true)
            imports = self.try_imports(run, assembled.image, settings)
            pushed = self._finish(upload, assembled, cache) if upload else None
        return BuildResult(assembled=assembled, pushed=pushed, run=run, imports=imports)

    @property
    def tags(self) -> tuple[str, ...]:
        """The environment's tag, by which later builds find the image, before the others."""
        return (environment_tag(self.recipe.environment), *self.wanted_tags)

    @property
    def _proving(self) -> frozenset[Digest]:
        """The wheels that are said to be the run's by their RECORD, which then has to be true."""
        identical = {it.name for it in self.run.proof.those("identical")}
        return frozenset(wheel.sha256 for wheel in self.recipe.wheels if wheel.name in identical)

    def _needed(self, cache: LayerCache) -> tuple[LockedWheel, ...]:
        needed = wheels_to_read(self.recipe, cache, self.compiling)
        return needed if self.proved(cache) else tuple(dict.fromkeys((*needed, *self.recipe.wheels)))

    @contextmanager
    def _upload(self) -> Iterator[Upload | None]:
        if self.target is None:
            yield None
            return
        believing = self.order.remote_cache
        with Upload(self.target, report=self.report, landed=self._landed, believing=believing) as upload:
            try:
                yield upload
            except BaseException:
                if self.shared:
                    self.shared.stop()  # which `_landed` may be waiting for
                raise

    def _sender(self, upload: Upload | None) -> Begun | None:
        """What sends a layer while it is made, where the registry would be known to have it."""
        return upload.follow if upload and self.shared and self.shared.names_what_it_has() else None

    def _announce(self, needed: tuple[LockedWheel, ...]) -> None:
        pushing = f", and pushing to {self.order.push}" if self.target else ""
        self.report.step(f"assembling the image{pushing}")
        if needed:
            size = sum(wheel.size for wheel in needed)
            many = f"{len(needed)} of {counted(len(self.recipe.wheels), 'wheel')}"
            self.report.note(f"new layers need {many}, {size / 1e6:.1f} MB")
        else:
            self.report.note("no wheel has to be read: every layer was made before")

    def _landed(self, blob: GrowingBlob) -> None:
        """Publish a layer that took long at once: a run that ends before its end need not send it again."""
        if self.shared and blob.descriptor and blob.diff_id:
            self.shared.publish_layer(blob.key, LayerResult(blob.descriptor.digest, blob.descriptor.size, blob.diff_id))

    def _finish(self, upload: Upload, assembled: Assembled, cache: LayerCache) -> PushResult:
        result = upload.finish(assembled.image)
        cache.share(assembled.results)
        if self.shared and self.shared.trouble:
            self.report.note(f"the registry does not serve as a cache of layers: {self.shared.trouble}")
        return result


def _tell(assembled: Assembled, report: Reporter, owned: Mapping[str, str]) -> None:
    """Report bytecode, remarks and overlaps of the image."""
    if tally := assembled.bytecode:
        report.note(f"{tally.compiled} modules have bytecode; {tally.refused} do not compile")
        for path in tally.gave_up:
            report.warn(f"{path} has no bytecode: compiling it took too much time or memory")
    for line in assembled.remarks:
        report.warn(line)
    for overlap in assembled.overlaps[:10]:
        why = "as in the run" if owned.get(overlap.path) == overlap.winner.name else "which pip installs last"
        others, name = ", ".join(overlap.losers), overlap.winner.name
        report.warn(f"{overlap.path} is in {others} and in {name}: the image has that of {name}, {why}")
    if len(assembled.overlaps) > 10:
        report.warn(f"{len(assembled.overlaps) - 10} more paths are in several packages")
