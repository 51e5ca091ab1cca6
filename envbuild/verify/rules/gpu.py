"""GPUs: whether there is one, whether the framework has code for it, and whether the model fits."""

import re
from collections.abc import Iterator

from envbuild.manifest.hardware import Gpu
from envbuild.match.driver import capability_of
from envbuild.verify.findings import Finding
from envbuild.verify.rules.builds import builds
from envbuild.verify.rules.known import known
from envbuild.verify.rules.saying import agree, differs
from envbuild.verify.sides.side import Side

_INSTANCE = re.compile(r"\d+g\.(\d+)gb")
"""A MIG profile: `1g.10gb` (NVIDIA Multi-Instance GPU user guide)."""
_NEARLY = 0.95
"""Of the same model; drivers keep a little back, each another amount."""
_GIB = 1 << 30
_PTX = "The framework compiles its kernels from PTX at the first start, which takes minutes and a driver of its CUDA."


def needs_gpu(side: Side) -> bool:
    """Whether what a side is about computes on a GPU: by its variant, or as a run with one and a build for it."""
    if side.variant:
        return side.variant == "gpu"
    build = next(iter(builds(side).values()), None)
    return bool(side.accelerator and side.accelerator.gpus) and build is not None and build.device != "cpu"


def absent(wanted: Side, found: Side) -> Iterator[Finding]:
    """Whether a host has a GPU where one is needed; only a host that was looked at says so."""
    there = found.accelerator
    if found.kind != "host" or there is None or not needs_gpu(wanted):
        return
    if there.kind == "nvidia" and there.gpus:
        yield agree("gpu-absent", "GPU", _names(there.gpus))
    elif there.kind != "nvidia":
        had = _names(wanted.accelerator.gpus) if wanted.accelerator and wanted.accelerator.gpus else "a GPU"
        seen = "no GPU" if there.kind == "none" else "a TPU"
        todo = (
            "use a machine with a GPU, and start the container with `--gpus all`; for the CPU there is another image, "
            "by `envbuild from-manifest MANIFEST --variant cpu`"
        )
        yield differs("gpu-absent", "GPU", wanted=had, found=seen, todo=todo)


def compute_capability(wanted: Side, found: Side) -> Iterator[Finding]:
    """Whether the framework's build has code for the GPUs: of the host, or of the run where no host is given."""
    side, gpus = (wanted, _gpus(found)) if found.kind == "host" else (found, _gpus(wanted))
    framework = side.framework
    if framework is None or side.variant == "cpu" or not framework.compute_capabilities:
        return
    for name, capability in _capabilities(gpus).items():
        yield _code(f"{framework.name} {framework.version}", framework.compute_capabilities, name, capability)


def memory(wanted: Side, found: Side) -> Iterator[Finding]:
    """Whether the largest GPU of the host has as much memory as the run's largest, or the part of it that MIG gives."""
    had, there = (max((size for gpu in _gpus(side) if (size := _memory(gpu))), default=0) for side in (wanted, found))
    if found.kind != "host" or not (had and there and needs_gpu(wanted)):
        return
    one, other = (f"{size / _GIB:.1f} GiB" for size in (had, there))
    if there >= had * _NEARLY:
        yield agree("gpu-memory", "GPU memory", other, wanted=one, found=other)
        return
    divided = any(gpu.mig and gpu.mig.enabled for gpu in _gpus(found))
    says = f"wanted {one}, found {other}" + (", as MIG divides the GPU" if divided else "")
    todo = "try it with the largest batch that is served, or use a larger GPU" + (" or MIG instance" if divided else "")
    yield differs("gpu-memory", "GPU memory", says, wanted=one, found=other, todo=todo)


def _gpus(side: Side) -> tuple[Gpu, ...]:
    return side.accelerator.gpus if side.accelerator else ()


def _names(gpus: tuple[Gpu, ...]) -> str:
    names = [gpu.name for gpu in gpus]
    return ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def _memory(gpu: Gpu) -> int | None:
    """Bytes that one process can have; None of a divided GPU whose instances are not known."""
    if gpu.mig is None or not gpu.mig.enabled:
        return gpu.memory
    sizes = [int(match[1]) * _GIB for text in gpu.mig.instances if (match := _INSTANCE.match(text))]
    return max(sizes, default=None)


def _capabilities(gpus: tuple[Gpu, ...]) -> dict[str, tuple[int, int]]:
    found = {gpu.name: capability_of(gpu, known()) for gpu in gpus}
    return {name: capability for name, capability in found.items() if capability}


def _code(build: str, made_for: tuple[str, ...], gpu: str, capability: tuple[int, int]) -> Finding:
    """Machine code runs on an equal or higher minor version of its major one, PTX on all that came later.

    NVIDIA CUDA C++ Programming Guide, sections Binary Compatibility and PTX Compatibility; `8.0` may be either.
    """
    parsed = [it for text in made_for if (it := _architecture(text))]
    listed, number = ", ".join(made_for), ".".join(map(str, capability))
    if any(kind != "ptx" and it[0] == capability[0] and it[1] <= capability[1] for kind, it in parsed):
        return agree("compute-capability", gpu, f"{build} has machine code for {number}", wanted=number, found=listed)
    if any(kind != "machine" and it <= capability for kind, it in parsed):
        says = f"{build} has no machine code for {number}, only PTX: {listed}"
        todo = "use a release that was built for it, or start it once and keep what it compiled: `CUDA_CACHE_PATH`"
        return differs(
            "compute-capability", gpu, says, wanted=number, found=listed, todo=todo, severity="warning", why=_PTX
        )
    says = f"{build} was built for {listed}, and this GPU is {number}"
    todo = "use a GPU that the framework was built for, or train with a release that was built for this one"
    return differs("compute-capability", gpu, says, wanted=number, found=listed, todo=todo)


def _architecture(text: str) -> tuple[str, tuple[int, int]] | None:
    """`sm_80` is machine code, `compute_80` PTX, and `8.0` alone can be both; the letter of `sm_90a` does not count."""
    found = re.fullmatch(r"(?:(sm|compute)_)?(\d+?)\.?(\d)[af]?", text)
    if found is None:
        return None
    kind = {"sm": "machine", "compute": "ptx"}.get(found[1] or "", "both")
    return kind, (int(found[2]), int(found[3]))
