"""An engine's image to a registry, by the engine: the digest is what the registry answered it."""

from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

import docker
from docker.auth import encode_header
from docker.errors import ImageNotFound

from envbuild.engine.events import Event, events, fault_of
from envbuild.engine.image import Report
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference

_QUIET = None
"""Registries may need minutes for the last byte of a large layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the engine said of its push."""

    digest: Digest
    """The manifest's, as the registry gave it."""
    sent: int
    """Bytes of layers, before the engine compressed them."""


def push_image(
    client: docker.DockerClient, identity: str, name: Reference, login: Mapping[str, str], report: Report
) -> Sent:
    """Let the engine push an image under a name with a tag; the name is taken from the engine again.

    `login` is what the registry is asked with (Docker Engine API, "Authentication"), empty for none. RegistryError.
    """
    former = _identity(client, str(name))
    client.api.tag(identity, name.name, name.tag, force=True)
    try:
        return _pushed(client, name, login, report)
    finally:
        with suppress(docker.errors.DockerException):
            if former:
                client.api.tag(former, name.name, name.tag, force=True)
            else:
                client.api.remove_image(str(name))


def _identity(client: docker.DockerClient, name: str) -> str:
    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        return ""


def _pushed(client: docker.DockerClient, name: Reference, login: Mapping[str, str], report: Report) -> Sent:
    layers: dict[str, int] = {}
    said = ""
    headers = {"X-Registry-Auth": encode_header(dict(login))}
    path = f"/images/{name.name}/push"
    answered = events(client, path, params={"tag": name.tag or ""}, headers=headers, timeout=_QUIET)
    with closing(answered):
        for event in answered:
            if reason := fault_of(event):
                raise _refused(name, reason)
            _count(event, layers, report)
            said = str((event.get("aux") or {}).get("Digest") or said)
    try:
        return Sent(digest=Digest.parse(said), sent=sum(layers.values()))
    except ValueError as error:
        raise _refused(name, "it gave no digest") from error


def _count(event: Event, layers: dict[str, int], report: Report) -> None:
    done = (event.get("progressDetail") or {}).get("current")
    if event.get("status") == "Pushing" and done:
        layers[str(event.get("id"))] = int(done)
        report.progress("pushing", sum(layers.values()), None)


def _refused(name: Reference, reason: str) -> RegistryError:
    todo = "see that the engine reaches the registry, and log in with `docker login`"
    return RegistryError(f"the engine could not push: {' '.join(reason.split())[:500]}", where=str(name), todo=todo)
