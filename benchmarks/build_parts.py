"""What measures: a control group, counters of a port's bytes; and an engine that runs inside the group."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from tests.e2e import services

_CONTROL = Path("/sys/fs/cgroup")
_HEADERS = 52
"""Bytes of IPv4 and TCP before a packet's own, timestamps included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run took."""

    seconds: float
    cpu: float
    """Seconds that CPUs computed for it: its processes, the engine's and the containers'; not the registry's."""
    memory: int
    """Bytes of anonymous memory that its processes held at most, beyond what they held before."""
    sent: int
    """Bytes to the registry."""
    received: int
    """Bytes from the registry."""
    output: str
    """Standard output of the last command."""


class Group:
    """A control group (cgroup v1), which counts what all processes in it cost, ended ones and containers included."""

    def __init__(self, name: str) -> None:
        self.name = f"envbuild-benchmark-{os.getpid()}-{name}"
        self._folders = [_CONTROL / controller / self.name for controller in ("cpuacct", "memory")]
        # containers are put into a group of this name by every controller
        self._everywhere = [folder / self.name for folder in _CONTROL.iterdir()]

    def __enter__(self) -> Self:
        for folder in self._folders:
            if not folder.parent.is_dir():
                sys.exit(f"{folder.parent} is missing: CPU and memory are counted by control groups of version 1")
            folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._everywhere:
            if folder.is_dir():
                _remove_group(folder)

    def take(self, pid: int) -> None:
        """Move a process here; what it starts from now on is here too."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def command(self, command: Sequence[str]) -> list[str]:
        """The same command, started in here."""
        places = [str(folder / "cgroup.procs") for folder in self._folders]
        return ["sh", "-c", 'echo $$ >"$1"; echo $$ >"$2"; shift 2; exec "$@"', "sh", *places, *command]

    def wait(self) -> None:
        """Return when no process is left in here, or after a few seconds."""
        for _ in range(100):
            if not any(path.read_text() for path in self._folders[0].rglob("cgroup.procs")):
                return
            time.sleep(0.05)

    @property
    def cpu(self) -> float:
        """Seconds so far."""
        return int((self._folders[0] / "cpuacct.usage").read_text()) / 1e9

    @property
    def memory(self) -> int:
        """Bytes of anonymous memory now; files that are mapped or cached belong to nobody."""
        text = (self._folders[1] / "memory.stat").read_text()
        return sum(int(value) for value in re.findall(r"^total_(?:rss|shmem) (\d+)$", text, re.MULTILINE))


def _remove_group(folder: Path) -> None:
    """From the leaves up, as containers made groups below; their processes may take a moment to end."""
    for _ in range(100):
        try:
            for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                path.rmdir()
            folder.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return
    print(f"left behind, as something still runs in it: {folder}", file=sys.stderr)


@contextmanager
def counted(port: int) -> Iterator["Counters"]:
    """Let the kernel count the bytes to and from a port of the loopback; a proxy would cost time of its own."""
    rules = [
        ("INPUT", "-i", "lo", "-p", "tcp", way, str(port), "-m", "comment", "--comment", f"envbuild{way}")
        for way in ("--dport", "--sport")
    ]
    for rule in rules:
        services.command_output("iptables", "-w", "-I", *rule)
    try:
        yield Counters(port)
    finally:
        for rule in rules:
            services.command_output("iptables", "-w", "-D", *rule)


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one port."""

    port: int

    def read(self) -> tuple[int, int]:
        """Bytes that went to the port and that came from it, without the packets' headers."""
        listed = services.command_output("iptables", "-w", "-n", "-v", "-x", "-L", "INPUT")
        return self._bytes(listed, "dpt"), self._bytes(listed, "spt")

    def _bytes(self, listed: str, way: str) -> int:
        found = re.search(rf"^\s*(\d+)\s+(\d+) .*tcp {way}:{self.port}\b", listed, re.MULTILINE)
        if found is None:
            raise AssertionError(f"iptables does not list the rule of {way}:{self.port}\n{listed}")
        return int(found[2]) - _HEADERS * int(found[1])


@dataclass(frozen=True, slots=True)
class Meter:
    """Runs commands in a group, and counts."""

    group: Group
    counters: Counters

    def run(self, *commands: Sequence[str], env: Mapping[str, str] | None = None) -> Cost:
        """Run the commands, one after the other; the first that fails ends the benchmark."""
        os.sync()  # what earlier runs wrote is not this one's to write out
        before, cpu, (sent, received) = self.group.memory, self.group.cpu, self.counters.read()
        began, output = time.perf_counter(), ""
        with self._watched() as held:
            for command in commands:
                output = run(self.group.command(command), env)
            seconds = time.perf_counter() - began
        after = self.counters.read()
        return Cost(
            seconds=seconds,
            cpu=self.group.cpu - cpu,
            memory=max(held) - before,
            sent=after[0] - sent,
            received=after[1] - received,
            output=output,
        )

    @contextmanager
    def _watched(self) -> Iterator[list[int]]:
        held, over = [self.group.memory], threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                held.append(self.group.memory)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield held
        finally:
            over.set()
            thread.join()


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run a command that has to succeed; return its stdout."""
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"} | dict(env or {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(services.report_of(done))
    return done.stdout


@contextmanager
def running_engine(group: Group, folder: Path) -> Iterator[str]:
    """Run a dockerd inside the group, without networks for containers; yield what DOCKER_HOST is."""
    folder.mkdir(parents=True)
    socket = Path(tempfile.mkdtemp(prefix="envbuild-benchmark-")) / "docker.sock"  # a socket's path has to be short
    pid, name = folder / "pid", group.name
    command = [
        "dockerd", "--data-root", str(folder / "data"), "--exec-root", str(socket.parent / "exec"),
        "-H", f"unix://{socket}", "--pidfile", str(pid), "--storage-driver", "overlay2", "--bridge", "none",
        "--iptables=false", "--ip6tables=false", "--cgroup-parent", f"/{name}",
        "--containerd-namespace", name, "--containerd-plugins-namespace", f"{name}-plugins",
    ]  # fmt: skip
    try:
        with services.running(group.command(command), folder / "log", lambda: _answers(socket)):
            yield f"unix://{socket}"
    finally:
        remove_mounted(socket.parent)
        remove_mounted(folder)


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=5) as client:
            return client.get("http://docker/_ping").status_code == 200
    except httpx.TransportError:
        return False


def remove_mounted(folder: Path) -> None:
    """Remove a folder in which something may still be mounted."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(folder)
