"""The engine that this machine is set up for, and what it refuses, in our words."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX
from socket import socket as new_socket

import docker
from docker.context import ContextAPI
from docker.errors import APIError, DockerException
from docker.utils import parse_host
from requests import RequestException

from envbuild.errors import BuildError, MissingComponentError

_SECONDS = 60
"""For one answer; running and pulling take as long as they take."""
_TODO = "start Docker, or podman's socket (podman system service), or let DOCKER_HOST name an engine; without one, "


_FORMS = "give DOCKER_HOST as unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"
_OR_NONE = "without it, Docker's or podman's socket on this machine is taken"
_PATHS = ("unix://", "npipe://", "http+unix://")
"""Addresses that are paths, in which an @ is a letter."""


@contextmanager
def connected(instead: str) -> Iterator[docker.DockerClient]:
    """Yield a client of the engine that DOCKER_HOST or Docker's context names, else of Docker or podman here.

    `instead` is what people without one can do.

    MissingComponentError when none answers, BuildError for what the engine refuses inside the block.
    """
    with _client(instead) as client, told():
        yield client


@contextmanager
def _client(instead: str) -> Iterator[docker.DockerClient]:
    socket = podman_socket(os.environ, Path("/var/run/docker.sock"))
    _check_address(os.environ.get("DOCKER_HOST", ""))
    try:
        _try_socket(f"unix://{socket}" if socket else _address())
        if socket is None:
            client = docker.from_env(timeout=_SECONDS, use_ssh_client=True)
        else:
            client = docker.DockerClient(base_url=f"unix://{socket}", timeout=_SECONDS)
    except (DockerException, RequestException, OSError) as error:
        raise MissingComponentError(_absence(error), where=_place(socket), todo=_TODO + instead) from error
    try:
        yield client
    finally:
        client.close()


def _address() -> str:
    """Where docker.from_env goes."""
    return os.environ.get("DOCKER_HOST") or str(ContextAPI.kwargs_from_context().get("base_url") or "")


def _try_socket(address: str) -> None:
    """Docker's library never closes a socket that it cannot connect; OSError."""
    kind, _, path = parse_host(address).partition("://")
    if kind == "http+unix":
        with new_socket(AF_UNIX) as tried:
            tried.settimeout(_SECONDS)
            tried.connect(f"/{path.lstrip('/')}")


def podman_socket(environment: Mapping[str, str], docker_socket: Path) -> Path | None:
    """Find podman's socket, where neither a setting nor Docker's own socket says which engine to take."""
    if any(environment.get(name) for name in ("DOCKER_HOST", "DOCKER_CONTEXT")) or docker_socket.exists():
        return None
    folders = (environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "/run")
    sockets = (Path(folder, "podman/podman.sock") for folder in folders)
    return next((socket for socket in sockets if socket.is_socket()), None)


def _check_address(host: str) -> None:
    try:
        parse_host(host)
    except (DockerException, ValueError):  # their messages have all of it, a password too
        what, todo = "the address of the container engine is malformed, or has a password", f"{_FORMS}; {_OR_NONE}"
        raise MissingComponentError(what, where=f"DOCKER_HOST={_bare(host)}", todo=todo) from None


def _place(socket: Path | None) -> str:
    return f"unix://{socket}" if socket else _bare(os.environ.get("DOCKER_HOST", "")) or "Docker's default socket"


def _bare(host: str) -> str:
    """The address without user and password, also where it is none."""
    end = host.find("://") + len("://") if "://" in host else 0
    return host if host[:end] in _PATHS else host[:end] + host[end:].rpartition("@")[2]


def _absence(error: Exception) -> str:
    if isinstance(error, PermissionError) or "PermissionError" in str(error):
        return "this user may not speak to the container engine"
    return "no container engine answers"


@contextmanager
def told() -> Iterator[None]:
    """Say in our words what the engine refuses in the block, and that it ended."""
    try:
        yield
    except APIError as error:
        raise BuildError(f"the engine refused: {explanation(error)}", where="container engine", todo=_AGAIN) from error
    except (DockerException, RequestException) as error:
        text = "the engine stopped answering"
        raise MissingComponentError(text, where="container engine", todo=_AGAIN) from error


_AGAIN = "see the engine's own log, then run the command again"


def explanation(error: APIError) -> str:
    """Return what the engine itself said, on one line."""
    return " ".join(str(error.explanation or error).split())[:500]
