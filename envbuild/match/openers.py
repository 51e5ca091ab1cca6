"""A run's other projects that open CUDA: their builds for the CPU, their driver, and their way to NVIDIA's wheels."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from envbuild.errors import MatchError
from envbuild.manifest.packages import is_pep440, name_of
from envbuild.match.profiles import Profiles
from envbuild.match.rows import Driver, FrameworkWheel, Opener
from envbuild.match.stack import Decision, Stack

_WHEELS = {
    "cudart": "cuda-runtime", "cublasLt": "cublas", "cupti": "cuda-cupti", "nvrtc": "cuda-nvrtc", "nvToolsExt": "nvtx",
    "nvrtc-builtins": "cuda-nvrtc", "cusolverMg": "cusolver", "cufftw": "cufft", "nvshmem_host": "nvshmem",
}  # fmt: skip
"""Middle part of the names of NVIDIA's wheels by the stem of a library, where it is not that in lower case."""
_NUMBERED = ("cudnn", "nccl", "cusparselt", "nvshmem", "cudss")
"""Those that are no part of the toolkit: its own have no number from CUDA 13 on."""
_OTHERS = {
    "cutensor": "cutensor", "cutensormg": "cutensor", "nvinfer": "tensorrt", "nvonnxparser": "tensorrt",
    "cudf": "libcudf", "cuml": "libcuml", "cugraph": "libcugraph", "cuvs": "libcuvs", "nvcomp": "nvidia-nvcomp",
}  # fmt: skip
"""Distributions that are named otherwise, without the number."""


class Opened(NamedTuple):
    """A project in an environment."""

    pin: str
    """`onnxruntime-gpu==1.22.0`."""
    row: Opener

    @property
    def cuda(self) -> str:
        """The major version that it was built for; empty where that is not known."""
        return self.row.cuda.partition(".")[0]


def find_opener(name: str, version: str, profiles: Profiles) -> Opener | None:
    """Return what is known of a release; None where nothing is."""
    return next((it for it in profiles.openers if it.covers(name, version)), None)


def may_open_cuda(stack: Stack, wheels: Iterable[tuple[str, str]], profiles: Profiles) -> bool:
    """Whether the framework has CUDA in the image, or a wheel for a GPU (name, version) is NVIDIA's or opens it."""
    return stack.cuda is not None or (
        stack.variant == "gpu"
        and any(
            any(fnmatchcase(name, it) for it in profiles.nvidia_wheels) or find_opener(name, version, profiles)
            for name, version in wheels
        )
    )


def show_opener(text: str, profiles: Profiles) -> tuple[Opener, Driver | None] | None:
    """Return the row of `NAME==VERSION` and the lowest driver; None for a project without rows.

    MatchError where the project has rows, and none for this release.
    """
    name, version = name_of(text), text.partition("==")[2]
    rows = [it for it in profiles.openers if it.distribution == name]
    if not rows:
        return None
    row = find_opener(name, version, profiles)
    if row is None:
        known = ", ".join(f"{it.first} to {it.last}" for it in rows)
        todo = (
            f"give one of them as {name}==VERSION; in the repository, python -m profiles.refresh openers adds new ones"
        )
        raise MatchError(f"no profile knows {text}; the known releases are {known}", where=text, todo=todo)
    floor = highest_floor([Opened(text, row)], profiles)
    return row, floor[0] if floor else None


def find_openers(requirements: Iterable[str], profiles: Profiles) -> tuple[Opened, ...]:
    """Return the known ones among exact requirements."""
    pairs = ((name_of(it), it.partition("==")[2]) for it in requirements)
    return tuple(Opened(f"{name}=={it}", row) for name, it in pairs if (row := find_opener(name, it, profiles)))


def cpu_build(row: Opener, version: str) -> str | None:
    """Return the release of the build for the CPU: the same, else the last before it in its minor version."""
    own = Version(version)
    near = [it for it in map(Version, row.cpu_releases) if it.release[:2] == own.release[:2]]
    before = [it for it in near if it <= own]
    return str(max(before) if before else min(near)) if near else None


def highest_floor(openers: Iterable[Opened], profiles: Profiles) -> tuple[Driver, Opened] | None:
    """Return the highest of the lowest drivers that projects need, and which of them needs it."""
    floors = [(row, it) for it in openers for row in profiles.drivers if row.cuda == it.cuda]
    return max(floors, key=lambda it: Version(it[0].minimum), default=None)


def library_folders(opened: Opened, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the folders below site-packages in which NVIDIA's wheels of an environment have what a project opens."""
    names, major = set(map(name_of, requirements)), opened.cuda
    folders = []
    for library in (*opened.row.opens, *opened.row.optional):
        wheel = component_of(library)
        if f"nvidia-{wheel}-cu{major}" in names:
            folders.append(f"nvidia/{wheel.replace('-', '_')}/lib")
        elif major >= "13" and {f"nvidia-{wheel}", "cuda-toolkit"} & names:  # from CUDA 13 on they share a folder
            folders.append(f"nvidia/cu{major}/lib")
    return tuple(dict.fromkeys(folders))


def component_of(library: str) -> str:
    """Return the middle part of the name of NVIDIA's wheel that has a library: `cuda-runtime` of `libcudart.so.12`."""
    stem = library.partition(".so")[0].removeprefix("lib")
    shared = next((it for it in ("cudnn", "npp") if stem.startswith(it)), None)
    return shared or _WHEELS.get(stem, stem.lower())


def wheel_of(library: str, major: str) -> str:
    """Return the distribution that brings a library for a major version of CUDA: `nvidia-cublas-cu12`."""
    name = component_of(library)
    if name in _OTHERS:
        return f"{_OTHERS[name]}-cu{major}"
    return f"nvidia-{name}" if major >= "13" and name not in _NUMBERED else f"nvidia-{name}-cu{major}"


def unneeded_of(openers: Iterable[Opened], pins: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the NCCL that projects require everywhere and use with several GPUs only, unless the run had it."""
    had = {name for name, _ in pins}
    for it in openers:
        name = f"nvidia-nccl-cu{it.cuda}"
        if "libnccl.so.2" in it.row.optional and not it.row.for_gpu and name not in had:
            yield name


def opener_warnings(
    openers: Iterable[Opened], requirements: Iterable[str], variant: str, torch: FrameworkWheel | None
) -> Iterator[Decision]:
    """Yield a warning for what has no build for the variant, and for pairs that do not go together."""
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    for pin, row in openers:
        if variant == "cpu" and row.gpu_only:
            reason = "it has no build for the CPU and stays: without a GPU its import may fail, and what it computes "
            reason += f"fails; where the model does without, leave it out by --drop {row.distribution}"
            yield Decision("gpu only", pin, reason, row.source, warning=True)
        for text in row.requires:
            version, name = pins.get(name_of(text), ""), name_of(text)
            if is_pep440(version) and not Requirement(text).specifier.contains(version, prereleases=True):
                reason = f"{pin} needs {text}; the run had this version all the same, and the image keeps it"
                yield Decision("pair", f"{name}=={version}", reason, row.source, warning=True)
        if torch and torch.cuda and row.builds and not any(f"{torch.cuda}.".startswith(f"{it}.") for it in row.builds):
            reason = f"it has builds for CUDA {', '.join(row.builds)}, and {torch.pin} has {torch.cuda}: it does not "
            yield Decision("pair", pin, f"{reason}use the GPU beside it", row.source, warning=True)
