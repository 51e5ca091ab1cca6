"""The container engine that this machine is configured for: its connection, its errors, its events and images."""

import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import docker
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import parse_host, parse_repository_tag
from requests import RequestException

from envbuild.errors import BuildError, MissingComponentError, RegistryError, UsageError, counted
from envbuild.report import Reporter

AGAIN = "check the engine's log, then run the command again"
_SECONDS = 60
"""For one answer; running and pulling have no limit."""
_PATHS = ("unix://", "npipe://", "http+unix://")
"""Addresses that are paths, in which an @ is a letter."""


@contextmanager
def connected(instead: str) -> Iterator[docker.DockerClient]:
    """Yield a client of the engine that DOCKER_HOST or Docker's context names, else of Docker or podman here.

    `instead` is what the user can do without an engine. MissingComponentError when none answers, BuildError for what
    the engine refuses inside the block.
    """
    host = os.environ.get("DOCKER_HOST", "")
    try:
        parse_host(host)
    except (DockerException, ValueError):  # their messages contain the whole address, with any password
        what = "the address of the container engine is malformed, or has a password"
        todo = (
            "give DOCKER_HOST as unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST; if it is not set, Docker's or "
            "podman's socket on this machine is used"
        )
        raise MissingComponentError(what, where=f"DOCKER_HOST={_without_login(host)}", todo=todo) from None
    podman = podman_socket(os.environ, Path("/var/run/docker.sock"))
    try:
        _try_socket(f"unix://{podman}" if podman else host or str(ContextAPI.kwargs_from_context().get("base_url", "")))
        if podman:
            client = docker.DockerClient(base_url=f"unix://{podman}", timeout=_SECONDS)
        else:
            client = docker.from_env(timeout=_SECONDS, use_ssh_client=True)
    except (DockerException, RequestException, OSError) as error:
        denied = isinstance(error, PermissionError) or "PermissionError" in str(error)
        what = "this user may not access the container engine" if denied else "no container engine answers"
        where = f"unix://{podman}" if podman else _without_login(host) or "Docker's default socket"
        todo = (
            "start Docker or podman's socket (podman system service), or let DOCKER_HOST name an engine; without one, "
            f"{instead}"
        )
        raise MissingComponentError(what, where=where, todo=todo) from error
    try:
        with translated_errors():
            yield client
    finally:
        client.close()


def _try_socket(address: str) -> None:
    """Connect once, as Docker's library never closes a socket that it cannot connect; OSError."""
    kind, _, path = parse_host(address).partition("://")
    if kind == "http+unix":
        with socket(AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(f"/{path.lstrip('/')}")


def podman_socket(environment: Mapping[str, str], docker_socket: Path) -> Path | None:
    """Find podman's socket, if neither a variable nor Docker's own socket selects an engine."""
    if any(environment.get(name) for name in ("DOCKER_HOST", "DOCKER_CONTEXT")) or docker_socket.exists():
        return None
    folders = (environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "/run")
    sockets = (Path(folder, "podman/podman.sock") for folder in folders)
    return next((path for path in sockets if path.is_socket()), None)


def _without_login(host: str) -> str:
    """The address without user and password, even if it is malformed."""
    end = host.find("://") + len("://") if "://" in host else 0
    return host if host[:end] in _PATHS else host[:end] + host[end:].rpartition("@")[2]


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise BuildError for what the engine refuses in the block, MissingComponentError when it stops answering."""
    try:
        yield
    except APIError as error:
        raise BuildError(f"the engine refused: {explanation(error)}", where="container engine", todo=AGAIN) from error
    except (DockerException, RequestException) as error:
        what = "the engine stopped answering"
        raise MissingComponentError(what, where="container engine", todo=AGAIN) from error


def explanation(error: APIError) -> str:
    """The engine's own message, on one line."""
    return " ".join(str(error.explanation or error).split())[:500]


Event = Mapping[str, Any]


def events(
    client: docker.DockerClient, path: str, *, timeout: float | None, **request: Any
) -> Generator[Event, None, None]:
    """Post to the engine and yield its events; closing the generator hangs up, which ends the engine's work.

    docker-py's own methods keep the connection open after an error or Ctrl-C. `timeout` is seconds of silence.
    """
    url = f"{client.api.base_url}/v{client.api.api_version}{path}"
    with closing(client.api.post(url, stream=True, timeout=timeout, **request)) as response:
        for line in filter(bytes.strip, response.iter_lines()):
            yield _event(line)
        if not response.ok:
            yield {"error": f"status {response.status_code}"}


def fault_of(event: Event) -> str:
    """The error that an event reports; empty when there is none."""
    return str(event.get("error") or event.get("message") or "")


def _event(line: bytes) -> Event:
    """Parse a line; anything but an event comes from a proxy, and is an error."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return {"error": line.decode(errors="replace")}


_QUIET = 600
"""Seconds of silence while the engine unpacks layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalImage:
    """An image that the engine has."""

    reference: str
    id: str
    """The engine's own id of it."""
    digest: str | None
    """`repository@sha256:...`, if it was pulled or pushed."""
    path: tuple[str, ...]
    """The folders of its PATH."""


def find_image(client: docker.DockerClient, reference: str, report: Reporter) -> LocalImage:
    """Find an image, or pull it; UsageError for an invalid reference, RegistryError if it cannot be pulled."""
    try:
        attributes = _attributes(client, reference)
    except ImageNotFound:
        _pull(client, reference, report)
        attributes = _attributes(client, reference)
    variables = dict(item.partition("=")[::2] for item in (attributes.get("Config") or {}).get("Env") or ())
    # Engines set this if the image does not.
    path = variables.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return LocalImage(
        reference=reference,
        id=str(attributes["Id"]),
        digest=registry_digest(reference, attributes.get("RepoDigests") or ()),
        path=tuple(folder for folder in path.split(":") if folder.startswith("/")),
    )


def _attributes(client: docker.DockerClient, reference: str) -> Mapping[str, Any]:
    try:
        attributes: Mapping[str, Any] = client.images.get(reference).attrs
    except (APIError, docker.errors.NullResource) as error:
        if isinstance(error, ImageNotFound):
            raise
        todo = "give it as for docker run: HOST/NAME:TAG, NAME@sha256:..., or an image id"
        raise UsageError("not an image reference", where=f"--image {reference}", todo=todo) from error
    return attributes


def registry_digest(reference: str, digests: Iterable[str]) -> str | None:
    """Choose the `repository@digest` of the reference's own repository, else the first by name."""
    known = sorted(digests)
    repository, _ = parse_repository_tag(reference)
    own = [digest for digest in known if digest.partition("@")[0] == repository]
    exact = [digest for digest in known if digest == reference]
    return next(iter(exact + own + known), None)


def _pull(client: docker.DockerClient, reference: str, report: Reporter) -> None:
    report.step(f"Pulling {reference}, which the engine does not have")
    repository, tag = parse_repository_tag(reference)
    layers, done = dict[str, int](), set[str]()
    client.api.timeout = _QUIET
    try:
        for event in client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if "error" in event:
                raise _not_pulled(reference, str(event["error"]))
            layer, status = str(event.get("id")), event.get("status")
            if status == "Downloading":
                detail = event.get("progressDetail") or {}
                layers[layer] = max(layers.get(layer, 0), int(detail.get("current") or 0))
                report.progress("pulled", sum(layers.values()), None)
            elif status == "Pull complete":
                done.add(layer)
    except APIError as error:
        raise _not_pulled(reference, explanation(error)) from error
    if done:
        report.note(f"pulled {counted(len(done), 'layer')}")


def _not_pulled(reference: str, reason: str) -> RegistryError:
    what = f"the image is not here and cannot be pulled: {reason}"
    todo = "check the name and the registry, log in with `docker login`, or build it first"
    return RegistryError(what, where=f"--image {reference}", todo=todo)
