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
from envbuild.build.request import PLATFORMS, BuildRequest, PlatformImage
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
    """A builder that is given a build context: the engine, a builder of buildx, or Cloud Build."""

    __slots__ = ()

    @contextmanager
    def prepare_context(self, settings: IndexSettings, base: str) -> Iterator[tuple[Request, bool]]:
        """Stage the context and the secrets; all of it is gone when the block ends.

        Yield what the builder is given, and whether the context has the wheels.
        """
        if self.recipe.owners:
            names = ", ".join(sorted({name for _, name in self.recipe.owners}))
            self.report.warn(
                f"files that the run had from {names} can be another package's in this image, as pip installs all "
                "packages in its own order; build with --builder assemble to get the run's files"
            )
        wheelhouse = self.fetch_wheels(settings, secrets=True)
        contents = {} if wheelhouse else index_secrets(settings, self.recipe.wheels)
        with (
            staged_context(self.context(wheelhouse=wheelhouse), self.request) as folder,
            secret_files(contents) as files,
        ):
            arguments = {"BASE": base} if base else {}
            inputs = Request(
                context=folder,
                dockerfile="Dockerfile",
                platform=PLATFORMS[self.recipe.target.machine],
                network=not wheelhouse,
                arguments=arguments | {"SOURCE_DATE_EPOCH": str(MTIME)},
                secrets=files,
                hidden=hidden_words(settings, contents),
            )
            yield inputs, wheelhouse

    def context(self, *, wheelhouse: bool) -> Context:
        """The build context of this image."""
        return Context(
            recipe=self.recipe, lock=self.locked.lock, pylock=self.pylock(self.locked), wheelhouse=wheelhouse
        )

    def fetch_wheels(self, settings: IndexSettings, *, secrets: bool) -> bool:
        """Get all wheels into the cache where the context has to have them."""
        cache = LayerCache(self.request.cache)
        packages = bool(self.system.packages)
        variants, needed = any(it.label for it in self.recipe.wheels), not self.is_loading_proven(cache)
        reason = why_wheelhouse(settings, secrets=secrets, needed=needed, packages=packages, variants=variants)
        if not reason:
            return False
        self.system.fetch()
        self.report.step(f"fetching the wheels, which the context gets: {reason}")
        with Downloads(self.request.cache, reporter=self.report, settings=settings) as downloads:
            downloads.start(self.recipe.wheels)
            for wheel in self.recipe.wheels:
                downloads.path(wheel)
            self.prove_loading(cache, downloads)
        return True

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag that --push names, else one that says by which builder it was made."""
        return self.requested_tags or (self.default_tag,)

    @property
    def default_tag(self) -> str:
        return f"docker-{self.recipe.environment.short}"

    def temporary_tag(self) -> Reference:
        """Return a tag for one push, as engines push by tag only; it is removed when `resources` close."""
        assert self.push_to is not None
        name = replace(self.push_to, tag=f"pushing-{secrets.token_hex(6)}")
        self.resources.callback(remove_tag, name, self.report)
        return name

    def pull_pushed(self, digest: Digest) -> Image:
        """Pull the manifest and config of the image that was pushed."""
        assert self.push_to is not None
        return self.mark_base_layers(pull(self.push_to.at(digest), machine=self.recipe.target.machine))

    def mark_base_layers(self, image: Image) -> Image:
        """Mark the layers of the base as reused, as an engine's image does not say where its layers come from."""
        below = [it.diff_id for it in self.base.image.layers]
        layers = [
            replace(layer, reused=was, found="base" if was else "")
            for number, layer in enumerate(image.layers)
            for was in [below[number : number + 1] == [layer.diff_id]]
        ]
        return replace(image, layers=tuple(layers))

    def is_base_pullable(self) -> bool:
        """Whether the base can be pulled by its digest from a registry."""
        try:
            return Reference.parse(self.base.name).digest is not None
        except ValueError:
            return False


INSTEAD = "leave out --builder docker, as envbuild needs no engine to build"


def check_docker(request: BuildRequest) -> None:
    """Refuse what this builder cannot do, and see that what it needs is there; UsageError, MissingComponentError."""
    if request.bytecode:
        todo = "leave out --bytecode, or --builder docker"
        raise UsageError("only the assembler compiles modules", where="--bytecode", todo=todo)
    if request.buildx_name:
        if not request.push:
            what, where = "a builder of buildx gives its image to a registry", f"--builder-name {request.buildx_name}"
            raise UsageError(what, where=where, todo="give --push REPOSITORY")
        require_buildx(find_client(), request.buildx_name)
        return
    if len(request.platforms) > 1:
        todo = "name a builder of buildx (--builder-name) and a repository (--push), or leave out --builder docker"
        raise UsageError("an engine builds for one platform at a time", where="--platform", todo=todo)
    if request.stamp and request.load and not (request.push or request.archive):
        what = "an image that only an engine has, has no digest that others find it by"
        raise UsageError(what, where="--stamp", todo="add --push REPOSITORY")
    with connected(INSTEAD) as engine:
        require_buildkit(engine, INSTEAD)


class Docker(ContextBuilder):
    """Builds with the container engine that this machine is set up for."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> PlatformImage:
        """Build with the engine's BuildKit."""
        enter = self.resources.enter_context
        engine = enter(connected(INSTEAD))
        client = require_buildkit(engine, INSTEAD)
        base = "" if self.is_base_pullable() else enter(loaded_base(engine, self.base.image, self.report))
        # The context and the secrets are not needed any longer than the build.
        with self.prepare_context(settings, base) as (inputs, wheelhouse):
            self.report.step(f"building by BuildKit, with the client {client.path}")
            image = enter(built(engine, inputs, self.report, buildkit=client))
        locked = self.confirm_lock({})
        there = InImage(name=image.id, client=engine, image=find_image(engine, image.id, self.report))
        imports = self.try_imports(locked, None, settings, Place(name="container engine", runner=there))
        pushed, content = self._push(image) if self.push_to else (None, self._save(image))
        return self.make_platform_image(
            locked,
            content,
            pushed,
            imports=imports,
            wheelhouse=wheelhouse,
            tag_in_engine=lambda name: image.tag(name, content),
        )

    def _push(self, image: Built) -> tuple[PushResult, Image]:
        self.report.step(f"pushing to {self.request.push}")
        name = self.temporary_tag()
        sent = push_image(image.client, image.id, name, engine_login(name), self.report)
        pushed = PushResult(reference=name.at(sent.digest), uploaded=sent.sent, not_sent=0)
        return pushed, self.pull_pushed(sent.digest)

    def _save(self, image: Built) -> Image:
        kept = not self.request.load or self.request.archive
        folder = Path(self.resources.enter_context(TemporaryDirectory(prefix="envbuild-"))) if kept else None
        return self.mark_base_layers(save_image(image.client, image.id, folder, self.base.image.layers, self.report))


class Buildx(ContextBuilder):
    """Builds with a named builder of buildx, on another machine or in Kubernetes."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> PlatformImage:
        """Build there and push from there; the digest is the one that the builder was given by the registry."""
        client = require_buildx(find_client(), self.request.buildx_name)
        if not self.is_base_pullable():
            what = "a builder of buildx takes its base from a registry"
            todo = "push the base to a registry that the builder reaches, and give it by --base"
            raise UsageError(what, where=f"--base {self.base.name}", todo=todo)
        assert self.push_to is not None, "the request was checked"
        name, builder = self.push_to.name, self.request.buildx_name
        with (
            self.prepare_context(settings, "") as (inputs, wheelhouse),
            TemporaryDirectory(prefix="envbuild-") as folder,
        ):
            self.report.step(f"building by {client.path}'s builder {builder}, and pushing")
            metadata = Path(folder, "metadata.json")
            build_remotely(client, inputs, name, builder, Transcript(inputs, self.report), metadata)
            try:
                digest = Digest.parse(json.loads(metadata.read_bytes())["containerimage.digest"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                what, todo = "buildx does not say what it pushed", "see that the builder can push to the registry"
                raise BuildError(what, where=str(metadata), todo=todo) from error
        image, locked = self.pull_pushed(digest), self.confirm_lock({})
        pushed = PushResult(reference=self.push_to.at(digest), uploaded=0, not_sent=0)
        imports = self.try_imports(locked, image, settings)
        return self.make_platform_image(locked, image, pushed, imports=imports, wheelhouse=wheelhouse)
