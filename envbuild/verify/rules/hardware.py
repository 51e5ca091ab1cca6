"""The interpreter, the system, the machine, the C library, CUDA and cuDNN, NVIDIA's driver, GPUs and the CPU."""

import re
from collections.abc import Iterator

from packaging.version import Version

from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.match.driver import capability_of
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, brings_all, differs, listing, remedy
from envbuild.verify.rules.packages import (
    as_version,
    builds,
    cuda_major,
    cudnn_floor,
    minimum_driver,
    minor,
    numbers,
    profile_data,
    same_numbers,
)
from envbuild.verify.sources import Side

_PATCH = "A patch release repairs faults, which seldom changes a number; libraries that Python brings may be others."
_NONE = "Nothing that the run had can be there without it: no package was compared."
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8": "aarch64"}
_OTHER_MACHINE = "build for this machine by `--platform`, and compare its predictions with the run's"
_CHOSEN = "The wheels were chosen for this C library, and some may not load with an older one."


def python(wanted: Side, found: Side) -> Iterator[Finding]:
    """The minor version and, as far as both know it, the patch; an image may have no Python at all."""
    if brings_all(wanted, found):
        return
    if bool(wanted.pythonless) != bool(found.pythonless):
        one, other = ("no Python" if side.pythonless else side.python or "" for side in (wanted, found))
        if one and other:
            todo = f"check that it is the right image, or {remedy(found)}"
            yield differs("python", "python", wanted=one, found=other, todo=todo, why=_NONE)
    one, other = (side.python.rstrip("+") if side.python else "" for side in (wanted, found))
    if not (minor(one) and minor(other)):
        return
    if not same_numbers(one, other, 2):
        yield differs("python", "python", wanted=one, found=other, todo=remedy(found))
    elif one != other and min(len(numbers(one)), len(numbers(other))) > 2:
        todo = f"nothing if the model's predictions agree there; else {_with_patch(one, found)}"
        yield differs("python", "python", wanted=one, found=other, todo=todo, severity="warning", why=_PATCH)
    else:
        yield agree("python", "python", min(one, other, key=len), wanted=one, found=other)


def _with_patch(python: str, found: Side) -> str:
    """How to get the exact patch release: by the base of what is built, for which there are Python's own images."""
    if found.kind not in MADE:
        return f"use Python {python} there" if found.kind == "host" else remedy(found)
    profiles = profile_data()
    suite = profiles.python_suite(python)
    example = f", such as {profiles.python_image.format(python=python, suite=suite.name)}" if suite else ""
    return f"build it on a base with Python {python} by `--base IMAGE`{example}"


def implementation(wanted: Side, found: Side) -> Iterator[Finding]:
    """CPython or another one."""
    one, other = (side.implementation.lower() if side.implementation else "" for side in (wanted, found))
    rule, about = "python-implementation", "implementation"
    if one and other and not brings_all(wanted, found):
        if one == other:
            yield agree(rule, about, one, wanted=one, found=other)
        else:
            yield differs(rule, about, wanted=one, found=other, todo=remedy(found))


def system(wanted: Side, found: Side) -> Iterator[Finding]:
    """Linux or another one; what envbuild makes is for Linux, whatever the run had."""
    one, other = wanted.system, found.system
    if brings_all(wanted, found) or not (one and other):
        return
    if one.lower() == other.lower():
        yield agree("system", "system", one, wanted=one, found=other)
        return
    on_purpose = found.kind in MADE and other.lower() == "linux"
    severity: Severity = "warning" if on_purpose else "error"
    todo = "compare the image's predictions with the run's" if on_purpose else remedy(found)
    yield differs("system", "system", wanted=one, found=other, todo=todo, severity=severity)


def machine(wanted: Side, found: Side) -> Iterator[Finding]:
    """The architecture, under whichever of its names."""
    if not (wanted.machine and found.machine):
        return
    one, other = (_MACHINES.get(name.lower(), name.lower()) for name in (wanted.machine, found.machine))
    if one == other:
        yield agree("machine", "machine", one, wanted=one, found=other)
    else:
        yield differs("machine", "machine", wanted=one, found=other, todo=_OTHER_MACHINE)


def glibc(wanted: Side, found: Side) -> Iterator[Finding]:
    """The C library; a newer version runs all that an older one did.

    Of a lock the version is the one its wheels were chosen for; of a run the one that happened to be there.
    """
    if brings_all(wanted, found) or not (wanted.libc and found.libc):
        return
    if wanted.libc.lower() != found.libc.lower():
        why, todo = f"What was compiled for {wanted.libc} does not load with {found.libc}.", remedy(found)
        yield differs("glibc", "libc", wanted=wanted.libc, found=found.libc, todo=todo, severity="error", why=why)
        return
    about, one, other = wanted.libc, wanted.libc_version, found.libc_version
    if not (one and other):
        return
    if same_numbers(one, other, 2) or numbers(other) > numbers(one):
        says = other if same_numbers(one, other, 2) else f"{other} runs all that {one} does"
        yield agree("glibc", about, says, wanted=one, found=other)
        return
    severity: Severity | None = "error" if wanted.kind == "lock" else None
    todo = "run the image, which brings its own, or use a newer system"
    todo = "use a newer base: `--base`" if found.kind in MADE else todo
    why = _CHOSEN if severity else ""
    yield differs("glibc", about, wanted=one, found=other, todo=todo, severity=severity, why=why)


_MINOR = "It serves the same programs, with other kernels and other choices of algorithms, so last digits may move."
_REFUSED = "The framework was compiled with a newer cuDNN and refuses this one when it first needs it."
_COMPATIBLE = "It runs by CUDA's minor version compatibility; only what is compiled from PTX needs the newer driver."
_INSTANCE = re.compile(r"\d+g\.(\d+)gb")
"""A MIG profile: `1g.10gb` (NVIDIA Multi-Instance GPU user guide)."""
_NEARLY = 0.95
"""Of the same model; drivers keep a little back, each another amount."""
_GIB = 1 << 30
_PTX = "The framework compiles its kernels from PTX at the first start, which takes minutes and a driver of its CUDA."
_FAMILIES = (
    ("sse2", re.compile(r"ssse3|sse4_[12]|f16c|fma|avx.*|amx_.*")),
    ("fp", re.compile(r"asimd.*|sve.*|sme.*|bf16|i8mm")),
)
"""A flag that every CPU of an architecture has, and the flags there by which libraries choose their kernels."""
_ILLEGAL = "TensorFlow's wheels for x86_64 are compiled for AVX: the process ends with an illegal instruction."


def cuda(wanted: Side, found: Side) -> Iterator[Finding]:
    """The version of CUDA's runtime."""
    yield from _library("cuda", "CUDA", wanted, found, (wanted.cuda, found.cuda))


def cudnn(wanted: Side, found: Side) -> Iterator[Finding]:
    """The version of cuDNN."""
    yield from _library("cudnn", "cuDNN", wanted, found, (wanted.cudnn, found.cudnn))


def _library(
    rule: str, about: str, wanted: Side, found: Side, versions: tuple[str | None, str | None]
) -> Iterator[Finding]:
    """Compared to the minor version: a patch keeps kernels and interfaces."""
    one, other = versions
    if brings_all(wanted, found) or not (one and other):
        return
    if same_numbers(one, other, 2):
        yield agree(rule, about, other, wanted=one, found=other)
        return
    refused = rule == "cudnn" and _below_floor(found)
    severity: Severity = "warning" if same_numbers(one, other, 1) and not refused else "error"
    why = _REFUSED if refused else _MINOR if severity == "warning" else ""
    yield differs(rule, about, wanted=one, found=other, todo=remedy(found), severity=severity, why=why)


def _below_floor(side: Side) -> bool:
    """Whether a source's cuDNN is older than the one that its framework takes, of the same major version."""
    framework, there = side.framework, numbers(side.cudnn)
    if framework is None or as_version(framework.version) is None:
        return False
    least = numbers(cudnn_floor(framework.name, framework.version))
    return len(there) > 1 and there[:1] == least[:1] and there[:2] < least[:2]


def driver(wanted: Side, found: Side) -> Iterator[Finding]:
    """The driver's version against the lowest one of the CUDA's major version, and the newest CUDA that it serves."""
    there, version = found.accelerator, cuda_of(wanted)
    if found.kind != "host" or there is None or there.kind != "nvidia" or version is None or wanted.variant == "cpu":
        return
    if there.driver or there.cuda_maximum:
        yield _compare_driver(version, there, None if needs_gpu(wanted) else "warning")


def cuda_of(side: Side) -> str | None:
    """CUDA that is to run: what is there, or what the framework was built with; the higher one where they differ.

    Else the major version that its wheels are named after.
    """
    built = side.framework.cuda if side.framework else None
    known = max((it for it in (side.cuda, built) if it), key=lambda it: (numbers(it)[:2], it), default=None)
    return known or cuda_major({it.name: it.version for it in (side.packages or {}).values()})


def _compare_driver(cuda: str, there: Accelerator, severity: Severity | None) -> Finding:
    row, version, serves = minimum_driver(cuda), as_version(there.driver), numbers(there.cuda_maximum)
    too_old = row is not None and version is not None and version < Version(row[0])
    below = bool(serves) and serves[:1] < numbers(cuda)[:1]
    least = f"driver {row[0]} or later" if row else f"a driver that serves CUDA {cuda}"
    by_version = there.driver and not (below and not too_old)
    has = f"driver {there.driver}" if by_version else f"a driver that serves CUDA {there.cuda_maximum}"
    why = ""
    if too_old or below:
        says = f"CUDA {cuda} needs {least}, and the host has {has}"
        todo = "update the driver of the host, or take an image with an older CUDA or without one: `--variant cpu`"
    elif (there.driver and not version) or not (serves or (row and version)):
        says = f"CUDA {cuda} needs {least}, and it is not known whether {has} is that"
        todo, severity = "see what nvidia-smi says on the host", "warning"
    elif serves and serves[:2] < numbers(cuda)[:2]:
        says = f"CUDA {cuda} is to run, and the driver came with CUDA {there.cuda_maximum}"
        todo, severity = "nothing, unless it says that PTX cannot be compiled; then update the driver", "note"
        least, has, why = f"CUDA {cuda}", f"CUDA {there.cuda_maximum}", _COMPATIBLE
    else:
        return agree("driver", "driver", f"{has} serves CUDA {cuda}", wanted=least, found=has)
    return differs("driver", "driver", says, wanted=least, found=has, todo=todo, severity=severity, why=why)


def needs_gpu(side: Side) -> bool:
    """Whether what a source is about computes on a GPU: by its variant, or as a run with one and a build for it."""
    if side.variant:
        return side.variant == "gpu"
    build = next(iter(builds(side).values()), None)
    return bool(_gpus(side)) and build is not None and build.device != "cpu"


def absent(wanted: Side, found: Side) -> Iterator[Finding]:
    """Whether a host has a GPU where one is needed; only a host that was looked at says so."""
    there = found.accelerator
    if found.kind != "host" or there is None or not needs_gpu(wanted):
        return
    if there.kind == "nvidia" and there.gpus:
        yield agree("gpu-absent", "GPU", _names(there.gpus))
    elif there.kind != "nvidia":
        todo = (
            "use a machine with a GPU, and start the container with `--gpus all`; for the CPU there is another image, "
            "by `envbuild from-manifest MANIFEST --variant cpu`"
        )
        seen = "no GPU" if there.kind == "none" else "a TPU"
        yield differs("gpu-absent", "GPU", wanted=_names(_gpus(wanted)) or "a GPU", found=seen, todo=todo)


def compute_capability(wanted: Side, found: Side) -> Iterator[Finding]:
    """Whether the framework's build has code for the GPUs: of the host, or of the run where no host is given."""
    side, gpus = (wanted, _gpus(found)) if found.kind == "host" else (found, _gpus(wanted))
    framework = side.framework
    if framework is None or side.variant == "cpu" or not framework.compute_capabilities:
        return
    capabilities = {gpu.name: capability_of(gpu, profile_data()) for gpu in gpus}
    for name, capability in capabilities.items():
        if capability:
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
    return ", ".join(f"{count} x {it}" if (count := names.count(it)) > 1 else it for it in dict.fromkeys(names))


def _memory(gpu: Gpu) -> int | None:
    """Bytes that one process can have; None of a divided GPU whose instances are not known."""
    if gpu.mig is None or not gpu.mig.enabled:
        return gpu.memory
    sizes = [int(match[1]) * _GIB for text in gpu.mig.instances if (match := _INSTANCE.match(text))]
    return max(sizes, default=None)


def _code(build: str, made_for: tuple[str, ...], gpu: str, capability: tuple[int, int]) -> Finding:
    """Machine code runs on an equal or higher minor version of its major one, PTX on all that came later.

    NVIDIA CUDA C++ Programming Guide, sections Binary Compatibility and PTX Compatibility; `8.0` may be either.
    """
    parsed = [it for text in made_for if (it := _architecture(text))]
    rule, listed, number = "compute-capability", ", ".join(made_for), ".".join(map(str, capability))
    if any(kind != "ptx" and it[0] == capability[0] and it[1] <= capability[1] for kind, it in parsed):
        return agree(rule, gpu, f"{build} has machine code for {number}", wanted=number, found=listed)
    if any(kind != "machine" and it <= capability for kind, it in parsed):
        says = f"{build} has no machine code for {number}, only PTX: {listed}"
        todo = "use a release that was built for it, or start it once and keep what it compiled: `CUDA_CACHE_PATH`"
        return differs(rule, gpu, says, wanted=number, found=listed, todo=todo, severity="warning", why=_PTX)
    says = f"{build} was built for {listed}, and this GPU is {number}"
    todo = "use a GPU that the framework was built for, or train with a release that was built for this one"
    return differs(rule, gpu, says, wanted=number, found=listed, todo=todo)


def _architecture(text: str) -> tuple[str, tuple[int, int]] | None:
    """`sm_80` is machine code, `compute_80` PTX, and `8.0` alone can be both; the letter of `sm_90a` does not count."""
    found = re.fullmatch(r"(?:(sm|compute)_)?(\d+?)\.?(\d)[af]?", text)
    if found is None:
        return None
    kind = {"sm": "machine", "compute": "ptx"}.get(found[1] or "", "both")
    return kind, (int(found[2]), int(found[3]))


def cpu_flags(wanted: Side, found: Side) -> Iterator[Finding]:
    """The flags that matter to numbers, which the run had and this CPU has not."""
    here, there = (frozenset(side.cpu.flags) if side.cpu else frozenset() for side in (wanted, found))
    matters = next((flags for always, flags in _FAMILIES if always in here & there), None)
    if matters is None:
        return
    used = sorted(flag for flag in here if matters.fullmatch(flag))
    lacking = [flag for flag in used if flag not in there]
    if not lacking:
        many = {0: "none of the", 1: "the one"}.get(len(used), f"all {len(used)}")
        sets = "instruction set that changes numbers" if len(used) == 1 else "instruction sets that change numbers"
        yield agree("cpu-flags", "CPU", f"{many} {sets}")
        return
    fatal = "avx" in lacking and "tensorflow" in builds(wanted)
    model = found.cpu.model if found.cpu and found.cpu.model else "none of these"
    todo = "use a machine type with the CPU generation of the run, or compare its predictions with the run's"
    yield differs(
        "cpu-flags", "CPU", f"it lacks {listing(lacking)}", wanted=listing(lacking), found=model, todo=todo,
        severity="error" if fatal else None, why=_ILLEGAL if fatal else "",
    )  # fmt: skip
