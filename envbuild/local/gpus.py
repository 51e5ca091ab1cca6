"""Whether this machine's GPUs can be had: seen here, given to containers, and served by their driver; pure."""

from collections.abc import Iterator
from dataclasses import replace

from envbuild.local.machine import side_of_machine
from envbuild.local.model import Engine, Machine, Subject, Variant
from envbuild.local.subject import chosen_side, machine_of
from envbuild.manifest.hardware import Accelerator
from envbuild.verify.findings import Finding
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.catalogue import agree, differs
from envbuild.verify.rules.frameworks import builds
from envbuild.verify.rules.hardware import compute_capability, cuda_of, driver
from envbuild.verify.sources import Side

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


def gpu_findings(subject: Subject, variant: Variant, platform: str, machine: Machine) -> Iterator[Finding]:
    """All that a container with GPUs needs of a machine; nothing more once it is clear that there are none."""
    engine, there = machine.engine, machine.accelerator
    if engine and engine.gpus and not engine.near:
        yield _unseen()
        return
    if there is None or there.kind != "nvidia" or not there.gpus:
        yield _absent(there)
        return
    names = names_of(there)
    yield agree("gpu-absent", "GPU", names)
    side = chosen_side(subject, variant, platform)
    if _is_unmade(subject, side, platform):
        yield _unmade()
    if engine:
        yield _given(engine, names)
    yield from _served(side, machine)


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


def _unseen() -> Finding:
    says = (
        "the engine runs on another machine, or in a virtual one, and its GPUs and their driver are not seen from here"
    )
    todo = "ask for it by `--variant gpu`, where its driver is known to be new enough"
    return Finding(about="GPU", rule=_ENGINE, agrees=False, severity="warning", says=says, why=_BLIND, todo=todo)


def _absent(there: Accelerator | None) -> Finding:
    if there and there.kind == "nvidia":
        says, found = "there is a driver of NVIDIA, and it shows no GPU", "none shown"
        todo = "see what nvidia-smi says; after an update of the driver the machine has to start anew"
    else:
        found = "a TPU" if there and there.kind == "tpu" else "no NVIDIA GPU"
        says, todo = (
            f"this machine has {found}",
            "use a machine with an NVIDIA GPU, or the CPU variant: `--variant cpu`",
        )
    return differs("gpu-absent", "GPU", says, wanted="an NVIDIA GPU", found=found, todo=todo, why=_BLIND)


def _is_unmade(subject: Subject, side: Side, platform: str) -> bool:
    """Whether the framework has no build for CUDA there, and nobody stamped one all the same."""
    stamped = ("train", "gpu", platform) in {it.slot for it in subject.images} or subject.image is not None
    return machine_of(platform) == "aarch64" and not stamped and "tensorflow" in builds(side)


def _unmade() -> Finding:
    says, todo = "TensorFlow has no wheels with CUDA for aarch64", "use a machine with x86_64"
    return differs("compute-capability", "tensorflow", says, wanted="CUDA for aarch64", found="none", todo=todo)


def _given(engine: Engine, names: str) -> Finding:
    called = "podman" if engine.kind == "podman" else "Docker"
    if engine.blind:
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


def _uncompared(side: Side) -> Finding:
    """What rules pass over, as it is not said, may be why the framework finds no GPU here."""
    cuda = cuda_of(side)
    lost = f"which driver serves CUDA {cuda} here" if cuda else "which CUDA is to run"
    says = f"nothing says {lost}, so that the driver is not compared"
    todo = "compare them by what nvidia-smi says, and the framework's list of tested builds"
    wanted, found = f"a driver that serves CUDA {cuda or ''}".rstrip(), "not known"
    return differs("driver", "driver", says, wanted=wanted, found=found, todo=todo, severity="warning")


def _served(side: Side, machine: Machine) -> Iterator[Finding]:
    """Driver and compute capability; one GPU of several that the framework has code for is enough."""
    host = side_of_machine(machine)
    yield from apply_rules(side, host, (driver,)) or (() if side.variant == "cpu" else (_uncompared(side),))
    found = apply_rules(side, host, (compute_capability,))
    some = any(it.agrees or it.severity != "error" for it in found)
    yield from (replace(it, severity="warning") if some and it.severity == "error" else it for it in found)
