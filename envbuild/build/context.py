"""Build contexts as folders: what people read, and what builders other than our own are given."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from envbuild.base.system import copy_debs
from envbuild.build.builder import Builder
from envbuild.build.order import PLATFORMS, Order
from envbuild.engine.buildkit import hidden_words, index_secrets, secret_files
from envbuild.engine.transcript import Request
from envbuild.files import share, write_whole, written_whole
from envbuild.image.context import build_context
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Arrivals, wheel_path
from envbuild.lock.formats import WHEELS, copy_local, is_local, requirements_text
from envbuild.lock.model import Lock
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.oci.tar import MTIME
from envbuild.recipe import Recipe
from envbuild.registry.pull import pull
from envbuild.registry.tags import remove_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a context is made of."""

    recipe: Recipe
    lock: Lock
    pylock: bytes
    wheelhouse: bool
    """Whether it has every wheel, so that nothing has to be fetched; the cache has those of indexes then."""


def write_context(folder: Path, context: Context, order: Order) -> None:
    """Write the files of a context; wheels are shared with the cache where the file system can."""
    # In a wheelhouse, pip looks nowhere else.
    requirements = requirements_text(replace(context.lock, direct=()) if context.wheelhouse else context.lock)
    files = build_context(context.recipe, requirements, context.pylock, order.templates, wheelhouse=context.wheelhouse)
    for name, data in files.items():
        write_whole(folder / name, data)
    copy_local(context.lock, folder)
    if not context.wheelhouse:
        return
    for wheel in (it for it in context.lock.wheels if not is_local(it)):
        _place(wheel_path(order.cache, wheel.sha256), folder / WHEELS / wheel.filename)
    copy_debs(context.lock, order.cache, folder)


@contextmanager
def staged_context(context: Context, order: Order) -> Iterator[Path]:
    """Yield a folder with the context, in the cache, where wheels need not be copied; then it is gone."""
    order.cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-context-", dir=order.cache) as folder:
        write_context(Path(folder), context, order)
        yield Path(folder)


def why_wheelhouse(settings: IndexSettings, *, secrets: bool, needed: bool, packages: bool = False) -> str:
    """Why the wheels have to lie in the context; empty where a step of the build can fetch them itself.

    `secrets` says whether the builder has any, `needed` whether all wheels are read here anyway, and `packages` whether
    there are Debian packages.
    """
    reasons = {
        "nothing but folders may be asked": settings.offline,
        "the builder has no secrets, and would keep the index in the image's history": not secrets,
        "they are read here anyway": needed,
        "system packages come from this machine's mirror, which the base does not name": packages,
        "passwords come from a keyring, which the build does not have": settings.keyring,
        "the index is on this machine, which the build does not see": any(map(_is_near, settings.indexes)),
    }
    return next((reason for reason, counts in reasons.items() if counts), "")


def _is_near(url: str) -> bool:
    """Whether an index is a folder of this machine, or a port of its own."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme not in ("http", "https") or host in ("localhost", "::1") or host.startswith("127.")


def _place(source: Path, target: Path) -> None:
    if share(source, target, mode=0o644):
        return
    with source.open("rb") as original, written_whole(target) as file:
        shutil.copyfileobj(original, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a builder is given, and how the context was made."""

    request: Request
    wheelhouse: bool


class ContextBuilder(Builder):
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
        with Arrivals(self.order.cache, reporter=self.report, settings=settings) as arrivals:
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
