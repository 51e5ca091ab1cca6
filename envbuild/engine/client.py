"""The container engine that this machine is configured for, and its errors as envbuild's."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, socket

import docker
from docker.context import ContextAPI
from docker.errors import APIError, DockerException
from docker.utils import parse_host
from requests import RequestException

from envbuild.errors import BuildError, MissingComponentError

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
