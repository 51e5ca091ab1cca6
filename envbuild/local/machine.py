"""The machine here with its container engine, and the choice of the environment that it can run."""

import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.capture.files import present, read_text
from envbuild.capture.host import accelerator_facts, cpu_facts
from envbuild.errors import StampError
from envbuild.files import cache_folder
from envbuild.local.model import Choice, Engine, EngineKind, GpuWay, Machine, Subject, Variant, VariantChoice
from envbuild.local.subject import chosen_side, machine_of
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.stamp.record import StampedImage
from envbuild.validation import read_or_none
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.catalogue import agree, differs
from envbuild.verify.rules.hardware import compute_capability, cuda_of, driver, needs_gpu
from envbuild.verify.rules.packages import builds
from envbuild.verify.sources import Side, frameworks_of

if TYPE_CHECKING:
    import docker


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
    near, free = engine is None or engine.near, None
    if near:
        folder = (engine.folder if engine else None) or cache_folder()
        with suppress(OSError):
            free = shutil.disk_usage(next(it for it in (folder, *folder.parents) if it.exists())).free
    # Facts as a manifest would have them; None where it would refuse them.
    return Machine(
        machine=engine.machine if engine else machine_of(platform.machine()),
        system=platform.system(),
        cpu=read_or_none(present(cpu_facts(str(root / "proc/cpuinfo"))), Cpu) if near else None,
        accelerator=read_or_none(present(accelerator_facts(str(root))), Accelerator),
        engine=engine,
        free=free,
    )


def side_of_machine(machine: Machine) -> Side:
    """The hardware as rules read it; its software does not matter, as a container brings its own."""
    return Side(
        name="this machine", kind="host", machine=machine.machine, accelerator=machine.accelerator, cpu=machine.cpu
    )


def _engine(client: "docker.DockerClient", root: Path) -> Engine:
    version, info = client.version(), client.info()
    parts: list[Mapping[str, Any]] = version.get("Components") or [{}]
    kind: EngineKind = "podman" if any("podman" in str(it.get("Name")).lower() for it in parts) else "docker"
    near, folder = _is_near(client, info), Path(str(info.get("DockerRootDir") or ""))
    is_seen = False  # as from within another container
    with suppress(OSError):  # a folder that may not be looked into
        is_seen = near and folder.is_absolute() and folder.is_dir()
    return Engine(
        kind=kind,
        version=str(version.get("Version") or parts[0].get("Version") or "unknown"),
        machine=machine_of(str(info.get("Architecture") or version.get("Arch") or platform.machine())),
        rootless=any("rootless" in str(it) for it in info.get("SecurityOptions") or ()),
        gpus=_gpus(kind, info, root if near else None),
        folder=folder if is_seen else None,
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
    files = (file for folder in folders for file in (root / folder.lstrip("/")).glob("*"))
    return any(file.suffix in (".yaml", ".yml", ".json") and _OF_NVIDIA.search(read_text(file) or "") for file in files)


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
    side, host = chosen_side(subject, variant, platform), side_of_machine(machine)
    stamped = subject.image is not None or ("train", "gpu", platform) in {it.slot for it in subject.images}
    if machine_of(platform) == "aarch64" and not stamped and "tensorflow" in builds(side):
        says, todo = "TensorFlow has no wheels with CUDA for aarch64", "use a machine with x86_64"
        yield differs("compute-capability", "tensorflow", says, wanted="CUDA for aarch64", found="none", todo=todo)
    if engine:
        yield _engine_finding(engine, names)
    driver_findings = apply_rules(side, host, (driver,))
    yield from driver_findings
    if not driver_findings and side.variant != "cpu":
        # It may be why the framework finds no GPU.
        cuda = cuda_of(side)
        unknown = f"which driver serves CUDA {cuda} here" if cuda else "which CUDA is to run"
        says = f"nothing says {unknown}, so that the driver is not compared"
        todo = "compare the output of nvidia-smi with the framework's list of tested builds"
        required = f"a driver that serves CUDA {cuda or ''}".rstrip()
        yield differs("driver", "driver", says, wanted=required, found="not known", todo=todo, severity="warning")
    # One GPU of several that the framework has code for is enough.
    found = apply_rules(side, host, (compute_capability,))
    some = any(it.agrees or it.severity != "error" for it in found)
    yield from (replace(it, severity="warning") if some and it.severity == "error" else it for it in found)


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


def _engine_finding(engine: Engine, names: str) -> Finding:
    called = "podman" if engine.kind == "podman" else "Docker"
    if engine.ignores_gpus:
        says = f"podman {engine.version} gives no GPUs to what is started by its socket"
        todo = "take podman 5.4 or later, or Docker with the NVIDIA Container Toolkit"
    elif engine.gpus:
        way = "a CDI specification" if engine.gpus == "cdi" else "NVIDIA's runtime"
        return Finding(about="GPU toolkit", rule=_ENGINE, agrees=True, says=f"{called} gives GPUs by {way}")
    elif not engine.near:
        says = f"this machine has {names}, but {called} runs on another machine, or in a virtual one, without it"
        todo = "let DOCKER_HOST name an engine of this machine"
    else:
        says = f"this machine has {names}, but {called} gives it to no container"
        todo = f"install nvidia-container-toolkit, then {_TOOLKIT[engine.kind]}"
    return Finding(about="GPU toolkit", rule=_ENGINE, agrees=False, says=says, why=_BLIND, todo=todo)


def choose(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    """Choose the stamped image if this machine can run it, else the variant that it can, built from the same lock.

    An explicit variant stays chosen even if it cannot run; `preflight` reports that. StampError if there is neither an
    image nor a manifest.
    """
    return _choose_for_image(subject, machine, wanted) if subject.image else _choose_for_run(subject, machine, wanted)


def _choose_for_run(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    trained = [it for it in subject.images if it.role == "train"]
    if subject.manifest is None:
        own: Variant = "gpu" if any(it.variant == "gpu" for it in trained) else "cpu"
    else:  # what the run computed on, by its wheels or its GPUs
        packages = (subject.side.packages or {}).values()
        by_wheels = frameworks_of({it.name: it.version for it in packages}).variant
        own = by_wheels or ("gpu" if needs_gpu(subject.side) else "cpu")
    stamped = {it.variant: it for it in trained if it.platform == machine.platform}
    variant, reason = _variant(subject, machine, wanted, own, stamped)
    image = stamped.get(variant)
    pushed = image is not None and image.reference is not None
    if not pushed and subject.manifest_bytes is None:
        todo = "copy the model's whole folder, envbuild/ with it, from where it was stamped, or give the run's manifest"
        what = f"no {variant.upper()} image for {machine.platform} was pushed, and no manifest says how to build one"
        raise StampError(what, where=subject.name, todo=todo)
    # The same variant first, else the run's own; of two such the one for the same platform.
    nearest = min(
        trained,
        key=lambda it: (it.variant != variant, it.variant != own, it.platform != machine.platform),
        default=None,
    )
    if image and image.reference:
        origin = "the model is stamped with it, so that every version is known"
    elif image:
        origin = "the model is stamped with it, but it was never pushed: it is built again from the same lock"
    elif subject.images:
        origin = "the model is stamped with no such image: it is built from the run's manifest"
    else:
        origin = "no image is stamped: it is built from the run's manifest"
    reasons, run = [reason, origin], subject.side.machine
    if run and machine_of(run) != machine.machine:
        emulation = f"{machine.platform}, which this machine runs without emulation"
        reasons.insert(1, f"{emulation}: predictions are not bit-identical to those of the run on {run}")
    return Choice(
        variant=variant,
        platform=machine.platform,
        gpus=variant == "gpu",
        pull=image if pushed else None,
        expected=None if pushed else image,
        nearest=nearest,
        reasons=tuple(reasons),
    )


def _variant(
    subject: Subject, machine: Machine, wanted: VariantChoice, own: Variant, stamped: Mapping[str, StampedImage]
) -> tuple[Variant, str]:
    """Return the variant and the reason: the requested one, else a stamped one that can run, the run's own first."""
    fault = obstacle(subject, "gpu", machine.platform, machine)
    if wanted != "auto":
        though = f"; but {fault}" if wanted == "gpu" and fault else ""
        return wanted, f"the {wanted.upper()} variant, as requested{though}"
    possible: list[Variant] = [it for it in (own, "cpu" if own == "gpu" else "gpu") if it == "cpu" or not fault]
    available = {it.variant for it in stamped.values() if it.reference or subject.manifest_bytes}
    variant = next((it for it in possible if it in available), possible[0])
    name = variant.upper()
    if variant == own and subject.manifest:
        return variant, f"the {name} variant, as the run computed on {'a GPU' if own == 'gpu' else 'the CPU'}"
    if fault:
        return variant, f"the {name} variant: {fault}"
    return variant, f"the {name} variant: it is the one that is stamped for {machine.platform}"


def _choose_for_image(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    """An image runs as it is; only its GPUs are decided."""
    variant = subject.side.variant
    platform = replace(machine, machine=machine_of(subject.side.machine or machine.machine)).platform
    fault = obstacle(subject, variant or "gpu", platform, machine)
    gpus = wanted == "gpu" if wanted != "auto" else variant != "cpu" and fault is None
    if wanted != "auto":
        though = f"; but {fault}" if wanted == "gpu" and fault else ""
        device = f"it computes on {'a GPU' if wanted == 'gpu' else 'the CPU'}, as requested{though}"
    elif variant == "cpu":
        device = "it computes on the CPU, which it was made for"
    else:
        device = f"it computes on the CPU: {fault}" if fault else "it gets the GPUs of this machine"
    reasons = ["the image runs as it is", device]
    if platform != machine.platform:
        reasons.append(f"it is for {platform}, and this machine is {machine.platform}: it runs only by emulation")
    return Choice(variant=variant or ("gpu" if gpus else "cpu"), platform=platform, gpus=gpus, reasons=tuple(reasons))
