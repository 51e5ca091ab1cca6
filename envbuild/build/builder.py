"""The interface of the three builders, and the checks that they share."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envbuild.base.system import System
from envbuild.build.order import Order, Part, Plan
from envbuild.image.assembler import Assembled, Compiling
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Arrivals
from envbuild.lock.formats import pylock_text
from envbuild.lock.run import LockResult, verify_files
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import PushResult
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import Reporter

if TYPE_CHECKING:
    from envbuild.verify.imports import Imports, Place

COMPILING = "compiling {} modules with the base's own Python"


def is_proven(manifest: TrainingManifest, run: LockResult) -> bool:
    """Whether a complete record has every wheel of the lock, each is the run's own file, and none was left out."""
    identical = {it.name for it in run.proof.those("identical")}
    return manifest.source.complete and not run.left_out and identical == {wheel.name for wheel in run.lock.wheels}


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder(ABC):
    """A builder of one image: `Assembler`, `Docker`, `Buildx` or `Cloud`."""

    order: Order
    plan: Plan
    recipe: Recipe
    base: Base
    run: LockResult
    shared: SharedCache | None
    report: Reporter
    target: Reference | None
    """Where the image is pushed to, without a tag: its tags are set when everything is attached to it."""
    until: ExitStack
    """Closes what the image needs until it is pushed or written."""
    compiling: Compiling | None = None
    system: System = field(default_factory=System)

    @abstractmethod
    def build(self, settings: IndexSettings) -> Part:
        """Build the image, and push it if requested."""

    def part(
        self,
        run: LockResult,
        made: Assembled | Image,
        pushed: PushResult | None,
        *,
        wheelhouse: bool = False,
        **how: Any,
    ) -> Part:
        """Describe the image that was built, or found; `run` is the lock compared with the files."""
        return Part(
            plan=self.plan,
            recipe=self.recipe,
            assembled=Assembled(image=made, overlaps=(), results={}, verified_members={})
            if isinstance(made, Image)
            else made,
            pushed=pushed,
            tags=self.tags,
            lock=self.run.lock,
            pylock=self.pylock(run),
            proof=run.proof,
            # Of folders alone all wheels are copied anyway, and people without a network build such a context.
            wheelhouse=wheelhouse or (self.order.offline and not self.recipe.packages),
            **how,
        )

    @property
    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """The tags of the image."""

    @property
    def wanted_tags(self) -> tuple[str, ...]:
        """The tag that --push names; of several platforms it is their index's."""
        tag = self.order.push.tag if self.order.push and len(self.order.platforms) < 2 else None
        return (tag,) if tag else ()

    @property
    def loading_key(self) -> Digest:
        """The key under which this machine notes the loader proof."""
        return Digest.of(canonical_json(["loader proof of this machine", str(self.recipe.environment)]))

    def is_loading_proven(self, cache: LayerCache) -> bool:
        """Whether the loader proof is done, or not needed."""
        return self.plan.stack.cuda is None or cache.noted(self.loading_key, bool) is True

    def prove_loading(self, cache: LayerCache, arrivals: Arrivals) -> None:
        """Raise VerifyError if the framework would not find its CUDA libraries in the image."""
        if self.is_loading_proven(cache):
            return
        from envbuild.verify.cuda.loader import prove_loading  # noqa: PLC0415 - pyelftools is slow to import

        self.report.step("looking for CUDA's libraries as the loader does")
        wheels = {wheel.sha256: arrivals.path(wheel) for wheel in self.recipe.wheels}
        place = self.order.cache / "loading"
        found = prove_loading(self.plan.stack, self.recipe, self.base, wheels, self.plan.profiles, place)
        found.require()
        self.report.note(found.summary)
        for note in found.notes:
            self.report.note(str(note))
        cache.note(self.loading_key, value=True, share=False)

    def try_imports(
        self, run: LockResult, image: Image | None, settings: IndexSettings, place: "Place | None" = None
    ) -> "Imports | None":
        """Import in the image what the run imported; None if that is proven or not requested. VerifyError.

        `place` has the image already, if given. What this machine tried before is not tried again, unless
        `--import-check always` asks for it.
        """
        wanted = self.order.import_check
        if wanted == "never" or (wanted == "auto" and is_proven(self.plan.manifest, run)):
            return None
        from envbuild.build.imports import try_imports  # noqa: PLC0415 - it imports Docker's library

        return try_imports(self, run, image, settings, place)

    def confirmed(self, verified_members: Mapping[Digest, Collection[str]]) -> LockResult:
        """Compare the metadata of the index with the files that it served, and correct the proof."""
        confirmed = verify_files(self.run, self.order.cache, verified_members)
        if self.order.require_identical:
            confirmed.proof.require_identical()
        return confirmed

    def pylock(self, run: LockResult) -> bytes:
        """The lock as it is stamped and lies in the context."""
        return pylock_text(run.lock, run.proof, dict(run.built), self.base.to_dict())


def report_content(assembled: Assembled, report: Reporter, owned: Mapping[str, str]) -> None:
    """Report bytecode, remarks and overlaps of an image; `owned` says which package had a path in the run."""
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
