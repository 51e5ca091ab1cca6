"""The interface of the three builders, and the checks that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.base.system import System
from envbuild.build.order import Order, Part, Plan
from envbuild.errors import counted
from envbuild.image.assembler import Assembled, Compiling
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Arrivals
from envbuild.lock.formats import pylock_text
from envbuild.lock.resolution import open_question
from envbuild.lock.run import LockedRun, confirm
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.model import TrainingManifest
from envbuild.match.limits import broken_hand_limits
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import PushResult
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import Reporter
from envbuild.verify.cuda.loader import prove_loading
from envbuild.verify.imports import (
    ImportRequest,
    Imports,
    Place,
    check_imports,
    check_metadata,
    import_names,
    place_for,
)


def is_proven(manifest: TrainingManifest, run: LockedRun) -> bool:
    """Whether a complete record has every wheel of the lock, each is the run's own file, and none was left out."""
    identical = {it.name for it in run.proof.those("identical")}
    return manifest.source.complete and not run.left_out and identical == {wheel.name for wheel in run.lock.wheels}


_ASKED_FOR = frozenset({"requirements", "mlflow", "conda-environment"})
"""Formats of incomplete records that have what somebody asked for; the others list what was installed."""
COMPILING = "compiling {} modules with the base's own Python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder(ABC):
    """A builder of one image: `Assembler`, `Docker`, `Buildx` or `Cloud`."""

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
    """Closes what the image needs until it is pushed or written."""
    compiling: Compiling | None = None
    system: System = field(default_factory=System)

    @abstractmethod
    def build(self, settings: IndexSettings) -> Part:
        """Build the image, and push it if requested."""

    def part(
        self,
        run: LockedRun,
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
            assembled=Assembled(image=made, overlaps=(), results={}, true={}) if isinstance(made, Image) else made,
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
    def proof(self) -> Digest:
        """The key under which this machine notes the loader proof."""
        return Digest.of(canonical_json(["loader proof of this machine", str(self.recipe.environment)]))

    def proved(self, cache: LayerCache) -> bool:
        """Whether the loader proof is done, or not needed."""
        return self.plan.stack.cuda is None or cache.noted(self.proof, bool) is True

    def prove(self, cache: LayerCache, arrivals: Arrivals) -> None:
        """Raise VerifyError if the framework would not find its CUDA libraries in the image."""
        if self.proved(cache):
            return
        self.report.step("looking for CUDA's libraries as the loader does")
        wheels = {wheel.sha256: arrivals.path(wheel) for wheel in self.recipe.wheels}
        place = self.order.cache / "loading"
        found = prove_loading(self.plan.stack, self.recipe, self.base, wheels, self.plan.profiles, place)
        found.require()
        self.report.note(found.summary)
        for note in found.notes:
            self.report.note(str(note))
        cache.note(self.proof, value=True, share=False)

    def try_imports(
        self, run: LockedRun, image: Image | None, settings: IndexSettings, place: Place | None = None
    ) -> Imports | None:
        """Import in the image what the run imported; None if that is proven or not requested. VerifyError.

        `place` has the image already, if given. What this machine tried before is not tried again, unless
        `--import-check always` asks for it.
        """
        wanted, manifest, stack = self.order.import_check, self.plan.manifest, self.plan.stack
        if wanted == "never" or (wanted == "auto" and is_proven(manifest, run)):
            return None
        names, cache = imported_distributions(stack, manifest, run.required), LayerCache(self.order.cache)
        key = Digest.of(canonical_json(["tried on this machine", str(self.recipe.environment), sorted(names)]))
        if wanted == "auto" and (known := cache.noted(key, Imports.from_dict)):
            self.report.note(f"imported in {known.place} earlier: {counted(len(known.modules), 'module')}")
            _warn_untold(known, self)
            return known
        self.report.step("importing in the image what the run imported")
        with ExitStack() as until:
            if place is None:
                assert image, "there is an image or a place that has it"
                place = until.enter_context(place_for(image, stack.machine, self.report))
            found = _import(self, run, names, settings, place)
        if found.modules:
            cache.note(key, found.to_dict(), share=False)
        return found

    def confirmed(self, true: Mapping[Digest, Collection[str]]) -> LockedRun:
        """Compare the metadata of the index with the files that it served, and correct the proof."""
        confirmed = confirm(self.run, self.order.cache, true)
        if self.order.require_identical:
            confirmed.proof.require_identical()
        return confirmed

    def pylock(self, run: LockedRun) -> bytes:
        """The lock as it is stamped and lies in the context."""
        return pylock_text(run.lock, run.proof, dict(run.built), self.base.to_dict())


def fetch_progress(report: Reporter) -> Callable[[int, int, str], None]:
    """Return what reports how many bytes of wheels were fetched."""
    return lambda done, total, _text: report.progress("fetching", done, total)


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


def imported_distributions(stack: Stack, manifest: TrainingManifest, required: frozenset[str]) -> frozenset[str]:
    """Normalised names of what a run imported, as far as its record tells: the framework, and what was asked for.

    Where the record only lists what was installed, it is what nothing else of that requires.
    """
    lists = manifest.source.complete or manifest.source.format not in _ASKED_FOR
    asked = {str(canonicalize_name(it.name)) for it in manifest.distributions if it.requested or not lists}
    installed = {str(canonicalize_name(it.name)) for it in manifest.distributions}
    # Nobody runs pip in a training, and after it setuptools cannot be imported on Python before 3.12.
    return frozenset({str(canonicalize_name(stack.distribution)), *(asked or installed - required)}) - {"pip"}


def _import(builder: Builder, run: LockedRun, names: frozenset[str], settings: IndexSettings, place: Place) -> Imports:
    if place.runner is None:
        check_metadata(run, builder.plan.manifest, builder.order.cache)
        builder.report.warn(f"no module was imported, only metadata was looked at: {place.why}")
        return Imports(place="metadata")
    versions = {wheel.name.replace("-", "_"): wheel.version for wheel in run.lock.wheels}
    modules: dict[str, str] = {}
    with open_question((), run.lock.target, settings, builder.order.cache) as question:
        for wheel in (it for it in run.lock.wheels if it.name in names):
            main = _main_module(wheel.name.replace("-", "_"), question.reader.files(wheel) or ())
            modules |= dict.fromkeys(main, wheel.version)
    first = [builder.plan.stack.framework] if builder.plan.stack.framework in modules else []
    pins = {wheel.name: wheel.version for wheel in run.lock.wheels}
    known = broken_hand_limits(pins, builder.plan.profiles.limits)
    asked = ImportRequest(
        modules=tuple(dict.fromkeys((*first, *sorted(modules)))),
        versions=versions | {module: version for module, version in modules.items() if "." not in module},
        known=tuple(f"{it.pin} needs {it.limit.requirement}, as {it.limit.reason}" for it in known if it.limit.breaks),
        gpu=builder.plan.stack.variant == "gpu",
    )
    found = check_imports(place, asked)
    if modules:
        many = f"{len(found.modules)} of {counted(len(modules), 'module')}"
        builder.report.note(f"imported in {place.name}: {many}")
    else:
        builder.report.note("nothing was imported: the record does not say what the run asked for by name")
    _warn_untold(found, builder)
    return found


def _main_module(own: str, files: Collection[str]) -> list[str]:
    """The module that a wheel is there for: the one of its name, else the largest; others may be plug-ins."""
    public = import_names(files)
    starts = {it: (f"/{it.replace('.', '/')}/", f"/{it.replace('.', '/')}.") for it in public}
    sizes = {it: sum(f"/{file}".startswith(start) for file in files) for it, start in starts.items()}
    return [own] if own in public else sorted(public, key=lambda it: -sizes[it])[:1]


def _warn_untold(found: Imports, builder: Builder) -> None:
    for module, why in found.untold:
        builder.report.warn(f"whether {module} can be imported could not be tried: {why}")
