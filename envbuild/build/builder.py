"""What every builder is given, and what all of them see to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envbuild.base.system import System
from envbuild.build.order import Order, Plan, Reporter
from envbuild.image import Assembled, Compiling, LayerCache
from envbuild.lock import Arrivals, IndexSettings, LockedRun, confirm, pylock_text
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry import PushResult, SharedCache
from envbuild.verify import prove_loading

if TYPE_CHECKING:
    from envbuild.engine.load import Loaded
    from envbuild.verify.imports import Imports, Place


def is_proven(manifest: TrainingManifest, run: LockedRun) -> bool:
    """Whether a complete record has every wheel of the lock, each is the run's own file, and none was left out."""
    identical = {it.name for it in run.proof.those("identical")}
    whole = manifest.source.complete and not run.left_out
    return whole and identical == {wheel.name for wheel in run.lock.wheels}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The image, and where it is."""

    assembled: Assembled
    pushed: PushResult | None
    """None when the image was not pushed."""
    run: LockedRun
    """The lock, held against the files."""
    found: bool = False
    """Whether the image was found in the registry, and not built now."""
    imports: "Imports | None" = None
    """What was imported in the image; None where it was not tried."""
    wheelhouse: bool = False
    """Whether the context that it was built from has every wheel."""
    named: "Callable[[Reference], Loaded] | None" = None
    """Gives the image a name in the engine that built it; None where no engine did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder(ABC):
    """What is made, from what."""

    order: Order
    plan: Plan
    recipe: Recipe
    base: Base
    run: LockedRun
    shared: SharedCache | None
    report: Reporter
    target: Reference | None
    """Where the image is pushed to, without a tag: its tags are set when everything is attached to it."""
    until: ExitStack
    """What the image needs until it is wherever it is wanted."""
    compiling: Compiling | None = None
    """By what bytecode is made, where the image is to have it."""
    system: System = field(default_factory=System)
    """What the recipe's Debian packages are unpacked with."""

    @abstractmethod
    def build(self, settings: IndexSettings) -> BuildResult:
        """Make the image, and push it where that is wanted."""

    @property
    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """What will name the image in the end."""

    @property
    def wanted_tags(self) -> tuple[str, ...]:
        """The tag that --push names; of several platforms it is their index's."""
        tag = self.order.push.tag if self.order.push and len(self.order.platforms) < 2 else None
        return (tag,) if tag else ()

    @property
    def proof(self) -> Digest:
        """What this machine notes when it found CUDA's libraries."""
        return Digest.of(canonical_json(["loader proof of this machine", str(self.recipe.environment)]))

    def proved(self, cache: LayerCache) -> bool:
        """Whether nothing is left to prove."""
        return self.plan.stack.cuda is None or cache.noted(self.proof, bool) is True

    def prove(self, cache: LayerCache, arrivals: Arrivals) -> None:
        """Fail before the image has a name where the framework would not find its CUDA libraries in it."""
        if self.proved(cache):
            return
        self.report.step("looking for CUDA's libraries as the loader does")
        wheels = {wheel.sha256: arrivals.path(wheel) for wheel in self.recipe.wheels}
        found = prove_loading(
            self.plan.stack, self.recipe, self.base, wheels, self.plan.profiles, self.order.cache / "loading"
        )
        found.require()
        self.report.note(found.summary)
        for note in found.notes:
            self.report.note(str(note))
        cache.note(self.proof, value=True, share=False)

    def try_imports(
        self, run: LockedRun, image: Image | None, settings: IndexSettings, place: "Place | None" = None
    ) -> "Imports | None":
        """Import in the image what the run imported; None where that is proven or not wanted. VerifyError.

        `place` is where the image can be tried, where it is there already.
        """
        wanted = self.order.import_check
        if wanted == "never" or (wanted == "auto" and is_proven(self.plan.manifest, run)):
            return None
        from envbuild.build.importing import try_imports  # noqa: PLC0415 - Docker's library is slow to import

        return try_imports(self, run, image, settings, place)

    def confirmed(self, true: Mapping[Digest, Collection[str]]) -> LockedRun:
        """Hold what the index showed against what it then served; the proof may lose by it."""
        confirmed = confirm(self.run, self.order.cache, true)
        if self.order.require_identical:
            confirmed.proof.require_identical()
        return confirmed

    def pylock(self, run: LockedRun) -> bytes:
        """The lock as it is stamped and lies in the context."""
        return pylock_text(run.lock, run.proof, dict(run.built), self.base.to_dict())

    def fetched(self, done: int, total: int, _text: str) -> None:
        """Show how many bytes of wheels are here."""
        self.report.progress("fetching", done, total)
