"""A container that serves as on a serving platform, confined, and asked from within; it leaves nothing."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.types import LogConfig
from docker.utils.socket import frames_iter
from requests import RequestException

from envbuild.engine.client import explanation
from envbuild.engine.container import confinement, owner_suffix, parents, tar_stream
from envbuild.recipe import PREFIX
from envbuild.serve import probe

FOLDER = "/envbuild-gate"
"""A volume of the container's own, with what is asked and the model; a read-only root file system takes no files."""
MODEL = f"{FOLDER}/model"
_PYTHON = f"{PREFIX}/bin/python"
_PROBE = "probe.py"
_LINES, _LONGEST = 12, 500
_KILLED = 137
"""The exit code of what somebody else removed: 128 and the number of SIGKILL."""


class NotStartedError(Exception):
    """The engine cannot start a container; the argument is its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of a request."""

    status: int | None = None
    """Of the answer; None where there was none."""
    body: str = ""
    fault: str = ""
    """Why there was no answer."""


class Output:
    """The last lines that a container printed, and how much it was."""

    def __init__(self, most: int) -> None:
        self._most, self.size = most, 0
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._head = self._tail = b""
        """How the line that has no end yet begins, and the last of it."""

    @property
    def flooded(self) -> bool:
        """Whether it printed more than anybody would read."""
        return self.size > self._most

    @property
    def lines(self) -> tuple[str, ...]:
        """The last ones, one that has no end yet too."""
        rest = self._tail.decode(errors="replace").rstrip()
        return (*self._lines, rest)[-_LINES:] if rest else tuple(self._lines)

    def add(self, data: bytes) -> None:
        """Take what it printed: of a long line the first is kept, of one that has no end the last."""
        self.size += len(data)
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self._head + lines[0]
            self._head = self._tail = b""
        self._head = (self._head + rest)[:_LONGEST]
        self._tail = (self._tail + rest)[-_LONGEST:]
        texts = (line[:_LONGEST].decode(errors="replace").rstrip() for line in lines[-2 * _LINES :])
        self._lines.extend(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class Serving:
    """A container that was started."""

    client: docker.DockerClient
    name: str
    output: Output
    started: float = field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        state = self._inspect().get("State", {})
        return None if state.get("Running") else int(state.get("ExitCode", _KILLED))

    def out_of_memory(self) -> int | None:
        """The limit in bytes that the kernel ended it for; None where it ended otherwise."""
        found = self._inspect()
        return int(found["HostConfig"]["Memory"]) if found.get("State", {}).get("OOMKilled") else None

    def _inspect(self) -> dict[str, Any]:
        with suppress(NotFound):  # others may remove it
            return dict(self.client.api.inspect_container(self.name))
        return {}

    def ask(self, method: str, port: int, route: str, seconds: int, file: str = "") -> Reply:
        """Send one request to its own loopback, with a file of the volume as the body."""
        command = [_PYTHON, "-I", "-S", f"{FOLDER}/{_PROBE}", method, str(port), route, str(seconds)]
        command += [f"{FOLDER}/{file}"] if file else []
        try:
            process = self.client.api.exec_create(self.name, command)["Id"]
            stdout, stderr = self.client.api.exec_start(process, demux=True)
        except APIError as error:
            if error.status_code != 409 and self.ended() is None:  # podman answers 500 for one that has ended
                return Reply(fault=f"the engine can start no process in the container: {explanation(error)}")
            return Reply(fault="the container has ended")
        return _reply(stdout or b"", stderr or b"", seconds)

    def end(self, seconds: float) -> int | None:
        """Send SIGTERM; return its exit code, or None where it still runs after some seconds."""
        with suppress(APIError):  # it may have ended a moment ago
            self.client.api.kill(self.name, "SIGTERM")
        return self.ended_within(seconds)

    def ended_within(self, seconds: float) -> int | None:
        """Its exit code once it has ended; None where it still runs after some seconds."""
        end = time.monotonic() + seconds
        while (code := self.ended()) is None and time.monotonic() < end:
            time.sleep(0.1)
        return code


def _reply(said: bytes, other: bytes, seconds: int) -> Reply:
    try:
        answer: dict[str, Any] = json.loads(said)
        if "status" in answer:
            return Reply(status=int(answer["status"]), body=str(answer["body"]))
    except (ValueError, KeyError, TypeError):
        last = (said + other).decode(errors="replace").strip().rpartition("\n")[2]
        return Reply(fault=f"{_PYTHON} of the image could not ask: {last[:_LONGEST]}")
    if "late" in answer:
        return Reply(fault=f"no answer came within {seconds} s")
    return Reply(fault="nothing listens there" if "refused" in answer else str(answer.get("broken"))[:_LONGEST])


@contextmanager
def serving(
    client: docker.DockerClient,
    image: str,
    variables: dict[str, str],
    files: Mapping[str, bytes | Path],
    *,
    memory: int | None,
    output: int,
) -> Iterator[Serving]:
    """Start a container as the image's own user, confined; it is removed however the block ends.

    `files` lie in its volume, by paths in it; `memory` is in bytes, None for most of what the engine's machine has;
    `output` is how many bytes it may print. NotStartedError where it cannot be started, so that nothing of it ran.
    """
    api, name = client.api, f"envbuild-gate-{owner_suffix()}"
    # The engine must not fill its disk with what is printed.
    host = api.create_host_config(**confinement(client, memory), log_config=LogConfig(type="none"))
    try:
        with _translated_refusal():
            api.create_container(image, name=name, volumes=[FOLDER], environment=variables, host_config=host)
        files = {_PROBE: Path(probe.__file__), **files}
        api.put_archive(name, FOLDER, tar_stream(files, dict.fromkeys(parents(files), 0o755)))
        printed = Output(output)
        with _heard(client, name, printed):
            with _translated_refusal():
                api.start(name)
            yield Serving(client, name, printed)
    finally:
        with suppress(NotFound):
            api.remove_container(name, force=True, v=True)


@contextmanager
def _translated_refusal() -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise NotStartedError(explanation(error)) from error


@contextmanager
def _heard(client: docker.DockerClient, name: str, output: Output) -> Iterator[None]:
    """Read what a container prints, from its start on; one that prints without end is ended."""
    patience, client.api.timeout = client.api.timeout, None  # it may be silent for as long as it likes
    try:
        socket = client.api.attach_socket(name, params={"stdout": 1, "stderr": 1, "stream": 1})
    finally:
        client.api.timeout = patience
    close = getattr(socket, "_response", socket).close  # docker-py keeps what owns the connection there

    def hear() -> None:
        with suppress(OSError, ValueError, DockerException, RequestException):  # it is closed, or the engine is gone
            for _, data in frames_iter(socket, tty=False):
                output.add(data)
                if output.flooded:
                    close()  # engines that cannot pass on what it prints do not get to its end
                    client.api.kill(name)
                    return

    threading.Thread(target=hear, daemon=True).start()
    try:
        yield
    finally:
        close()
