"""What all builders of a context have in common: staging it, and finding in the registry what they pushed."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from envbuild.build.context import Context, staged_context, why_wheelhouse
from envbuild.build.job import Job
from envbuild.build.order import PLATFORMS
from envbuild.engine.buildkit import hidden_words, index_secrets, secret_files
from envbuild.engine.transcript import Request
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Arrivals
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.oci.tar import MTIME
from envbuild.registry.pull import pull
from envbuild.registry.tags import remove_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a builder is given, and how the context was made."""

    request: Request
    wheelhouse: bool


class ContextJob(Job):
    """What all builders of a context have in common."""

    __slots__ = ()

    @contextmanager
    def prepared(self, settings: IndexSettings, base: str) -> Iterator[Prepared]:
        """Stage the context, with the wheels if need be, and the secrets; all of it is gone when the block ends."""
        if self.recipe.owners:
            names = ", ".join(sorted({name for _, name in self.recipe.owners}))
            self.report.warn(
                f"files that the run had from {names} can be another package's in this image, as pip installs all "
                "packages in its own order; build with --builder assemble to get the run's files"
            )
        wheelhouse = self.fetched_wheels(settings, secrets=True)
        context = Context(recipe=self.recipe, lock=self.run.lock, pylock=self.pylock(self.run), wheelhouse=wheelhouse)
        contents = {} if wheelhouse else index_secrets(settings, self.recipe.wheels)
        with staged_context(context, self.order) as folder, secret_files(contents) as files:
            arguments = {"BASE": base} if base else {}
            request = Request(
                context=folder,
                dockerfile="Dockerfile",
                platform=PLATFORMS[self.recipe.target.machine],
                wheels=self.recipe.wheels,
                network=not wheelhouse,
                arguments=arguments | {"SOURCE_DATE_EPOCH": str(MTIME)},
                secrets=files,
                hidden=hidden_words(settings, contents),
            )
            yield Prepared(request=request, wheelhouse=wheelhouse)

    def fetched_wheels(self, settings: IndexSettings, *, secrets: bool) -> bool:
        """Get all wheels into the cache where the context has to have them."""
        cache = LayerCache(self.order.cache)
        packages = bool(self.system.packages)
        reason = why_wheelhouse(settings, secrets=secrets, needed=not self.proved(cache), packages=packages)
        if not reason:
            return False
        self.system.fetch()
        self.report.step(f"fetching the wheels, which the context gets: {reason}")
        with Arrivals(self.order.cache, report=self.fetched, settings=settings, note=self.report.note) as arrivals:
            arrivals.start(self.recipe.wheels)
            for wheel in self.recipe.wheels:
                arrivals.path(wheel)
            self.prove(cache, arrivals)
        return True

    @property
    def tags(self) -> tuple[str, ...]:
        """Without a tag of the user's one that tells who built it."""
        return self.wanted_tags or (self.own_tag,)

    @property
    def own_tag(self) -> str:
        return f"docker-{self.recipe.environment.short}"

    def temporary_name(self) -> Reference:
        """A name for one push, as engines push by tag only; its tag goes when the image has its own tags, or fails."""
        assert self.target is not None
        name = replace(self.target, tag=f"pushing-{secrets.token_hex(6)}")
        self.until.callback(remove_tag, name, self.report.warn)
        return name

    def from_registry(self, digest: Digest) -> Image:
        """The image as the registry has it."""
        assert self.target is not None
        return pull(self.target.at(digest), machine=self.recipe.target.machine)

    def marked(self, image: Image) -> Image:
        """Tell the base's layers from those that were made."""
        below = [it.diff_id for it in self.base.image.layers]
        layers = [
            replace(layer, reused=was, found="base" if was else "")
            for number, layer in enumerate(image.layers)
            for was in [below[number : number + 1] == [layer.diff_id]]
        ]
        return replace(image, layers=tuple(layers))

    def pullable(self) -> bool:
        try:
            return Reference.parse(self.base.name).digest is not None
        except ValueError:
            return False
