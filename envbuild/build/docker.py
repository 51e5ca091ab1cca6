"""Builders that are given a build context: an engine, or a builder of buildx."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from envbuild.base.build import engine_login
from envbuild.build.builder import Builder
from envbuild.build.context import Context, staged_context, why_wheelhouse
from envbuild.build.order import PLATFORMS, Order, Part
from envbuild.engine.buildkit import (
    Built,
    Request,
    Transcript,
    build_remotely,
    built,
    find_client,
    hidden_words,
    index_secrets,
    loaded_base,
    require_buildkit,
    require_buildx,
    secret_files,
)
from envbuild.engine.client import connected, find_image
from envbuild.engine.load import push_image, save_image
from envbuild.errors import BuildError, UsageError
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Downloads
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.oci.tar import MTIME
from envbuild.registry.pull import pull
from envbuild.registry.push import PushResult, remove_tag
from envbuild.verify.golden.runners import InImage
from envbuild.verify.imports import Place


class ContextBuilder(Builder):
    """What all builders of a context have in common."""

    __slots__ = ()

    @contextmanager
    def prepared(self, settings: IndexSettings, base: str) -> Iterator[tuple[Request, bool]]:
        """Stage the context and the secrets; all of it is gone when the block ends.

        Yield what the builder is given, and whether the context has the wheels.
        """
        if self.recipe.owners:
            names = ", ".join(sorted({name for _, name in self.recipe.owners}))
            self.report.warn(
                f"files that the run had from {names} can be another package's in this image, as pip installs all "
                "packages in its own order; build with --builder assemble to get the run's files"
            )
        wheelhouse = self.fetched_wheels(settings, secrets=True)
        contents = {} if wheelhouse else index_secrets(settings, self.recipe.wheels)
        with staged_context(self.context(wheelhouse=wheelhouse), self.order) as folder, secret_files(contents) as files:
            arguments = {"BASE": base} if base else {}
            request = Request(
                context=folder,
                dockerfile="Dockerfile",
                platform=PLATFORMS[self.recipe.target.machine],
                network=not wheelhouse,
                arguments=arguments | {"SOURCE_DATE_EPOCH": str(MTIME)},
                secrets=files,
                hidden=hidden_words(settings, contents),
            )
            yield request, wheelhouse

    def context(self, *, wheelhouse: bool) -> Context:
        """The build context of this image."""
        return Context(recipe=self.recipe, lock=self.run.lock, pylock=self.pylock(self.run), wheelhouse=wheelhouse)

    def fetched_wheels(self, settings: IndexSettings, *, secrets: bool) -> bool:
        """Get all wheels into the cache where the context has to have them."""
        cache = LayerCache(self.order.cache)
        packages = bool(self.system.packages)
        reason = why_wheelhouse(settings, secrets=secrets, needed=not self.is_loading_proven(cache), packages=packages)
        if not reason:
            return False
        self.system.fetch()
        self.report.step(f"fetching the wheels, which the context gets: {reason}")
        with Downloads(self.order.cache, reporter=self.report, settings=settings) as downloads:
            downloads.start(self.recipe.wheels)
            for wheel in self.recipe.wheels:
                downloads.path(wheel)
            self.prove_loading(cache, downloads)
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
        self.until.callback(remove_tag, name, self.report)
        return name

    def from_registry(self, digest: Digest) -> Image:
        """The image as the registry has it."""
        assert self.target is not None
        return self.marked(pull(self.target.at(digest), machine=self.recipe.target.machine))

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
        """Whether the base can be pulled by its digest from a registry."""
        try:
            return Reference.parse(self.base.name).digest is not None
        except ValueError:
            return False


INSTEAD = "leave out --builder docker, as envbuild needs no engine to build"


def check_docker(order: Order) -> None:
    """Refuse what this builder cannot do, and see that what it needs is there; UsageError, MissingComponentError."""
    if order.bytecode:
        todo = "leave out --bytecode, or --builder docker"
        raise UsageError("only the assembler compiles modules", where="--bytecode", todo=todo)
    if order.builder_name:
        if not order.push:
            what, where = "a builder of buildx gives its image to a registry", f"--builder-name {order.builder_name}"
            raise UsageError(what, where=where, todo="give --push REPOSITORY")
        require_buildx(find_client(), order.builder_name)
        return
    if len(order.platforms) > 1:
        todo = "name a builder of buildx (--builder-name) and a repository (--push), or leave out --builder docker"
        raise UsageError("an engine builds for one platform at a time", where="--platform", todo=todo)
    if order.stamp and order.load and not (order.push or order.archive):
        what = "an image that only an engine has, has no digest that others find it by"
        raise UsageError(what, where="--stamp", todo="add --push REPOSITORY")
    with connected(INSTEAD) as engine:
        require_buildkit(engine, INSTEAD)


class Docker(ContextBuilder):
    """The engine that this machine is set up for."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> Part:
        """Build with the engine's BuildKit."""
        enter = self.until.enter_context
        engine = enter(connected(INSTEAD))
        client = require_buildkit(engine, INSTEAD)
        base = "" if self.pullable() else enter(loaded_base(engine, self.base.image, self.report))
        # The context and the secrets are not needed any longer than the build.
        with self.prepared(settings, base) as (request, wheelhouse):
            self.report.step(f"building by BuildKit, with the client {client.path}")
            image = enter(built(engine, request, self.report, buildkit=client))
        run = self.confirmed({})
        there = InImage(name=image.id, client=engine, image=find_image(engine, image.id, self.report))
        imports = self.try_imports(run, None, settings, Place(name="container engine", runner=there))
        pushed, content = self._push(image) if self.target else (None, self._saved(image))
        return self.part(
            run,
            content,
            pushed,
            imports=imports,
            wheelhouse=wheelhouse,
            named=lambda name: image.tag(name, content),
        )

    def _push(self, image: Built) -> tuple[PushResult, Image]:
        self.report.step(f"pushing to {self.order.push}")
        name = self.temporary_name()
        sent = push_image(image.client, image.id, name, engine_login(name), self.report)
        pushed = PushResult(reference=name.at(sent.digest), uploaded=sent.sent, existing=0)
        return pushed, self.from_registry(sent.digest)

    def _saved(self, image: Built) -> Image:
        kept = not self.order.load or self.order.archive
        folder = Path(self.until.enter_context(TemporaryDirectory(prefix="envbuild-"))) if kept else None
        return self.marked(save_image(image.client, image.id, folder, self.base.image.layers, self.report))


class Buildx(ContextBuilder):
    """A builder of buildx by its name: on another machine, or in Kubernetes."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> Part:
        """Build there and push from there; the digest is the one that the builder was given by the registry."""
        client = require_buildx(find_client(), self.order.builder_name)
        if not self.pullable():
            what = "a builder of buildx takes its base from a registry"
            todo = "push the base to a registry that the builder reaches, and give it by --base"
            raise UsageError(what, where=f"--base {self.base.name}", todo=todo)
        assert self.target is not None, "the order was checked"
        name, builder = self.target.name, self.order.builder_name
        with self.prepared(settings, "") as (request, wheelhouse), TemporaryDirectory(prefix="envbuild-") as folder:
            self.report.step(f"building by {client.path}'s builder {builder}, and pushing")
            metadata = Path(folder, "metadata.json")
            build_remotely(client, request, name, builder, Transcript(request, self.report), metadata)
            try:
                digest = Digest.parse(json.loads(metadata.read_bytes())["containerimage.digest"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                what, todo = "buildx does not say what it pushed", "see that the builder can push to the registry"
                raise BuildError(what, where=str(metadata), todo=todo) from error
        image, run = self.from_registry(digest), self.confirmed({})
        pushed = PushResult(reference=self.target.at(digest), uploaded=0, existing=0)
        return self.part(run, image, pushed, imports=self.try_imports(run, image, settings), wheelhouse=wheelhouse)
