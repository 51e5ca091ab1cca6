"""One image held against its lock, its base and, where it is given, its run."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from envbuild.cache import workplace
from envbuild.errors import BuildError
from envbuild.lock.download import Arrivals
from envbuild.lock.model import Lock
from envbuild.lock.settings import IndexSettings
from envbuild.oci.image import Image
from envbuild.recipe import Base, Recipe
from envbuild.report import Reporter
from envbuild.verify.deep import blob_findings, deep_findings, make_anew, read_anew
from envbuild.verify.findings import Finding
from envbuild.verify.matched import Matched, Run, loader_findings, match_run, stack_finding
from envbuild.verify.standing import Subject, base_finding, standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is to be verified, and how far."""

    image: Image
    base: Base
    lock: Lock
    run: Run | None = None
    """What was trained; then the stack and the loader are looked at too."""
    deep: bool = False
    """Whether all layers are made anew, with nothing that anybody kept."""
    cache: Path
    """Verified wheels lie there; with `deep` nothing else in it is believed."""
    settings: IndexSettings


def verify_image(inquiry: Inquiry, teller: Reporter) -> tuple[Finding, ...]:
    """Everything that has to agree, in the order of what it rests on; nothing more is asked of a wrong base.

    LockError for a wheel that cannot be had, MatchError and ManifestError for the run, BuildError where the image
    cannot be made anew.
    """
    with ExitStack() as stack:
        folder, base = inquiry.cache, inquiry.base
        if inquiry.deep:
            folder = stack.enter_context(workplace(inquiry.cache))
            teller.step("reading the base anew")
            base = read_anew(base, folder)
        subject = Subject.of(inquiry.image, base, inquiry.lock)
        return tuple(_Verification(inquiry, subject, folder, teller).findings())


@dataclass(frozen=True, slots=True)
class _Verification:
    inquiry: Inquiry
    subject: Subject
    folder: Path
    """Where what is made or remembered goes."""
    teller: Reporter

    def findings(self) -> Iterator[Finding]:
        first = base_finding(self.subject)
        yield first
        if not first.agrees:
            self.teller.note("nothing else is looked at: all of it rests on the base")
            return
        try:
            recipe = self.subject.recipe()
        except BuildError as error:
            yield Finding(about="environment", agrees=False, says=error.what)
            return
        yield from standing(self.subject, recipe)
        matched = match_run(self.inquiry.run, recipe) if self.inquiry.run else None
        if matched:
            yield stack_finding(self.subject, recipe, matched.stack)
        yield from self._by_wheels(recipe, matched)

    def _by_wheels(self, recipe: Recipe, matched: Matched | None) -> Iterator[Finding]:
        """What can only be told with the wheels at hand."""
        proving = matched is not None and matched.stack.cuda is not None
        if not (self.inquiry.deep or proving):
            return
        with Arrivals(self.inquiry.cache, report=self._fetched, settings=self.inquiry.settings) as arrivals:
            self.teller.step(f"fetching {len(recipe.wheels)} wheels, each held to its sha256 in the lock")
            arrivals.start(recipe.wheels)
            if self.inquiry.deep:
                self.teller.step("assembling all layers anew")
                base, cache = self.subject.base, self.inquiry.cache
                anew = make_anew(recipe, base, arrivals, self.folder, self.teller.progress, cache)
                yield from deep_findings(self.subject, recipe, anew)
                yield from blob_findings(self.inquiry.image)
            if matched and proving:
                self.teller.step("looking for CUDA's libraries as the loader does")
                wheels = {wheel.sha256: arrivals.path(wheel) for wheel in recipe.wheels}
                facts = self.folder / "loading"
                yield from loader_findings(matched, recipe, self.subject.base, wheels, facts, self.teller.note)

    def _fetched(self, done: int, total: int, _name: str) -> None:
        self.teller.progress("fetching", done, total)
