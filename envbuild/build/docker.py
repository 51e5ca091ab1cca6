"""Images that an engine, or a builder of buildx, makes of the build context.

They have the recipe's files, and other bytes each time: so they are found by their own digest alone, and never get the
tag of an environment or a place in the shared cache, which mean that everybody would make these very bytes.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from envbuild.base.build import engine_login
from envbuild.base.process import running
from envbuild.build.context import ContextBuilder
from envbuild.build.order import Order, Part
from envbuild.engine.buildkit import (
    Built,
    Transcript,
    build_remotely,
    built,
    find_client,
    loaded_base,
    require_buildkit,
    require_buildx,
)
from envbuild.engine.client import connected
from envbuild.engine.image import find_image
from envbuild.engine.load import push_image, save_image
from envbuild.errors import BuildError, UsageError
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.registry.push import PushResult
from envbuild.verify.golden.runners import InImage
from envbuild.verify.imports import Place

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
            image = enter(built(engine, request, self.report, buildkit=client, running=running))
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
            build_remotely(client, request, name, builder, Transcript(request, self.report), running, metadata)
            try:
                digest = Digest.parse(json.loads(metadata.read_bytes())["containerimage.digest"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                what, todo = "buildx does not say what it pushed", "see that the builder can push to the registry"
                raise BuildError(what, where=str(metadata), todo=todo) from error
        image, run = self.from_registry(digest), self.confirmed({})
        pushed = PushResult(reference=self.target.at(digest), uploaded=0, existing=0)
        return self.part(run, image, pushed, imports=self.try_imports(run, image, settings), wheelhouse=wheelhouse)
