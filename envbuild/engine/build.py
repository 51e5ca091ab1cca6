"""Builds by an engine's BuildKit; of an image that gets no name nothing stays in the engine."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import docker
from docker.errors import DockerException, ImageNotFound
from requests import RequestException

from envbuild.engine.buildkit import Client, Process, build_locally
from envbuild.engine.client import AGAIN
from envbuild.engine.container import owner_suffix, remove_leftovers
from envbuild.engine.load import Loaded, load_into
from envbuild.engine.transcript import Request, Transcript
from envbuild.errors import BuildError, MissingComponentError
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.report import Reporter

BASE = "envbuild-base"
"""The name of a base in the engine while a build uses it; no registry needs to have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that the engine has."""

    client: docker.DockerClient
    id: str
    """The engine's own id of it."""

    def tag(self, name: Reference, image: Image) -> Loaded:
        """Give it a permanent name."""
        self.client.api.tag(self.id, name.name, name.tag or "latest", force=True)
        return Loaded(id=self.id, image=image, sent=0, existing=sum(it.descriptor.size for it in image.layers))


@contextmanager
def loaded_base(client: docker.DockerClient, image: Image, report: Reporter) -> Iterator[str]:
    """Load a base into the engine; yield a name that only this build uses, and remove it when the block ends.

    A shared name would let two builds take it from each other. Leftovers of killed commands are removed first.
    """
    remove_leftovers(client, report)
    name = f"{BASE}:{image.digest.short}-{owner_suffix()}"
    try:
        load_into(client, image, [Reference.parse(name)], report)
        yield name
    finally:
        _remove(client, name)


@contextmanager
def built(
    client: docker.DockerClient, request: Request, report: Reporter, *, buildkit: Client, running: Process
) -> Iterator[Built]:
    """Build by BuildKit; yield the image, which loses its temporary name when the block ends.

    BuildError when a step fails, MissingComponentError when the engine stops answering.
    """
    tag = f"envbuild-build:{secrets.token_hex(8)}"
    try:
        with _dead_engine(client):
            build_locally(buildkit, request, tag, Transcript(request, report), running)
        yield Built(client=client, id=_id_of(client, tag))
    finally:
        _remove(client, tag)


@contextmanager
def _dead_engine(client: docker.DockerClient) -> Iterator[None]:
    """Raise MissingComponentError if the engine died, which the docker command reports as a failed step."""
    try:
        yield
    except BuildError as error:
        try:
            client.ping()
        except (DockerException, RequestException):
            what = "the engine stopped answering during the build"
            raise MissingComponentError(what, where="container engine", todo=AGAIN) from error
        raise


def _id_of(client: docker.DockerClient, tag: str) -> str:
    try:
        return str(client.images.get(tag).id)
    except ImageNotFound as error:
        todo = "check that DOCKER_HOST and Docker's context name the same engine for all clients"
        raise BuildError("the engine does not have the built image", where=tag, todo=todo) from error


def _remove(client: docker.DockerClient, name: str) -> None:
    """Remove a name, and the image with its last name; an engine that died has lost both."""
    with suppress(DockerException, RequestException):
        client.api.remove_image(name, force=False)
