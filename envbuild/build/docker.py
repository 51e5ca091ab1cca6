"""Images that an engine, or a builder of buildx, makes of the build context.

They have the recipe's files, and other bytes each time: so they are found by their own digest alone, and never get the
tag of an environment or a place in the shared cache, which mean that everybody would make these very bytes.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from envbuild.base.build import engine_login
from envbuild.base.process import running
from envbuild.build.builder import BuildResult
from envbuild.build.context import ContextBuilder
from envbuild.build.order import Order
from envbuild.engine.build import Built, built, loaded_base
from envbuild.engine.buildkit import build_remotely, find_client, require_buildkit, require_buildx
from envbuild.engine.client import connected
from envbuild.engine.image import find_image
from envbuild.engine.load import push_image
from envbuild.engine.saved import save_image
from envbuild.engine.transcript import Transcript
from envbuild.errors import BuildError, UsageError
from envbuild.image.assembler import Assembled
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
        _refuse("--bytecode", "only the assembler compiles modules", "leave out --bytecode, or --builder docker")
    if order.builder_name:
        if not order.push:
            what = "a builder of buildx gives its image to a registry"
            _refuse(f"--builder-name {order.builder_name}", what, "give --push REPOSITORY")
        require_buildx(find_client(), order.builder_name)
        return
    if len(order.platforms) > 1:
        todo = "name a builder of buildx (--builder-name) and a repository (--push), or leave out --builder docker"
        _refuse("--platform", "an engine builds for one platform at a time", todo)
    if order.stamp and order.load and not (order.push or order.archive):
        what = "an image that only an engine has, has no digest that others find it by"
        _refuse("--stamp", what, "add --push REPOSITORY")
    with connected(INSTEAD) as engine:
        require_buildkit(engine, INSTEAD)


def _refuse(where: str, what: str, todo: str) -> None:
    raise UsageError(what, where=where, todo=todo)


class Docker(ContextBuilder):
    """The engine that this machine is set up for."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> BuildResult:
        """Build with the engine's BuildKit."""
        enter = self.until.enter_context
        engine = enter(connected(INSTEAD))
        client = require_buildkit(engine, INSTEAD)
        base = "" if self.pullable() else enter(loaded_base(engine, self.base.image, self.report))
        # The context and the secrets are not needed any longer than the build.
        with self.prepared(settings, base) as prepared:
            self.report.step(f"building by BuildKit, with the client {client.path}")
            image = enter(built(engine, prepared.request, self.report, buildkit=client, running=running))
        run = self.confirmed({})
        there = InImage(name=image.id, client=engine, image=find_image(engine, image.id, self.report))
        imports = self.try_imports(run, None, settings, Place(name="container engine", runner=there))
        pushed = self._pushed(image) if self.target else None
        found = self.from_registry(pushed.reference.digest) if pushed else self._saved(image)  # type: ignore[arg-type]
        content = self.marked(found)
        return BuildResult(
            assembled=Assembled(image=content, overlaps=(), results={}, true={}),
            pushed=pushed,
            run=run,
            imports=imports,
            wheelhouse=prepared.wheelhouse,
            named=lambda name: image.tag(name, content),
        )

    def _pushed(self, image: Built) -> PushResult:
        self.report.step(f"pushing to {self.order.push}")
        name = self.temporary_name()
        sent = push_image(image.client, image.id, name, engine_login(name), self.report)
        return PushResult(reference=name.at(sent.digest), uploaded=sent.sent, existing=0)

    def _saved(self, image: Built) -> Image:
        kept = not self.order.load or self.order.archive
        folder = Path(self.until.enter_context(TemporaryDirectory(prefix="envbuild-"))) if kept else None
        return save_image(image, folder, self.base.image.layers, self.report)


class Buildx(ContextBuilder):
    """A builder of buildx by its name: on another machine, or in Kubernetes."""

    __slots__ = ()

    def build(self, settings: IndexSettings) -> BuildResult:
        """Build there and push from there; the digest is the one that the builder was given by the registry."""
        client = require_buildx(find_client(), self.order.builder_name)
        if not self.pullable():
            todo = "push the base to a registry that the builder reaches, and give it by --base"
            _refuse(f"--base {self.base.name}", "a builder of buildx takes its base from a registry", todo)
        with self.prepared(settings, "") as prepared, TemporaryDirectory(prefix="envbuild-") as folder:
            self.report.step(f"building by {client.path}'s builder {self.order.builder_name}, and pushing")
            metadata, request = Path(folder, "metadata.json"), prepared.request
            transcript = Transcript(request, self.report)
            assert self.target is not None, "the order was checked"
            name, builder = self.target.name, self.order.builder_name
            build_remotely(client, request, name, builder, transcript, running, metadata)
            digest = _digest(metadata)
        image = self.marked(self.from_registry(digest))
        run = self.confirmed({})
        return BuildResult(
            assembled=Assembled(image=image, overlaps=(), results={}, true={}),
            pushed=PushResult(reference=self.target.at(digest), uploaded=0, existing=0),
            run=run,
            imports=self.try_imports(run, image, settings),
            wheelhouse=prepared.wheelhouse,
        )


def _digest(metadata: Path) -> Digest:
    try:
        return Digest.parse(json.loads(metadata.read_bytes())["containerimage.digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        todo = "see that the builder can push to the registry"
        raise BuildError("buildx does not say what it pushed", where=str(metadata), todo=todo) from error
