"""A container that is this process's program: its streams, its signals, its exit code, and gone when it ends."""

import errno
import os
import pwd
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound
from requests import RequestException

from envbuild.engine.client import explanation, translated_errors
from envbuild.errors import MissingComponentError, UsageError
from envbuild.local.model import Engine, Launch
from envbuild.local.options import Attached, Caller, container_config, folders, home
from envbuild.local.ports import refused_port
from envbuild.local.terminal import (
    Caught,
    OutputClosed,
    Wire,
    caught_signals,
    check_output,
    drop_output,
    has_input,
    raw_terminal,
    send_input,
    show_output,
    terminal_size,
    wire_of,
)
from envbuild.retry import as_completed

T = TypeVar("T")
Tell = Callable[[str], object]
_PATIENCE = 600
"""Seconds: for other ids than the image's, a rootless podman copies all of it before the first start."""
_GRACE = 5
"""Seconds that a program has to tidy up, where it is not waited for."""
_SIGNALLED = 128
"""What is added to a signal's number, by shells and by engines."""
_NO_DETACHING = ",".join(["ctrl-^"] * 8)
"""Otherwise the engine keeps Ctrl-P to itself, to see whether Ctrl-Q follows; no word turns that off."""
_GONE = (404, 409)
"""It was never made, or somebody else removes it just now."""
_NO_INIT = re.compile(r"docker-init|init binary|catatonit")
_NOT_FOUND = re.compile(r"executable file|exec: .*no such file|no such file .*\bexec", re.IGNORECASE)
_NOT_EXECUTABLE = re.compile(r"exec: .*(permission denied|is a directory)", re.IGNORECASE)
_NO_GPU = re.compile(r"device driver|nvidia|\bCDI\b", re.IGNORECASE)
_TOOLKIT = (
    "install the NVIDIA Container Toolkit; then, for Docker, sudo nvidia-ctk runtime configure --runtime=docker and "
    "restart it, or, for CDI, sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; "
    "or run it without GPUs: --variant cpu"
)
_NO_SOURCE = "bind source path does not exist"


def run_launch(client: docker.DockerClient, engine: Engine, launch: Launch, tell: Tell) -> int:
    """Run a container on this process's streams; return its exit code, and leave nothing of it, however it ends.

    128 and the number for what a signal ended; 127 if the program is not there, 126 if it cannot be executed.
    UsageError for what cannot be mounted and ports that cannot be had, MissingComponentError for an engine that stops
    answering or has no GPUs, BuildError for what else it refuses, and where stdout is closed.
    """
    check_output()
    _check_sources(engine, launch)
    attached = Attached(stdin=has_input(), size=terminal_size() if launch.interactive else None)
    with translated_errors(), _patient(client), caught_signals() as caught:
        config = container_config(launch, engine, _caller(), attached)
        run = _Run(client, launch, attached, caught, tell)
        try:
            return run.through(config)
        except _InitMissing:
            tell("the engine lacks its init program, docker-init or catatonit: not every program will heed signals")
            config = container_config(launch, engine, _caller(), attached, init=False)
            return replace(run, init=False).through(config)


class _InitMissing(Exception):  # noqa: N818 - it is caught above, and no fault
    """The engine has not got the program that it was told to start first."""


class _NotStarted(Exception):  # noqa: N818 - it becomes an exit code
    """The program cannot be started; the argument is the exit code that says so."""


@contextmanager
def _patient(client: docker.DockerClient) -> Iterator[None]:
    before, client.api.timeout = client.api.timeout, _PATIENCE
    try:
        yield
    finally:
        client.api.timeout = before


@dataclass(frozen=True, slots=True)
class _Run:
    """One container, from its creation to its removal."""

    client: docker.DockerClient
    launch: Launch
    attached: Attached
    caught: Caught
    tell: Tell
    init: bool = True
    """Whether signals do what they usually do, which the kernel keeps from a first process that handles none."""

    def through(self, config: dict[str, Any]) -> int:
        """Create, attach, start, and wait for its end."""
        try:
            with self._refusals(), self._created(config) as name, self._wired(name) as wire:
                if self.caught.first is None:
                    self.client.api.start(name)
                return self._end(name, wire)
        except _NotStarted as code:
            return int(code.args[0])

    @contextmanager
    def _created(self, config: dict[str, Any]) -> Iterator[str]:
        """Create it by a name of ours: it is removed even if the engine's answer, with its id, is not heard."""
        name = f"envbuild-local-{secrets.token_hex(6)}"
        try:
            self.client.api.create_container_from_config(config, name)
            if path := home(self.launch):
                self.client.api.put_archive(name, "/", folders(path))
            yield name
        finally:
            _remove(self.client, name)

    @contextmanager
    def _wired(self, name: str) -> Iterator[Wire]:
        """Attach before it starts, so that nothing it prints is missed."""
        streams = {"stdin": int(self.attached.stdin), "stdout": 1, "stderr": 1, "stream": 1}
        wire = wire_of(self.client.api.attach_socket(name, {**streams, "detachKeys": _NO_DETACHING}))
        try:
            yield wire
        finally:
            wire.close()

    def _end(self, name: str, wire: Wire) -> int:
        self.caught.heeded = True
        if self.caught.first is not None:  # too early for a program to hear of it
            return _SIGNALLED + self.caught.first
        for line in _addresses(self.client, name) if self.launch.ports else ():
            self.tell(line)
        with raw_terminal(wanted=self.attached.size is not None), self._signals_passed_on(name), self._fed(wire):
            code = self._joined(name, wire)
        state = _state(self.client, name)
        if state.get("OOMKilled"):
            self.tell("the container ran out of memory and was killed: free some, give the engine more, or load less")
        # Of a podman in a hurry, what waits for the end may hear of the end before it hears of the code.
        return code or (int(state["ExitCode"]) if state.get("Status") == "exited" else 0)

    @contextmanager
    def _signals_passed_on(self, name: str) -> Iterator[None]:
        _begun(lambda: self._pass_on(name))
        try:
            yield
        finally:
            self.caught.numbers.put(0)

    @contextmanager
    def _fed(self, wire: Wire) -> Iterator[None]:
        """Send stdin until the block ends; what is typed after that is for others."""
        stop, stopped = os.pipe()
        _begun(lambda: send_input(wire, stop) if self.attached.stdin else os.close(stop))
        try:
            yield
        finally:
            os.close(stopped)

    def _joined(self, name: str, wire: Wire) -> int:
        """Wait until it has ended, and all that it printed was written."""
        shown = _begun(lambda: self._show(name, wire))
        ended = _begun(lambda: int(self.client.api.wait(name, timeout=None)["StatusCode"]))
        for it in as_completed([shown, ended]):
            it.result()
        return shown.result() or ended.result()

    def _show(self, name: str, wire: Wire) -> int:
        """Write its output; where that cannot be, end it, and return what a shell says of such a program."""
        try:
            show_output(wire, terminal=self.attached.size is not None)
        except OutputClosed as error:
            _begun(lambda: drop_output(wire))
            self.client.api.stop(name, timeout=_GRACE)
            if error.args[0] != os.strerror(errno.EPIPE):
                self.tell(f"the output cannot be written, so that the container was ended: {error}")
            return _SIGNALLED + signal.SIGPIPE
        return 0

    def _pass_on(self, name: str) -> None:
        """Give it each signal; who interrupts a second time wants it to be over."""
        self._resize(name)
        interrupted = False
        while number := self.caught.numbers.get():
            # It may have ended a moment ago; that an engine is gone is told by who waits for it.
            with suppress(DockerException, RequestException):
                if number == signal.SIGWINCH:
                    self._resize(name)
                    continue
                self._signal(name, number, again=interrupted)
                interrupted = interrupted or number == signal.SIGINT

    def _signal(self, name: str, number: int, *, again: bool) -> None:
        if number != signal.SIGINT and not self.init:
            self.client.api.stop(name, timeout=_GRACE)
        else:
            killed = again and number == signal.SIGINT
            self.client.api.kill(name, "SIGKILL" if killed else signal.Signals(number).name)

    def _resize(self, name: str) -> None:
        with suppress(DockerException, RequestException):
            if self.attached.size and (size := terminal_size()):
                self.client.api.resize(name, *size)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Say what an engine's refusal means; of Docker when it starts, of podman already when it is attached to."""
        try:
            yield
        except APIError as error:
            said = explanation(error)
            if _NO_INIT.search(said):
                raise _InitMissing from error
            for code, pattern in ((126, _NOT_EXECUTABLE), (127, _NOT_FOUND)):
                # Its name is quoted so by runc, else by crun; engines miss programs of their own as well.
                if pattern.search(said) and re.search(rf"[\"`]{re.escape(self.launch.command[0])}[\"`]", said):
                    reason = said.rpartition("unable to start container process: ")[2]
                    self.tell(f"{self.launch.command[0]} cannot be started: {reason}")
                    raise _NotStarted(code) from error
            if self.launch.gpus and _NO_GPU.search(said):
                raise _without_gpus(said) from error
            if _NO_SOURCE in said:
                todo = "make it, or share it with the machine that the engine runs in"
                raise UsageError("the engine does not see what is to be mounted", where=said, todo=todo) from error
            if self.launch.ports and (refused := refused_port(self.launch.ports, said)):
                raise refused from error
            raise


def _check_sources(engine: Engine, launch: Launch) -> None:
    """Podman would make a folder that is missing, and then the program would find it empty."""
    for mount in launch.mounts if engine.near else ():
        try:
            mount.source.stat()
        except OSError as error:
            what, todo = f"it cannot be mounted: {error.strerror}", f"make it, or name another path for {mount.target}"
            raise UsageError(what, where=str(mount.source), todo=todo) from error


def _without_gpus(said: str) -> MissingComponentError:
    what = f"the engine cannot give GPUs to a container: {said}"
    return MissingComponentError(what, where="container engine", todo=_TOOLKIT)


def _caller() -> Caller:
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "user"
    return Caller(uid=uid, gid=os.getgid(), groups=tuple(os.getgroups()), name=name)


def _remove(client: docker.DockerClient, name: str) -> None:
    try:
        client.api.remove_container(name, force=True, v=True)
    except APIError as error:
        if error.status_code not in _GONE:
            raise


def _addresses(client: docker.DockerClient, name: str) -> Iterator[str]:
    found = client.api.inspect_container(name)["NetworkSettings"]["Ports"] or {}
    for port, bindings in found.items():
        for it in bindings or ():
            host = f"[{it['HostIp']}]" if ":" in it["HostIp"] else it["HostIp"]
            yield f"port {port.partition('/')[0]} of the container is {host}:{it['HostPort']} here"


def _state(client: docker.DockerClient, name: str) -> dict[str, Any]:
    with suppress(NotFound):  # others may have removed it
        return dict(client.api.inspect_container(name)["State"])
    return {}


def _begun(work: Callable[[], T]) -> Future[T]:
    """Begin something in a thread that nobody waits for when this process ends."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told to who asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
