"""A build by an engine, of which nothing is left but what got a name."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import docker
from docker.errors import APIError, DockerException
from requests import RequestException

from envbuild.engine.buildkit import Client, Running, build_locally
from envbuild.engine.classic import build_classic
from envbuild.engine.container import maker, remove_left
from envbuild.engine.load import Loaded, load_into
from envbuild.engine.rest import Rest, had_images
from envbuild.engine.transcript import Request, Transcript
from envbuild.errors import BuildError, MissingComponentError
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.report import Reporter

BASE = "envbuild-base"
"""What a base is called in the engine while it is built on, which no registry has to have."""
_BUILD = "envbuild-build"
_PATIENCE = 30.0
_TROUBLE = (DockerException, RequestException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that the engine has."""

    client: docker.DockerClient
    id: str
    """The engine's own name of it."""

    def named(self, name: Reference, image: Image) -> Loaded:
        """Give it a name that it keeps."""
        self.client.api.tag(self.id, name.name, name.tag or "latest", force=True)
        return Loaded(id=self.id, image=image, sent=0, existing=sum(it.descriptor.size for it in image.layers))


@contextmanager
def loaded_base(client: docker.DockerClient, image: Image, report: Reporter) -> Iterator[str]:
    """Put a base into the engine; yield a name that is this build's own, and goes when the block ends.

    Two builds that shared one name would take it from each other. What builds that were killed left goes before.
    """
    remove_left(client, report)
    name = Reference.parse(f"{BASE}:{image.digest.short}-{maker()}")
    short = f"{BASE}:{name.tag}"
    try:
        load_into(client, image, [name], report)
        yield short
    finally:
        _remove(client, short)


@contextmanager
def built(
    client: docker.DockerClient,
    request: Request,
    report: Reporter,
    *,
    buildkit: Client | None,
    running: Running,
    logins: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Built]:
    """Build by BuildKit where a client for it is given, else by the engine's first builder; yield the image.

    When the block ends, however it ends, containers and images that the build made are gone, but for those with a name.
    BuildError when a step fails, MissingComponentError when the engine stops answering.
    """
    tag, transcript = f"{_BUILD}:{secrets.token_hex(8)}", Transcript(request, report)
    rest = Rest(client, frozenset() if buildkit else had_images(client))
    try:
        if buildkit is None:
            build_classic(client, request, tag, transcript, rest.note, logins)
        else:
            _by_client(client, lambda: build_locally(buildkit, request, tag, transcript, running))
        yield Built(client=client, id=_identity(client, tag))
    except BaseException as error:
        _remove(client, tag)
        rest.remove(ended=isinstance(error, BuildError), patience=_PATIENCE)
        raise
    _remove(client, tag)
    rest.remove()


def _by_client(client: docker.DockerClient, build: Callable[[], None]) -> None:
    """Build by another program; what it says of an engine that died is not about a step."""
    try:
        build()
    except BuildError as error:
        try:
            client.ping()
        except _TROUBLE:
            what, todo = "the engine stopped answering in the build", "see the engine's own log, then run it again"
            raise MissingComponentError(what, where="container engine", todo=todo) from error
        raise


def _identity(client: docker.DockerClient, tag: str) -> str:
    try:
        return str(client.images.get(tag).id)
    except docker.errors.ImageNotFound as error:
        todo = "see that DOCKER_HOST and Docker's context name one engine for all clients"
        raise BuildError("the engine does not have the image that was built", where=tag, todo=todo) from error


def _remove(client: docker.DockerClient, name: str) -> None:
    """Take a name from the engine, and the image with its last name; an engine that died has lost both anyway."""
    with suppress(APIError, *_TROUBLE):
        client.api.remove_image(name, force=False)
