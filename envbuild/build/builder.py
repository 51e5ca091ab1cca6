"""The interface of the builders, and the checks that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from envbuild.base.system import System
from envbuild.build.request import BuildRequest, Plan, PlatformImage
from envbuild.image.assembler import Assembled
from envbuild.image.bytecode.compiler import Compiling
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Downloads
from envbuild.lock.formats import pylock_text
from envbuild.lock.run import LockResult, verify_files
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.model import TrainingManifest
from envbuild.match.openers import may_open_cuda
from envbuild.oci.compression import GZIP
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import PushResult
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import Reporter

if TYPE_CHECKING:
    from envbuild.engine.load import Loaded
    from envbuild.verify.imports import Imports, Place


def is_as_in_run(manifest: TrainingManifest, locked: LockResult) -> bool:
    """Whether a complete record has every wheel of the lock, each is the run's own file, and none was left out."""
    identical = {it.name for it in locked.proof.with_outcome("identical")}
    return (
        manifest.source.complete and not locked.left_out and identical == {wheel.name for wheel in locked.lock.wheels}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder(ABC):
    """A builder of one image: `Assembler`, `Docker`, `Buildx` or `Cloud`."""

    request: BuildRequest
    plan: Plan
    recipe: Recipe
    base: Base
    locked: LockResult
    """The lock as it was made, before `confirm_lock` compares it with the fetched files."""
    shared: SharedCache | None
    """Layers and notes of the repository, by key; None where it is not used as a cache."""
    report: Reporter
    push_to: Reference | None
    """The repository, without a tag: the image's tags are set when everything is attached to it."""
    resources: ExitStack
    """Closes what the image needs until it is pushed or written."""
    compiling: Compiling | None = None
    """Compiles bytecode; None for an image without it."""
    system: System = field(default_factory=System)
    """The Debian packages that the base lacks."""

    @abstractmethod
    def build(self, settings: IndexSettings) -> PlatformImage:
        """Build the image, and push it if requested."""

    def make_platform_image(
        self,
        locked: LockResult,
        assembled: Assembled | Image,
        pushed: PushResult | None,
        *,
        imports: "Imports | None",
        wheelhouse: bool = False,
        reused: bool = False,
        tag_in_engine: "Callable[[Reference], Loaded] | None" = None,
    ) -> PlatformImage:
        """Describe the image that was built, or found; `locked` is what `confirm_lock` returned."""
        if isinstance(assembled, Image):
            assembled = Assembled(image=assembled, overlaps=(), results={}, verified_members={})
        return PlatformImage(
            plan=self.plan,
            recipe=self.recipe,
            assembled=assembled,
            pushed=pushed,
            tags=self.tags,
            lock=self.locked.lock,
            pylock=self.pylock(locked),
            proof=locked.proof,
            base=self.base.image,
            imports=imports,
            reused=reused,
            # With --offline the context has all wheels, as it will be built without a network.
            wheelhouse=wheelhouse or (self.request.offline and not self.recipe.packages),
            tag_in_engine=tag_in_engine,
        )

    @property
    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """The tags of the image."""

    @property
    def requested_tags(self) -> tuple[str, ...]:
        """The tag that --push names; of several images it is their index's."""
        tag = self.request.push.tag if self.request.push and not self.request.makes_index else None
        return (tag,) if tag else ()

    @property
    def loading_key(self) -> Digest:
        """The key under which this machine remembers that all openers of CUDA find its libraries (the loader proof).

        It has what the run had loaded, as that decides what is a fault.
        """
        native = self.plan.manifest.native
        environment = replace(self.recipe, compression=GZIP).environment
        loaded = sorted({it.place for it in native.libraries}) if native else []
        return Digest.of(canonical_json(["loader proof of all openers", str(environment), loaded]))

    def is_loading_proven(self, cache: LayerCache) -> bool:
        """Whether the loader proof is done, or not needed."""
        wheels = ((it.name, it.version) for it in self.recipe.wheels)
        needed = may_open_cuda(self.plan.stack, wheels, self.plan.profiles)
        return not needed or cache.local_note(self.loading_key, bool) is True

    def prove_loading(self, cache: LayerCache, downloads: Downloads) -> None:
        """Raise VerifyError if what the run used of CUDA would not be found in the image; warn of other openers."""
        if self.is_loading_proven(cache):
            return
        from envbuild.verify.cuda.loader import prove_loading  # noqa: PLC0415 - pyelftools is slow to import

        self.report.step("looking for CUDA's libraries as the loader does")
        wheels = {wheel.sha256: downloads.path(wheel) for wheel in self.recipe.wheels}
        plan, place = self.plan, self.request.cache / "loading"
        found = prove_loading(plan.stack, self.recipe, self.base, wheels, plan.profiles, place, plan.manifest.native)
        found.require()
        self.report.note(found.summary)
        for note in found.notes:
            self.report.note(str(note))
        for it in found.warnings:
            self.report.warn(it.advice)
        if not found.warnings:  # which every build shows
            cache.store_note(self.loading_key, value=True, share=False)

    def try_imports(
        self, locked: LockResult, image: Image | None, settings: IndexSettings, place: "Place | None" = None
    ) -> "Imports | None":
        """Import in the image what the run imported; None if that is proven or not requested. VerifyError.

        `place` is where imports can run with the image unpacked already. What this machine tried before is not tried
        again, unless `--import-check always` asks for it.
        """
        wanted = self.request.import_check
        if wanted == "never" or (wanted == "auto" and is_as_in_run(self.plan.manifest, locked)):
            return None
        from envbuild.build.imports import try_imports  # noqa: PLC0415 - it imports Docker's library

        return try_imports(self, locked, image, settings, place)

    def confirm_lock(self, verified_members: Mapping[Digest, Collection[str]]) -> LockResult:
        """Compare the metadata of the index with the files that it served, and correct the proof."""
        locked = verify_files(self.locked, self.request.cache, verified_members)
        if self.request.require_identical:
            locked.proof.require_identical()
        return locked

    def pylock(self, locked: LockResult) -> bytes:
        """The lock as pylock.toml, as it is stamped and written into the context."""
        return pylock_text(locked.lock, locked.proof, dict(locked.built), self.base.to_dict())


def report_content(assembled: Assembled, report: Reporter, owners: Mapping[str, str]) -> None:
    """Report bytecode, remarks and overlaps of an image; `owners` are the run's distributions by path."""
    if tally := assembled.bytecode:
        report.note(f"{tally.compiled} modules have bytecode; {tally.refused} do not compile")
        for path in tally.gave_up:
            report.warn(f"{path} has no bytecode: compiling it took too much time or memory")
    for line in assembled.remarks:
        report.warn(line)
    for overlap in assembled.overlaps[:10]:
        why = "as in the run" if owners.get(overlap.path) == overlap.winner.name else "which pip installs last"
        others, name = ", ".join(overlap.losers), overlap.winner.name
        report.warn(f"{overlap.path} is in {others} and in {name}: the image has that of {name}, {why}")
    if len(assembled.overlaps) > 10:
        report.warn(f"{len(assembled.overlaps) - 10} more paths are in several packages")
