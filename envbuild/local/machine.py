"""A look at this machine and at its container engine: what decides which environment can be run."""

import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from envbuild.capture.accelerator import accelerator_facts
from envbuild.capture.files import present, read_text
from envbuild.capture.host import cpu_facts
from envbuild.files import cache_folder
from envbuild.local.model import Engine, EngineKind, GpuWay, Machine
from envbuild.local.subject import machine_of
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.manifest.parse import Parser
from envbuild.verify.sides import Side

if TYPE_CHECKING:
    import docker

T = TypeVar("T")

_SOCKET = "http+docker://localhost"
"""What Docker's library makes of the address of a socket here, and of no other."""
_DESKTOP = "Docker Desktop"
_SPECS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
"""Where podman, and CDI itself, look (CNCF Container Device Interface, section How to configure CDI)."""
_NVIDIA = "nvidia.com/gpu"
_OF_NVIDIA = re.compile(rf"\bkind\"?\s*:\s*[\"']?{re.escape(_NVIDIA)}\b")


def look(client: "docker.DockerClient | None", root: Path = Path("/")) -> Machine:
    """Look at CPU, GPU, disk and engine; /proc, /sys, /dev and CDI's specifications lie in `root`.

    Of an engine that runs elsewhere the CPU and the disk are not known. Docker's and requests' own errors are those of
    the block that `engine.client.connected` gives.
    """
    engine = _engine(client, root) if client else None
    near = engine is None or engine.near
    return Machine(
        machine=engine.machine if engine else machine_of(platform.machine()),
        system=platform.system(),
        cpu=_read(Cpu, cpu_facts(str(root / "proc/cpuinfo"))) if near else None,
        accelerator=_read(Accelerator, accelerator_facts(str(root))),
        engine=engine,
        free=_free((engine.folder if engine else None) or cache_folder()) if near else None,
    )


def side_of_machine(machine: Machine) -> Side:
    """The hardware as rules read it; its software does not matter, as a container brings its own."""
    return Side(
        name="this machine",
        kind="host",
        machine=machine.machine,
        accelerator=machine.accelerator,
        cpu=machine.cpu,
    )


def _engine(client: "docker.DockerClient", root: Path) -> Engine:
    version, info = client.version(), client.info()
    parts: list[Mapping[str, Any]] = version.get("Components") or [{}]
    kind: EngineKind = "podman" if any("podman" in str(it.get("Name")).lower() for it in parts) else "docker"
    near = _is_near(client, info)
    return Engine(
        kind=kind,
        version=str(version.get("Version") or parts[0].get("Version") or "unknown"),
        machine=machine_of(str(info.get("Architecture") or version.get("Arch") or platform.machine())),
        rootless=any("rootless" in str(it) for it in info.get("SecurityOptions") or ()),
        gpus=_gpus(kind, info, root if near else None),
        folder=_folder(info) if near else None,
        near=near,
    )


def _is_near(client: "docker.DockerClient", info: Mapping[str, Any]) -> bool:
    """Whether the engine's kernel is the one here; a socket may lead into a virtual machine, as Docker Desktop's does.

    In WSL 2 Docker Desktop shares the kernel, and with it files and GPUs.
    """
    if client.api.base_url != _SOCKET:
        return False
    kernel = info.get("KernelVersion")
    return str(kernel) == platform.release() if kernel else info.get("OperatingSystem") != _DESKTOP


def _gpus(kind: EngineKind, info: Mapping[str, Any], root: Path | None) -> GpuWay | None:
    """NVIDIA's runtime first, as it goes by the driver that is there, and a CDI specification by the one that was."""
    if kind == "podman":
        return "cdi" if root and _is_specified(root, _SPECS) else None
    if "nvidia" in (info.get("Runtimes") or {}):
        return "runtime"
    found = any(str(it.get("ID", "")).startswith(f"{_NVIDIA}=") for it in info.get("DiscoveredDevices") or ())
    # Without folders Docker's use of CDI is switched off.
    return "cdi" if found or (root and _is_specified(root, info.get("CDISpecDirs") or ())) else None


def _is_specified(root: Path, folders: Iterable[str]) -> bool:
    """Whether a CDI specification tells of NVIDIA's GPUs."""
    files = (file for folder in folders for file in (root / folder.lstrip("/")).glob("*") if file.suffix in _FORMS)
    return any(_OF_NVIDIA.search(read_text(file) or "") for file in files)


_FORMS = (".yaml", ".yml", ".json")


def _folder(info: Mapping[str, Any]) -> Path | None:
    """Where images lie; None where that cannot be seen, as from within another container."""
    path = Path(str(info.get("DockerRootDir") or ""))
    try:
        return path if path.is_absolute() and path.is_dir() else None
    except OSError:  # a folder that may not be looked into
        return None


def _free(folder: Path) -> int | None:
    """Bytes that are free where a folder is, or will be."""
    try:
        return shutil.disk_usage(next(it for it in (folder, *folder.parents) if it.exists())).free
    except OSError:
        return None


def _read(kind: type[T], facts: dict[str, Any]) -> T | None:
    """Facts as a manifest would have them; None where it would refuse them."""
    parser = Parser()
    found = parser.read(kind, present(facts))
    return None if parser.faults else found
