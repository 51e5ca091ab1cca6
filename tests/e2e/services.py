"""The services that the end-to-end tests run against: a registry and a Docker engine, private to one session."""

import ipaddress
import itertools
import json
import os
import re
import shutil
import socket as sockets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import docker
import httpx
import pytest

from tests.environ import cleaned

_DOCKERD = Path("/usr/sbin/dockerd")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NUMBERS = itertools.count()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalRegistry:
    """A registry without passwords, over HTTP on loopback."""

    host: str
    """`127.0.0.1:PORT`, as it stands in image references."""
    folder: Path
    """Its storage; `docker/registry/v2/` is inside once something was pushed."""
    log: Path

    def blobs_read(self) -> list[int]:
        """How many bytes each answer had that sent a blob, by its access log."""
        found = re.finditer(r'"GET /v2/[^" ]+/blobs/sha256:\w+ [^"]+" 20\d (\d+)', self.log.read_text())
        return [int(it[1]) for it in found]


@contextmanager
def running_registry() -> Iterator[LocalRegistry]:
    """Run Debian's docker-registry on a free port, with deletion enabled."""
    with tempfile.TemporaryDirectory(prefix="envbuild-registry-") as name:
        folder, config, log = Path(name) / "data", Path(name) / "config.yml", Path(name) / "log"
        settings = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(folder)}, "delete": {"enabled": True}},
            "http": {"addr": "127.0.0.1:0", "secret": "any"},
        }
        config.write_text(json.dumps(settings))  # JSON is YAML
        with running(["docker-registry", "serve", str(config)], log, lambda: _registry_host(log)) as host:
            yield LocalRegistry(host, folder, log)


def _registry_host(log: Path) -> str | None:
    """Port 0 lets the kernel choose; the log says what it chose."""
    found = re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())
    if found is None:
        return None
    try:
        return found[1] if httpx.get(f"http://{found[1]}/v2/", trust_env=False).status_code == 200 else None
    except httpx.TransportError:
        return None


class ContainerFailed(AssertionError):  # noqa: N818 - what is reported is the failure of a test
    """A container ended with another status than 0; the text holds all that it wrote."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine of our own, with nothing in it but what the tests put there."""

    client: docker.DockerClient
    socket: Path

    @property
    def url(self) -> str:
        """What DOCKER_HOST would be."""
        return f"unix://{self.socket}"

    def run(self, image: str, command: Sequence[str], *, timeout: float = 600, **options: Any) -> str:
        """Run a command in a container that is removed afterwards; return its stdout, or raise ContainerFailed.

        `options` are those of docker-py's `containers.run`.
        """
        container = self.client.containers.run(image, list(command), detach=True, **options)
        try:
            _wait(container, timeout)
            return str(container.logs(stdout=True, stderr=False), "utf-8")
        finally:
            container.remove(force=True, v=True)

    def pull(self, reference: str) -> Any:
        """Pull `HOST/REPOSITORY:TAG` or `HOST/REPOSITORY@DIGEST`; return docker-py's image."""
        repository, mark, rest = reference.partition("@")
        if not mark:
            repository, _, rest = reference.rpartition(":")
        # docker-py's own pull passes over an error of the engine, and then misses the image.
        for event in self.client.api.pull(repository, tag=rest, stream=True, decode=True):
            assert "error" not in event, event["error"]
        return self.client.images.get(f"{repository}{mark or ':'}{rest}")


def _wait(container: Any, timeout: float) -> None:
    """Wait for the container's end; raise ContainerFailed unless its status is 0."""
    status = container.wait(timeout=timeout)["StatusCode"]
    if status:
        output = container.logs(stdout=True, stderr=True).decode(errors="replace")
        command = json.dumps(container.attrs["Config"]["Cmd"])
        raise ContainerFailed(f"exit status {status} of {command} in {container.attrs['Config']['Image']}\n{output}")


@contextmanager
def running_engine(disk: str = "", options: Sequence[str] = (), programs: str = "") -> Iterator[Engine]:
    """Run a dockerd that shares nothing with one that may already run: folders, bridge, firewall, containerd's names.

    Containers reach the network through its bridge; published ports are served by its proxy on loopback. `disk` is the
    size of a disk of its own, as tmpfs has it: `280m`; `programs` is a folder that comes first on its PATH. It may be
    killed.
    """
    if os.geteuid() != 0:
        raise AssertionError("dockerd needs root: run the end-to-end tests as root")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="envbuild-engine-"))
        stack.callback(_remove_mounted, folder)
        if disk:
            (folder / "data").mkdir()
            command_output("mount", "-t", "tmpfs", "-o", f"size={disk}", "envbuild", str(folder / "data"))
        socket, log, bridge = folder / "docker.sock", folder / "log", stack.enter_context(_bridge())
        command = [
            str(_DOCKERD), "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
            "-H", f"unix://{socket}", "--pidfile", str(folder / "docker.pid"), "--storage-driver", "overlay2",
            "--bridge", bridge, "--iptables=false", "--ip6tables=false",
            "--containerd-namespace", bridge, "--containerd-plugins-namespace", f"{bridge}-plugins", *options,
        ]  # fmt: skip
        if programs:
            command = ["env", f"PATH={programs}:{os.environ['PATH']}", *command]
        stack.enter_context(running(command, log, lambda: engine_answers(socket)))
        client = _client(socket, folder)
        stack.callback(client.close)
        # A test may have killed it.
        stack.callback(lambda: _remove_containers(client) if engine_answers(socket) else None)
        yield Engine(client, socket)


def engine_answers(socket: Path) -> bool:
    """Whether there is an engine; clients that connect to none leave a socket open, so that is tried first."""
    with sockets.socket(sockets.AF_UNIX) as tried:
        if tried.connect_ex(str(socket)):
            return False
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=5) as client:
            return client.get("http://docker/_ping").status_code == 200
    except httpx.TransportError:
        return False


def _client(socket: Path, folder: Path) -> docker.DockerClient:
    """Without the user's credential helpers, which docker-py reads once, when the client is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(folder / "config"))
        return docker.DockerClient(base_url=f"unix://{socket}", timeout=600)


def _remove_containers(client: docker.DockerClient) -> None:
    """Kill what still runs: dockerd would give each container ten seconds to end by itself."""
    for container in client.containers.list(all=True):
        container.remove(force=True, v=True)


def _remove_mounted(folder: Path) -> None:
    for process in _processes_in(folder):  # of an engine that was killed
        os.kill(process, 9)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(folder)


def _processes_in(folder: Path) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                yield int(path.parent.name)


@contextmanager
def _bridge() -> Iterator[str]:
    """Make a bridge whose containers reach the network; two engines on one bridge or chain would undo each other."""
    name, address = f"envb{os.getpid()}{next(_NUMBERS):x}", _free_address()
    network = str(ipaddress.ip_interface(address).network)
    with ExitStack() as stack:
        command_output("ip", "link", "add", name, "type", "bridge")
        stack.callback(command_output, "ip", "link", "delete", name)
        command_output("ip", "address", "add", address, "dev", name)
        command_output("ip", "link", "set", name, "up")
        for table, chain, *rule in (
            ("nat", "POSTROUTING", "-s", network, "!", "-o", name, "-j", "MASQUERADE"),
            ("filter", "FORWARD", "-i", name, "-j", "ACCEPT"),
            ("filter", "FORWARD", "-o", name, "-j", "ACCEPT"),
        ):
            command_output("iptables", "-w", "-t", table, "-I", chain, *rule)
            stack.callback(command_output, "iptables", "-w", "-t", table, "-D", chain, *rule)
        yield name


def podman_places(folder: Path, driver: str = "overlay") -> list[str]:
    """Podman with places of its own: where one shares the last of them with others, their reset loses its exit codes."""
    places = {"root": "root", "runroot": "run", "tmpdir": "tmp"}
    return ["podman", *(f"--{option}={folder / name}" for option, name in places.items()), "--storage-driver", driver]


def _free_address() -> str:
    used = command_output("ip", "-4", "route", "show", "table", "all")
    numbers = ((os.getpid() + step) % 256 for step in range(256))
    return next(f"10.213.{number}.1/24" for number in numbers if f"10.213.{number}." not in used)


@contextmanager
def running(command: Sequence[str], log: Path, ready: Callable[[], T | None], seconds: float = 30) -> Iterator[T]:
    """Run a service until the block ends, and wait until `ready` returns something; its output goes to `log`."""
    # A session of its own, so that Ctrl-C reaches the tests first; the signal, so that it never outlives them.
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=cleaned(os.environ) | {"PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"},
        )  # fmt: skip
    try:
        yield _await(process, log, ready, seconds)
    finally:
        _stop(process)


def _await(process: subprocess.Popen[bytes], log: Path, ready: Callable[[], T | None], seconds: float) -> T:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if answer := ready():
            return answer
        time.sleep(0.05)
    state = "is not ready" if process.poll() is None else f"ended with {process.poll()}"
    raise AssertionError(f"{process.args!r} {state}\n{log.read_text(errors='replace')[-8000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


def command_output(*command: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed; return its stdout, or fail with all that it wrote."""
    path = {"PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"}
    done = subprocess.run(command, env={**(env or os.environ), **path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(report_of(done))
    return done.stdout


def report_of(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit status {done.returncode} of {done.args}\n-- stdout\n{done.stdout}\n-- stderr\n{done.stderr}"
