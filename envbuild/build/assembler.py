"""The builder without a daemon: downloads, layers and uploads run at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from envbuild.build.builder import Builder, report_content
from envbuild.build.request import PlatformImage
from envbuild.errors import RegistryError, VerifyError, counted
from envbuild.image.assembler import assemble, find_difference, prefetch_layer_keys, wheels_to_read
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions
from envbuild.image.layers.writer import LayerResult
from envbuild.lock.download import Downloads
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings
from envbuild.oci.blobs import GrowingBlob
from envbuild.oci.image import Image
from envbuild.registry.pull import environment_tag, find_tagged
from envbuild.registry.push import Upload, push


class Assembler(Builder):
    """Assembles an image without a daemon, with the same bytes everywhere."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> PlatformImage:
        """Reuse the image of the registry, or assemble it, and push it if requested."""
        try:
            image = self._find_existing()
        except VerifyError as error:
            self.report.warn(
                f"not using the registry's image of this environment: {error.what}; building it here without the "
                "registry's cache"
            )
            return replace(self, shared=None).assemble(settings)
        if image is None:
            return self.assemble(settings)
        assert self.push_to is not None, "the image was found in that repository"
        self.report.note(f"the registry has the environment {self.recipe.environment.short} already; nothing is built")
        locked = self.confirm_lock({})
        imports = self.try_imports(locked, image, settings)
        return self.make_platform_image(locked, image, push(image, self.push_to), imports=imports, reused=True)

    def _find_existing(self) -> Image | None:
        """Return the repository's image of this environment; VerifyError if config, manifest or known layers differ."""
        if self.push_to is None or not self.request.remote_cache:
            return None
        try:
            tagged = replace(self.push_to, tag=environment_tag(self.recipe.environment), digest=None)
            claim = find_tagged(tagged, machine=self.recipe.target.machine)
        except RegistryError as error:
            self.report.warn(f"not using the registry's image of this environment: {error.what}; building it")
            return None
        if claim is None:
            return None
        cache = LayerCache(self.request.cache, self.shared, compression=self.recipe.compression)
        return claim.prove(lambda image: find_difference(image, self.recipe, self.base, cache, self.compiling))

    def assemble(self, settings: IndexSettings) -> PlatformImage:
        """Assemble the image, and push it if requested; its tags are set after all checks."""
        cache = LayerCache(self.request.cache, self.shared, self.report.note, self.recipe.compression)
        prefetch_layer_keys(self.recipe, cache)
        needed = wheels_to_read(self.recipe, cache, self.compiling)
        if not self.is_loading_proven(cache):
            needed = tuple(dict.fromkeys((*needed, *self.recipe.wheels)))
        # By their RECORD these are the run's own wheels, so each of their files is compared with it.
        identical = {it.name for it in self.locked.proof.with_outcome("identical")}
        wheels_to_verify = frozenset(wheel.sha256 for wheel in self.recipe.wheels if wheel.name in identical)
        # Downloads stay open until the end: a cached layer that turns out to be damaged is built again from its wheels.
        downloads = self.resources.enter_context(Downloads(self.request.cache, reporter=self.report, settings=settings))
        with self._upload() as upload:
            self._announce(needed)
            downloads.start(needed)
            offer = upload.offer if upload else lambda _layer: None
            # A layer is sent while it is made only where it is known that the registry lacks it.
            follow = upload.follow if upload and self.shared and self.shared.publishes_layers() else None
            options = AssemblyOptions(
                reporter=self.report, wheels_to_verify=wheels_to_verify, on_layer=offer, on_start=follow
            )
            if needed:  # else pushing takes no time that building could use
                for layer in self.base.image.layers:
                    if not self.recipe.compression.replaces(layer.descriptor.media_type):
                        offer(layer)
            assembled = assemble(self.recipe, self.base, downloads, cache, options, self.compiling, self.system.layer)
            self.prove_loading(cache, downloads)
            report_content(assembled, self.report, self.recipe.owner_by_path)
            locked = self.confirm_lock(assembled.verified_members)
            imports = self.try_imports(locked, assembled.image, settings)
            pushed = upload.finish(assembled.image) if upload else None
            cache.share(assembled.results)
            if self.shared and self.shared.last_error:
                self.report.note(f"the registry does not serve as a cache of layers: {self.shared.last_error}")
        return self.make_platform_image(locked, assembled, pushed, imports=imports)

    @property
    def tags(self) -> tuple[str, ...]:
        """The environment's tag, by which later builds find the image, before the others."""
        return (environment_tag(self.recipe.environment), *self.requested_tags)

    @contextmanager
    def _upload(self) -> Iterator[Upload | None]:
        if self.push_to is None:
            yield None
            return
        trust_registry = self.request.remote_cache
        with Upload(
            self.push_to,
            report=self.report,
            on_sent=self._publish_early,
            trust_registry=trust_registry,
            cache=self.request.cache,
        ) as upload:
            try:
                yield upload
            except BaseException:
                if self.shared:
                    self.shared.stop()  # which `_publish_early` may be waiting for
                raise

    def _announce(self, needed: tuple[LockedWheel, ...]) -> None:
        pushing = f", and pushing to {self.request.push}" if self.push_to else ""
        self.report.step(f"assembling the image{pushing}")
        if needed:
            size = sum(wheel.size for wheel in needed)
            many = f"{len(needed)} of {counted(len(self.recipe.wheels), 'wheel')}"
            self.report.note(f"new layers need {many}, {size / 1e6:.1f} MB")
        else:
            self.report.note("no wheel has to be read: their layers were made before")

    def _publish_early(self, blob: GrowingBlob) -> None:
        """Publish a large layer's key once it is sent: if this run is interrupted, the next need not send it again."""
        if self.shared and blob.descriptor and blob.diff_id:
            it = blob.descriptor
            self.shared.publish_layer(blob.key, LayerResult(it.digest, it.size, blob.diff_id, it.media_type))
