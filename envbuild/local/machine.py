"""A look at this machine and at its container engine: what decides which environment can be run."""

import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from envbuild.capture.files import present, read_text
from envbuild.capture.host import accelerator_facts, cpu_facts
from envbuild.files import cache_folder
from envbuild.local.model import Engine, EngineKind, GpuWay, Machine, Subject, Variant
from envbuild.local.subject import chosen_side, machine_of
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.validation import read_or_none
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.catalogue import agree, differs
from envbuild.verify.rules.frameworks import builds
from envbuild.verify.rules.hardware import compute_capability, cuda_of, driver
from envbuild.verify.sources import Side

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
_ENGINE = "gpu-engine"
"""The name of what is asked of an engine."""
_TOOLKIT = {
    "docker": "`nvidia-ctk runtime configure --runtime=docker`, and restart Docker",
    "podman": "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
}
"""NVIDIA Container Toolkit, installation guide, section Configuration."""
_BLIND = "Without a GPU the framework fails, or computes many times slower on the CPU."
_REMEDIES = {"driver": "update the driver of the host"}
"""Of those that only another variant, or another machine, would help against, there is none."""


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
    return read_or_none(present(facts), kind)


def gpu_findings(subject: Subject, variant: Variant, platform: str, machine: Machine) -> Iterator[Finding]:
    """All that a container with GPUs needs of a machine; nothing more once it is clear that there are none."""
    engine, there = machine.engine, machine.accelerator
    if engine and engine.gpus and not engine.near:
        says = "the engine runs on another machine or in a virtual one, so that its GPUs cannot be seen from here"
        todo = "request it with `--variant gpu` if its driver is new enough"
        yield Finding(about="GPU", rule=_ENGINE, agrees=False, severity="warning", says=says, why=_BLIND, todo=todo)
        return
    if there is None or there.kind != "nvidia" or not there.gpus:
        yield _absent_finding(there)
        return
    names = names_of(there)
    yield agree("gpu-absent", "GPU", names)
    side = chosen_side(subject, variant, platform)
    if _has_no_wheels(subject, side, platform):
        yield _no_wheels_finding()
    if engine:
        yield _engine_finding(engine, names)
    yield from _driver_findings(side, machine)


def obstacle(subject: Subject, variant: Variant, platform: str, machine: Machine) -> str | None:
    """Why a container here gets no GPU, and the remedy, in a sentence; None where it does."""
    found = (it for it in gpu_findings(subject, variant, platform, machine) if not it.agrees)
    first = next((it for it in found if it.severity == "error" or it.rule == _ENGINE), None)
    if first is None:
        return None
    todo = first.todo if first.rule == _ENGINE else _REMEDIES.get(first.rule)
    return f"{first.says}; to use it, {todo}" if todo else first.says


def names_of(accelerator: Accelerator | None) -> str:
    """The GPUs' names, each once; empty without any."""
    return ", ".join(dict.fromkeys(gpu.name for gpu in (accelerator.gpus if accelerator else ())))


def _absent_finding(there: Accelerator | None) -> Finding:
    if there and there.kind == "nvidia":
        says, found = "there is a driver of NVIDIA, and it shows no GPU", "none shown"
        todo = "see what nvidia-smi says; after an update of the driver restart the machine"
    else:
        found = "a TPU" if there and there.kind == "tpu" else "no NVIDIA GPU"
        says, todo = (
            f"this machine has {found}",
            "use a machine with an NVIDIA GPU, or the CPU variant: `--variant cpu`",
        )
    return differs("gpu-absent", "GPU", says, wanted="an NVIDIA GPU", found=found, todo=todo, why=_BLIND)


def _has_no_wheels(subject: Subject, side: Side, platform: str) -> bool:
    """Whether the framework has no build for CUDA there, and nobody stamped one all the same."""
    stamped = ("train", "gpu", platform) in {it.slot for it in subject.images} or subject.image is not None
    return machine_of(platform) == "aarch64" and not stamped and "tensorflow" in builds(side)


def _no_wheels_finding() -> Finding:
    says, todo = "TensorFlow has no wheels with CUDA for aarch64", "use a machine with x86_64"
    return differs("compute-capability", "tensorflow", says, wanted="CUDA for aarch64", found="none", todo=todo)


def _engine_finding(engine: Engine, names: str) -> Finding:
    called = "podman" if engine.kind == "podman" else "Docker"
    if engine.ignores_gpus:
        says = f"podman {engine.version} gives no GPUs to what is started by its socket"
        todo = "take podman 5.4 or later, or Docker with the NVIDIA Container Toolkit"
        return Finding(about="GPU toolkit", rule=_ENGINE, agrees=False, says=says, why=_BLIND, todo=todo)
    if engine.gpus:
        way = "a CDI specification" if engine.gpus == "cdi" else "NVIDIA's runtime"
        return Finding(about="GPU toolkit", rule=_ENGINE, agrees=True, says=f"{called} gives GPUs by {way}")
    if not engine.near:
        says = f"this machine has {names}, but {called} runs on another machine, or in a virtual one, without it"
        todo = "let DOCKER_HOST name an engine of this machine"
    else:
        says = f"this machine has {names}, but {called} gives it to no container"
        todo = f"install nvidia-container-toolkit, then {_TOOLKIT[engine.kind]}"
    return Finding(about="GPU toolkit", rule=_ENGINE, agrees=False, says=says, why=_BLIND, todo=todo)


def _unknown_driver(side: Side) -> Finding:
    """Report that rules cannot compare the driver, which may be why the framework finds no GPU."""
    cuda = cuda_of(side)
    lost = f"which driver serves CUDA {cuda} here" if cuda else "which CUDA is to run"
    says = f"nothing says {lost}, so that the driver is not compared"
    todo = "compare the output of nvidia-smi with the framework's list of tested builds"
    wanted, found = f"a driver that serves CUDA {cuda or ''}".rstrip(), "not known"
    return differs("driver", "driver", says, wanted=wanted, found=found, todo=todo, severity="warning")


def _driver_findings(side: Side, machine: Machine) -> Iterator[Finding]:
    """Driver and compute capability; one GPU of several that the framework has code for is enough."""
    host = side_of_machine(machine)
    yield from apply_rules(side, host, (driver,)) or (() if side.variant == "cpu" else (_unknown_driver(side),))
    found = apply_rules(side, host, (compute_capability,))
    some = any(it.agrees or it.severity != "error" for it in found)
    yield from (replace(it, severity="warning") if some and it.severity == "error" else it for it in found)
