"""What a command that was killed left in an engine, told by names from what others still use, and removed."""

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import docker
from docker.errors import APIError, DockerException
from requests import RequestException

from envbuild.engine.image import Report

_NAME = re.compile(r"(?:.*/)?envbuild-[a-z]+[-:](?:[0-9a-f]+-)?([0-9a-f]{8})-([1-9]\d*)-(\d+)-(\d{10})-[0-9a-f]{8}")
_NOWHERE = "0" * 8
_LONGEST = 24 * 60 * 60
"""Seconds after which nobody uses what processes made that cannot be seen from here: on other machines, in containers,
before this machine started again."""


def maker() -> str:
    """The end of a name that nobody else gives, and that says which process gave it, and when."""
    began = _state(os.getpid())[1]
    return f"{_here()}-{os.getpid()}-{began}-{int(time.time())}-{secrets.token_hex(4)}"


def remove_left(client: docker.DockerClient, report: Report) -> None:
    """Remove containers with their volumes, and then images, whose maker is gone; what the engine keeps stays."""
    with suppress(DockerException, RequestException):
        for name in (*_removed_containers(client), *_removed_images(client)):
            report.note(f"removed {name}, which a command that was killed had left in the engine")


def is_left(name: str, now: float) -> bool:
    """Whether a name says that a process gave it that is gone."""
    found = _NAME.fullmatch(name)
    if found is None:
        return False
    where, pid, began, made = found.groups()
    if where == _NOWHERE or where != _here():
        return now - int(made) > _LONGEST
    return not _runs(int(pid), began)


def _removed_containers(client: docker.DockerClient) -> Iterator[str]:
    for one in client.api.containers(all=True):
        name = next((it for it in one.get("Names") or () if is_left(it, time.time())), None)
        with suppress(APIError):  # others may remove it, too
            if name:
                client.api.remove_container(one["Id"], force=True, v=True)
                yield name.removeprefix("/")


def _removed_images(client: docker.DockerClient) -> Iterator[str]:
    for name in (tag for one in client.api.images() for tag in one.get("RepoTags") or ()):
        with suppress(APIError):
            if is_left(name, time.time()):
                client.api.remove_image(name)
                yield name


def _here() -> str:
    """The machine since its last start, and the namespace that numbers its processes."""
    try:
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return _NOWHERE
    return sha256(f"{os.uname().nodename}\n{boot}\n{space}".encode()).hexdigest()[:8]


def _runs(pid: int, began: str) -> bool:
    state, start = _state(pid)
    if state:
        return start == began and state not in "ZX"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # /proc may hide the processes of others
        return True
    return True


def _state(pid: int) -> tuple[str, str]:
    """Its state and when it began, in ticks since the boot (proc_pid_stat(5)); empty and 0 where that is not told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", "0"
    return fields[0], fields[19]
