"""What a look at this machine and its engine tells: an engine on a socket, nvidia-smi as a program, CDI as files."""

import json
import os
import platform
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from envbuild.local.machine import look
from envbuild.local.model import Engine
from tests.fakes.libraries import nvidia_smi

DOCKER = {"Version": "28.2.2", "ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": "28.2.2"}]}
PODMAN = {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
HERE = {"KernelVersion": platform.release(), "Architecture": "x86_64"}
NVIDIA = {"Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}}}


class _Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def engine(version: dict[str, Any], info: dict[str, Any], address: str) -> Iterator[docker.DockerClient]:
    """Docker's own library, connected to an engine at a socket's path, or at a port of its own."""
    answers = {"/version": version, "/info": info}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Say nothing."""

        def address_string(self) -> str:
            return "socket"

        def do_GET(self) -> None:
            data = json.dumps(answers["/" + self.path.rpartition("/")[2]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server: Any = _Unix(address, Handler) if "/" in address else ThreadingHTTPServer((address, 0), Handler)
    url = f"unix://{address}" if "/" in address else f"tcp://{address}:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    client = docker.DockerClient(base_url=url, version="1.41", timeout=10)
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        server.server_close()


def seen(folder: Path, info: dict[str, Any], version: dict[str, Any] = DOCKER, address: str = "") -> Any:
    """The engine as it is seen."""
    with engine(version, info, address or str(folder / "socket")) as client:
        return look(client, folder).engine


def test_without_an_engine_this_machine_is_looked_at(tmp_path):
    machine = look(None)
    assert (machine.machine, machine.system, machine.engine) == (platform.machine(), platform.system(), None)
    assert machine.cpu is not None
    assert machine.cpu.usable == len(os.sched_getaffinity(0))
    assert machine.accelerator is not None
    assert machine.free is not None
    assert 0 < machine.free <= shutil.disk_usage(tmp_path).total


def test_an_engine_here_is_described(tmp_path):
    (tmp_path / "data").mkdir()
    info = HERE | {"DockerRootDir": str(tmp_path / "data"), "SecurityOptions": ["name=seccomp", "name=rootless"]}
    with engine(DOCKER, info, str(tmp_path / "socket")) as client:
        machine = look(client, tmp_path)
    assert machine.engine == Engine(
        kind="docker", version="28.2.2", machine="x86_64", rootless=True, folder=tmp_path / "data"
    )
    assert (machine.machine, machine.platform) == ("x86_64", "linux/amd64")
    assert machine.free


@pytest.mark.parametrize(
    ("info", "near"),
    [
        (HERE, True),
        (HERE | {"OperatingSystem": "Docker Desktop"}, True),  # in WSL 2 all share one kernel
        ({"KernelVersion": "6.10.14-linuxkit", "OperatingSystem": "Docker Desktop"}, False),
        ({"KernelVersion": "6.8.0-lima"}, False),
        ({"OperatingSystem": "Docker Desktop"}, False),
        ({}, True),
    ],
)
def test_another_kernel_is_another_machine(tmp_path, info, near):
    assert seen(tmp_path, info | {"DockerRootDir": "/"}).near is near


def test_of_an_engine_elsewhere_nothing_here_is_said(tmp_path):
    info = HERE | NVIDIA | {"DockerRootDir": str(tmp_path), "Architecture": "aarch64"}
    with engine(DOCKER, info, "127.0.0.1") as client:
        machine = look(client, tmp_path)
    assert machine.engine == Engine(kind="docker", version="28.2.2", machine="aarch64", gpus="runtime", near=False)
    assert (machine.machine, machine.cpu, machine.free) == ("aarch64", None, None)


YAML, JSON = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}'
GIVEN: list[tuple[dict[str, Any], dict[str, Any], dict[str, str], str | None]] = [
    # engine, what it says, CDI's specifications, and how GPUs are given
    (DOCKER, HERE, {}, None),
    (DOCKER, HERE | NVIDIA, {}, "runtime"),
    (DOCKER, HERE | {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, {}, "cdi"),
    (DOCKER, HERE | {"DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=all"}]}, {}, None),
    (DOCKER, HERE | {"CDISpecDirs": ["/etc/cdi"]}, {"etc/cdi/nvidia.yaml": YAML}, "cdi"),
    (DOCKER, HERE | {"CDISpecDirs": ["/etc/cdi"]}, {"run/cdi/nvidia.yaml": YAML}, None),
    (DOCKER, HERE | {"CDISpecDirs": None}, {"etc/cdi/nvidia.yaml": YAML}, None),  # switched off
    (PODMAN, HERE, {"var/run/cdi/nvidia.json": JSON}, "cdi"),
    (PODMAN, HERE, {"etc/cdi/amd.yaml": "kind: amd.com/gpu\n", "etc/cdi/nvidia.yaml.old": YAML}, None),
    (PODMAN, HERE | NVIDIA, {}, None),
    (PODMAN, {"KernelVersion": "of a virtual machine"}, {"etc/cdi/nvidia.yaml": YAML}, None),
]


@pytest.mark.parametrize(("version", "info", "files", "way"), GIVEN)
def test_how_containers_get_gpus(tmp_path, version, info, files, way):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = seen(tmp_path, info, version)
    assert (found.gpus, found.kind) == (way, "podman" if version is PODMAN else "docker")


def test_names_of_architectures_are_made_one(tmp_path):
    assert seen(tmp_path, {"Architecture": "amd64"}, PODMAN).machine == "x86_64"
    assert seen(tmp_path, {}, DOCKER | {"Arch": "arm64"}, "127.0.0.1").machine == "aarch64"


def test_gpus_are_asked_of_nvidias_own_program(tmp_path):
    path = f"{nvidia_smi(tmp_path)}:{os.environ['PATH']}"
    code = "from envbuild.local.machine import look; it = look(None).accelerator; print(it.driver, it.gpus[0].name)"
    environment = dict(os.environ, PATH=path)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "570.86.10 NVIDIA A100-SXM4-40GB"
