"""The command in a container: its configuration, and the engine's own client at this process's terminal.

The container is created by the engine's API, so that values of variables stand on no command line and paths need no
quoting. `docker start` or `podman start` then runs it with this process's streams, and it is removed at the end.
"""

import ipaddress
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any, Self

import docker
from docker.errors import APIError, NotFound
from requests import RequestException

from envbuild.engine.client import explanation, translated_errors
from envbuild.engine.container import parents, tar_stream
from envbuild.errors import BuildError, MissingComponentError, UsageError
from envbuild.local.model import Engine, Launch, Port

LABEL = "dev.envbuild.local"
"""Finds containers that were left by a power failure: docker ps --all --filter label=dev.envbuild.local"""
_HOMES = ("/tmp/home", "/home/envbuild")  # noqa: S108 - made by root before the program starts, in its own container
_EVERY = "0.0.0.0"  # noqa: S104 - a port that the user published on every address
_PATIENCE = 600
"""Seconds; a rootless podman copies the image once for other ids than the image's."""
_GRACE = 5
"""Seconds from SIGTERM to SIGKILL."""
_NO_DETACHING = ",".join(["ctrl-^"] * 8)
"""Keeps Ctrl-P for the command; no value turns detaching off."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PACKAGES = {"docker": "docker-cli", "podman": "podman"}
_NO_INIT = re.compile(r"docker-init|init binary|catatonit")
_NOT_FOUND = re.compile(r"executable file|exec: .*no such file|no such file .*\bexec", re.IGNORECASE)
_NOT_EXECUTABLE = re.compile(r"exec: .*(permission denied|is a directory)", re.IGNORECASE)
_NO_GPU = re.compile(r"device driver|nvidia|\bCDI\b", re.IGNORECASE)
_NO_SOURCE = "bind source path does not exist"
_PORT_TAKEN = re.compile(r"address already in use|port is already allocated", re.IGNORECASE)
_NO_ADDRESS = re.compile(r"cannot assign requested address", re.IGNORECASE)
_TOOLKIT = (
    "install the NVIDIA Container Toolkit, then run sudo nvidia-ctk runtime configure --runtime=docker and restart "
    "Docker, or, for CDI, sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; "
    "or run without GPUs: --variant cpu"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user whose files the container writes."""

    uid: int = field(default_factory=os.getuid)
    gid: int = field(default_factory=os.getgid)
    groups: tuple[int, ...] = ()
    """Supplementary groups."""
    name: str = "user"

    @classmethod
    def here(cls) -> Self:
        """Return the user of this process."""
        name = "user"
        with suppress(KeyError):
            name = pwd.getpwuid(os.getuid()).pw_name
        return cls(groups=tuple(os.getgroups()), name=name)


def run_launch(client: docker.DockerClient, engine: Engine, launch: Launch, report: Callable[[str], object]) -> int:
    """Run a container on this process's streams, remove it at the end, and return the exit code of its command.

    The code is 128 and the number for a signal, 127 for a missing program, 126 for one that cannot be executed.
    UsageError for a mount or a port that the engine refuses, MissingComponentError without the engine's client, GPUs or
    an answer, BuildError for other refusals and for a closed stdout.
    """
    if sys.stdout is None:
        todo = "leave it open, or redirect it: > FILE, > /dev/null"
        raise BuildError("standard output is closed, but the command writes to it", todo=todo)
    command = client_command(client, engine)
    for mount in launch.mounts if engine.near else ():
        try:
            mount.source.stat()  # podman would create a missing folder
        except OSError as error:
            todo = f"create it, or give another path for {mount.target}"
            what = f"cannot mount {mount.source}: {error.strerror}"
            raise UsageError(what, where=str(mount.source), todo=todo) from error
    stdin = sys.stdin is not None
    with suppress(OSError):  # the terminal does not control this process
        # Reading the terminal would stop a job in the background.
        stdin = stdin and (not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp())
    tty = launch.interactive and stdin and sys.stdin.isatty() and sys.stdout.isatty()
    config = partial(container_config, launch, engine, Caller.here(), stdin=stdin, tty=tty)
    with translated_errors(), _caught_signals() as signals:
        run = _Run(client, launch, command, signals, report, stdin=stdin, tty=tty)
        try:
            return run.start(config())
        except _InitMissingError:
            report("the engine has no init program (docker-init or catatonit): some programs will ignore signals")
            return replace(run, init=False).start(config(init=False))


def client_command(client: docker.DockerClient, engine: Engine) -> list[str]:
    """Return the command of the engine's own client, for the same address; MissingComponentError if PATH has none."""
    program = shutil.which(engine.kind)
    if program is None:
        what = f'cannot find the command "{engine.kind}" on PATH, which runs the container at this terminal'
        todo = f"install the package {_PACKAGES[engine.kind]}, or use a virtual environment: --venv DIR"
        raise MissingComponentError(what, where="PATH", todo=todo)
    path = getattr(client.api.get_adapter(client.api.base_url), "socket_path", None)
    address = f"unix://{path}" if path else os.environ.get("DOCKER_HOST")
    return [program, *(("--host" if engine.kind == "docker" else "--url", address) if address else ())]


class _InitMissingError(Exception):
    """The engine does not have the init program."""


class _NotStartedError(Exception):
    """The engine cannot start the program; the argument is the exit code that says why."""


@dataclass(slots=True)
class _Signals:
    """Signals to forward."""

    pending: list[int] = field(default_factory=list)
    is_running: bool = False
    """Whether a container takes them."""

    def take(self, number: int, _frame: FrameType | None) -> None:
        if self.pending and not self.is_running:  # the second one, while the engine does not answer
            raise KeyboardInterrupt
        self.pending.append(number)


@contextmanager
def _caught_signals() -> Iterator[_Signals]:
    """Collect signals until the block ends, except those that nohup or a script's `&` ignores."""
    signals = _Signals()
    before = {number: it for number in _SIGNALS if (it := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, signals.take)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Run:
    """One container, from its creation to its removal."""

    client: docker.DockerClient
    launch: Launch
    command: list[str]
    signals: _Signals
    report: Callable[[str], object]
    stdin: bool
    tty: bool
    init: bool = True
    """Whether the first process is the engine's init program; the kernel keeps unhandled signals from any other."""

    def start(self, config: dict[str, Any]) -> int:
        """Create the container by a name of ours, so that it is removed even if the engine's answer is lost."""
        name = f"envbuild-local-{secrets.token_hex(6)}"
        before, self.client.api.timeout = self.client.api.timeout, _PATIENCE
        try:
            with self._refusals():
                self.client.api.create_container_from_config(config, name)
                if path := home(self.launch):
                    self.client.api.put_archive(name, "/", home_archive(path))
                self.signals.is_running = True
                if self.signals.pending:
                    return 128 + self.signals.pending[0]
                return self._exit_code(name, self._attach(name))
        except _NotStartedError as error:
            return int(error.args[0])
        finally:
            try:
                self.client.api.remove_container(name, force=True, v=True)
            except APIError as error:
                if error.status_code not in (404, 409):  # it was never created, or somebody else removes it
                    raise
            finally:
                self.client.api.timeout = before

    def _attach(self, name: str) -> int:
        """Start the container by the engine's client, forward signals until it ends, and return its exit code."""
        interactive = ["--interactive"] if self.stdin else []
        process = subprocess.Popen(
            [*self.command, "start", "--attach", *interactive, f"--detach-keys={_NO_DETACHING}", name],
            stdin=None if self.stdin else subprocess.DEVNULL,
            stderr=None if sys.stderr is not None else subprocess.DEVNULL,
            # Without a terminal of its own, Ctrl-C would reach the command twice: from the client and from here.
            start_new_session=not self.tty,
        )
        is_reported, is_interrupted = not self.launch.ports, False
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(0.1)  # then look for signals to forward
                is_reported = is_reported or self._report_ports(name)
                while self.signals.pending and self._forward(name, self.signals.pending[0], kill=is_interrupted):
                    is_interrupted |= self.signals.pending.pop(0) == signal.SIGINT
        finally:
            process.kill()
            process.wait()

    def _forward(self, name: str, number: int, *, kill: bool) -> bool:
        """Send a signal to the container, SIGKILL for a second SIGINT; False if it is not running.

        An engine that does not answer loses the signal: the command goes on.
        """
        is_interrupt = number == signal.SIGINT
        with suppress(RequestException):
            try:
                if not is_interrupt and not self.init:
                    self.client.api.stop(name, timeout=_GRACE)
                else:
                    self.client.api.kill(name, "SIGKILL" if kill and is_interrupt else signal.Signals(number).name)
            except APIError:
                return False
        return True

    def _report_ports(self, name: str) -> bool:
        """Report the addresses of published ports; False if the container is not running yet."""
        with suppress(APIError, RequestException):
            container = self.client.api.inspect_container(name)
            if not container["State"]["Running"]:
                return False
            for port, bindings in (container["NetworkSettings"]["Ports"] or {}).items():
                for it in bindings or ():
                    host = f"[{it['HostIp']}]" if ":" in it["HostIp"] else it["HostIp"]
                    self.report(f"port {port.partition('/')[0]} of the container is {host}:{it['HostPort']} here")
        return True

    def _exit_code(self, name: str, code: int) -> int:
        """Return the exit code of the command, given that of the engine's client."""
        try:
            state = self.client.api.inspect_container(name)["State"]
        except NotFound:  # somebody else removed it
            return code
        lost = 128 + (-code if code < 0 else signal.SIGPIPE)
        if state["Running"]:  # nobody reads the client's output any more, or its terminal is gone
            self.client.api.stop(name, timeout=_GRACE)
            return lost
        if str(state["StartedAt"]).startswith("0001-"):
            self.client.api.start(name)  # raises the engine's reason, if it has one
            with suppress(APIError):  # it has ended
                self.client.api.kill(name)
            client = " ".join([Path(self.command[0]).name, *self.command[1:]])
            what = f"cannot attach to the container: {client} start exited with code {code}"
            raise BuildError(what, todo=f"fix what the message above names, then check that this works: {client} info")
        if state.get("OOMKilled"):
            self.report("the container ran out of memory and was killed: free memory, or give the engine more")
        # The client fails after a command that succeeded if it cannot write the output.
        return int(state["ExitCode"]) or (lost if code else 0)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Translate what an engine refuses."""
        try:
            yield
        except APIError as error:
            reason = explanation(error)
            if _NO_INIT.search(reason):
                raise _InitMissingError from error
            for code, pattern in ((126, _NOT_EXECUTABLE), (127, _NOT_FOUND)):
                # runc and crun quote the program's name; engines also miss programs of their own.
                if pattern.search(reason) and re.search(rf"[\"`]{re.escape(self.launch.command[0])}[\"`]", reason):
                    raise _NotStartedError(code) from error
            if self.launch.gpus and _NO_GPU.search(reason):
                what = f"the engine cannot give GPUs to a container: {reason}"
                raise MissingComponentError(what, where="container engine", todo=_TOOLKIT) from error
            if _NO_SOURCE in reason:
                todo = "create it, or share it with the machine that the engine runs on"
                raise UsageError("the engine cannot find a mount", where=reason, todo=todo) from error
            if self.launch.ports and (refusal := port_refusal(self.launch.ports, reason)):
                raise refusal from error
            raise


def container_config(
    launch: Launch, engine: Engine, caller: Caller, *, stdin: bool = True, tty: bool = False, init: bool = True
) -> dict[str, Any]:
    """Return the configuration of the container (Docker Engine API, ContainerCreate).

    UsageError for ports that contradict each other and a path that podman cannot mount, MissingComponentError if podman
    is too old for GPUs.
    """
    check_ports(launch.ports)
    # No image knows the caller's id, and Python's getpass, which PyTorch's caches use, fails without a name.
    variables = {"HOME": home(launch) or launch.folder, "USER": caller.name, "LOGNAME": caller.name} | dict(
        launch.variables
    )
    # Root in a rootless Docker is the caller; podman keeps the ids with keep-id.
    user = "0:0" if engine.kind == "docker" and engine.rootless else f"{caller.uid}:{caller.gid}"
    return {
        "Image": launch.image,
        "Entrypoint": [launch.command[0]],
        "Cmd": list(launch.command[1:]),
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": launch.user or user,
        "WorkingDir": launch.folder,
        "Labels": {LABEL: caller.name},
        "StopSignal": "SIGTERM",
        "Tty": tty,
        "OpenStdin": stdin,
        "StdinOnce": stdin,
        "AttachStdin": stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "ExposedPorts": {f"{port.container}/tcp": {} for port in launch.ports},
        "HostConfig": _host_config(launch, engine, caller) | {"Init": init},
    }


def home(launch: Launch) -> str | None:
    """Return the folder to create as HOME, which no mount covers; None if the launch names HOME itself."""
    targets = [f"{it.target.rstrip('/')}/" for it in launch.mounts]
    free = (it for it in _HOMES if not any(f"{it}/".startswith(t) or t.startswith(f"{it}/") for t in targets))
    return None if "HOME" in launch.variables else next(free, None)


def home_archive(path: str) -> bytes:
    """Return a tar of a folder that every user may write, and of those above it, which are as /tmp is."""
    relative = path.lstrip("/")
    return b"".join(tar_stream({}, dict.fromkeys((*parents([relative]), relative), 0o1777)))


def _host_config(launch: Launch, engine: Engine, caller: Caller) -> dict[str, Any]:
    has_groups = launch.user is None and not engine.rootless  # they mean the same in the container
    ports: dict[str, list[dict[str, str]]] = {}
    for port in dict.fromkeys(launch.ports):
        host = {"HostIp": port.address, "HostPort": str(port.host or "")}
        ports.setdefault(f"{port.container}/tcp", []).append(host)
    # Engines create the missing source of a bind, so only what podman cannot mount otherwise is one.
    binds = [it for it in launch.mounts if engine.kind == "podman" and {",", '"'} & set(f"{it.source}{it.target}")]
    for mount in binds:
        if {":", '"'} & set(f"{mount.source}{mount.target}"):
            todo = 'start in a folder without commas and quotes in its path, or use Docker: DOCKER_HOST="..."'
            raise UsageError("podman cannot mount this path", where=str(mount.source), todo=todo)
    optional = {
        "Binds": [f"{it.source}:{it.target}:{'ro' if it.read_only else 'rw'}" for it in binds],
        "Mounts": [
            {"Type": "bind", "Source": str(it.source), "Target": it.target, "ReadOnly": it.read_only}
            for it in launch.mounts
            if it not in binds
        ],
        "GroupAdd": [str(it) for it in caller.groups if it != caller.gid] if has_groups else [],
        "UsernsMode": "keep-id" if engine.kind == "podman" and engine.rootless else "",
        "PortBindings": ports,
        "ShmSize": launch.shm_size or 0,
        "DeviceRequests": _devices(launch, engine),
    }
    # SELinux lets no container read the labels of a home folder. The output is on the terminal: as a log, days of
    # progress bars would fill the engine's disk.
    fixed = {"SecurityOpt": ["label=disable"], "LogConfig": {"Type": "none", "Config": {}}}
    return {name: value for name, value in optional.items() if value} | fixed


def _devices(launch: Launch, engine: Engine) -> list[dict[str, Any]]:
    """Return the GPUs as `docker run --gpus` and `--device nvidia.com/gpu=...` request them."""
    if launch.gpus is None:
        return []
    if engine.ignores_gpus:
        todo = (
            "use podman 5.4 or later, or Docker with the NVIDIA Container Toolkit, or run without GPUs: --variant cpu"
        )
        what = f"podman {engine.version} ignores requests for GPUs on its socket"
        raise MissingComponentError(what, where="container engine", todo=todo)
    if launch.gpus == "cdi" or engine.kind == "podman":
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={it}" for it in launch.devices or ("all",)]}]
    which = {"DeviceIDs": list(launch.devices)} if launch.devices else {"Count": -1}
    return [which | {"Capabilities": [["gpu"]]}]


def check_ports(ports: Sequence[Port]) -> None:
    """Raise UsageError for an invalid IP address, and for a port of this machine that is published twice."""
    for port in ports:
        try:
            ipaddress.ip_address(port.address)
        except ValueError as error:
            todo = "give a numeric address of this machine such as 127.0.0.1, or leave it out"
            raise UsageError(f"{port.address} is not an IP address", where=port.option, todo=todo) from error
    for one, other in combinations(dict.fromkeys(ports), 2):
        addresses = {one.address, other.address}
        if one.host and one.host == other.host and (len(addresses) == 1 or _EVERY in addresses):
            what = f"port {one.host} of this machine is published twice"
            todo = "give each port of the container its own port, or 0 for any free one"
            raise UsageError(what, where=f"{one.option} {other.option}", todo=todo)


def port_refusal(ports: Sequence[Port], reason: str) -> UsageError | None:
    """Return the error for the port that an engine could not publish; None if the reason is something else."""
    named = [it for it in ports if it.host and re.search(rf":{it.host}\b", reason)] or list(ports)
    if _PORT_TAKEN.search(reason):
        what = f"port {' or '.join(str(it.host) for it in named)} is in use"
        todo = "stop the program that listens there (ss -ltnp shows it), or give another port; 0 takes any free one"
    elif _NO_ADDRESS.search(reason):
        what = f"this machine does not have the address {' or '.join(it.address for it in named)}"
        todo = "give one of its addresses (ip addr lists them), or leave it out for 127.0.0.1"
    else:
        return None
    return UsageError(what, where=" ".join(it.option for it in named), todo=todo)
