"""A base made by the engine from Dockerfile.base, on a parent from a registry, a layout, or Debian's own mirror."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import docker

from envbuild.base.apt import find_mirror, source_lines
from envbuild.base.debian import debian_base
from envbuild.base.order import BaseOrder
from envbuild.base.process import running
from envbuild.base.resolve import layout_image, registry_reference
from envbuild.engine.build import built, loaded_base
from envbuild.engine.buildkit import require_buildkit
from envbuild.engine.client import connected
from envbuild.engine.inspection import BaseFacts, inspect_base
from envbuild.engine.load import push_image
from envbuild.engine.transcript import Request
from envbuild.errors import BaseError, BuildError, MissingComponentError, RegistryError, UsageError
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import DOCKER_HUB, Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import find
from envbuild.report import Reporter

INSTEAD = "run by hand, where there is one, what --dry-run prints"
_HUB = "https://index.docker.io/v1/"
"""How engines call Docker Hub in logins."""
_APT = Path("/etc/apt")
_WAYS = {
    "python3 is ": "give --python-image an image with that Python in /usr/local, such as python:3.9.18-slim-bullseye, "
    "whose glibc is not newer than the parent's",
    "python3: not found": "give --python, so that the parent's distribution or --python-image brings one",
    "Unable to locate package": "see the package's name; `apt-cache search` on the parent lists them",
    "was not found": "see the version: `apt-cache madison NAME` on the parent lists them; a snapshot may have it",
    "Failed to fetch": "see that containers reach the archive; for an old suite give --snapshot, or --sources FILE",
    "does not have a Release file": "the archive has the suite no more: give --snapshot, or --sources FILE",
}
"""What can be done about what the failed step said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What a base is built on."""

    name: str
    """As it was asked for, by digest where it lies in a registry."""
    image: Image | None = None
    """What the engine has to be given first; None where it pulls it."""
    sources: str = ""
    """apt's one-line sources, where the parent has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBase:
    """A base that the engine has."""

    id: str
    """The engine's own name of it."""
    inside: BaseFacts


def find_parent(text: str, machine: str, cache: Path, report: Reporter) -> Parent:
    """Find what --parent names, and pin it; UsageError, BaseError, RegistryError, MissingComponentError."""
    reference = registry_reference(text)
    with connected(INSTEAD):
        pass  # bootstrapping would be in vain
    if reference is None and text.startswith("debian:"):
        suite = text.removeprefix("debian:")
        image = debian_base(suite, machine, cache, report.note)
        return Parent(name=text, image=image, sources="\n".join(source_lines(suite, find_mirror(_APT)).values()))
    if reference is None:
        return Parent(name="oci-layout", image=layout_image(text, machine))
    return Parent(name=pinned(text, report))


def pinned(text: str, report: Reporter) -> str:
    """Name a registry's image by its digest, as a tag may move; UsageError for what lies in no registry.

    One that no registry answers for is left to the engine, which may have it.
    """
    reference = registry_reference(text)
    if reference is None:
        raise UsageError("this has to be an image in a registry", where=text, todo="push it, and give its reference")
    if reference.digest:
        return str(reference)
    try:
        with Registry(reference.registry) as registry:
            said = registry.manifest_digest(reference.repository, reference.target)
    except RegistryError as error:
        report.note(f"{text} is not pinned by a digest, as its registry does not answer: {error.what}")
        return text
    return f"{reference.name}@{said}" if said else text


def make_base(
    order: BaseOrder, parent: Parent, dockerfile: Path, name: Reference, machine: str, report: Reporter
) -> MadeBase:
    """Build, name the result in the engine, and look into it; BaseError, with the step's last lines, when it fails."""
    with ExitStack() as stack:
        client = stack.enter_context(connected(INSTEAD))
        local = stack.enter_context(loaded_base(client, parent.image, report)) if parent.image else ""
        order = replace(order, parent=local or parent.name)
        context = Path(stack.enter_context(TemporaryDirectory(prefix="envbuild-")))
        shutil.copy(dockerfile, context / "Dockerfile")
        request = Request(
            context=context,
            dockerfile="Dockerfile",
            platform=f"linux/{ARCHITECTURES[machine]}",
            wheels=(),
            network=True,
            arguments=order.arguments,
        )
        with _told(parent):
            return _built(client, request, name, report)


def _built(client: docker.DockerClient, request: Request, name: Reference, report: Reporter) -> MadeBase:
    buildkit = require_buildkit(client, INSTEAD)
    with built(client, request, report, buildkit=buildkit, running=running) as image:
        inside = inspect_base(client, image.id)
        client.api.tag(image.id, name.name, name.tag or "latest", force=True)
        return MadeBase(id=image.id, inside=inside)


@contextmanager
def _told(parent: Parent) -> Iterator[None]:
    """Say what can be done about a step that failed."""
    try:
        yield
    except BaseError:
        raise
    except BuildError as error:
        way = next((way for said, way in _WAYS.items() if said in error.what), "see what the step printed")
        raise BaseError(error.what, where=f"Dockerfile.base on {parent.name}", todo=way) from error


def engine_login(reference: Reference) -> dict[str, str]:
    """What an engine logs in with at a registry (Docker Engine API, "Authentication"); empty for nothing."""
    found = find(reference.registry, reference.repository).credentials
    if found is None:
        return {}
    host = _HUB if reference.registry == DOCKER_HUB else reference.registry
    secret = {"identitytoken": found.identity_token} if found.identity_token else {"password": found.password}
    return {"username": found.username, "serveraddress": host} | secret


def engine_images() -> frozenset[str] | None:
    """The ids of what the engine has; None where none answers."""
    try:
        with connected(INSTEAD) as client:
            return frozenset(str(it["Id"]) for it in client.api.images())
    except (MissingComponentError, BuildError):
        return None


def push_base(
    image: str, target: Reference, report: Reporter, *, machine: str | None = None
) -> tuple[Reference, BaseFacts]:
    """Let the engine push one of its images, and see that the registry has it; UsageError, RegistryError.

    It has to be for `machine` where one is named: `x86_64`.
    """
    with connected("build the base where the engine is, and push from there") as client:
        identity = _image_for(client, image, machine)
        inside = inspect_base(client, identity)
        name = replace(target, tag=target.tag or "latest")
        sent = push_image(client, identity, name, engine_login(name), report)
    with Registry(name.registry) as registry:
        if not registry.has_manifest(name.repository, sent.digest):
            todo = "push again; another client may have removed it"
            raise RegistryError("the registry has not what was pushed", where=str(name.at(sent.digest)), todo=todo)
    return name.at(sent.digest), inside


def _image_for(client: docker.DockerClient, name: str, machine: str | None) -> str:
    """The engine's id of an image that is for this machine, where one is named."""
    try:
        found = client.images.get(name)
    except (docker.errors.ImageNotFound, docker.errors.NullResource) as error:
        todo = "build it with `envbuild base build`, or name one that `docker images` lists; debian:SUITE works too"
        raise UsageError("the engine has no such image", where=name, todo=todo) from error
    has = f"{found.attrs.get('Os')}/{found.attrs.get('Architecture')}"
    if machine and has != (wanted := f"linux/{ARCHITECTURES[machine]}"):
        todo = "name the image of that platform; an engine keeps one of several under one name"
        raise UsageError(f"the engine's image is for {has}, not {wanted}", where=name, todo=todo)
    return str(found.id)
