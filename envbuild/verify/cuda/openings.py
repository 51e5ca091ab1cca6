"""What opens CUDA's libraries, in which order, and what became of it.

TensorFlow's are opened by libtensorflow_framework (tsl/platform/default/load_library.cc), JAX's by Python first (the
plug-in's `_load_nvidia_libraries`) and then by its plug-in, PyTorch's are needed by its own libraries (DT_NEEDED).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.match.rows import FrameworkWheel
from envbuild.verify.cuda.files import InstalledFile
from envbuild.verify.cuda.process import MissingLibrary, Process

CUDA = re.compile(r"lib(cu(?!rl)\w+|nv\w+|nccl\w*)\.so[\w.]*")
"""NVIDIA's libraries, by name."""
_ORDER = ("cudart", "cublas", "cublasLt", "cufft", "curand", "cusolver", "cusparse", "cudnn")
"""TensorFlow's own order, and that of XLA; what is not in it runs without."""
_BY_CUDA = {
    "11": ("libcudart.so.11.0", "libcublas.so.11", "libcublasLt.so.11", "libcufft.so.10", "libcusolver.so.11",
           "libcusparse.so.11"),
    "12": ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11",
           "libcusparse.so.12"),
    "13": ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12", "libcusolver.so.12",
           "libcusparse.so.12"),
}  # fmt: skip
"""Sonames by major version of CUDA, for wheels whose files do not list them (JAX before 0.6.2)."""
_CUDNN_COMPILING = ("libcudnn_graph", "libcudnn_ops_infer")
"""The parts of cuDNN 9 and 8 that open the run-time compiler."""
_TENSORFLOW = r"tensorflow(_core)?/libtensorflow_framework\.so\.\d+"
_PRELOADED = re.compile(r"""_load\(\s*["']([\w.]+)["'],\s*\[([^\]]*)\]""")
_TORCH = (r"lib/libtorch_global_deps\.so", r"_C\.[^/]*so", r"lib/libcaffe2_nvrtc\.so", r"lib/libtorch_cuda_linalg\.so")
# torch/__init__.py, _preload_cuda_deps
_TORCH_PRELOADED = ("cublasLt", "cublas", "cudnn", "nvrtc", "nvrtc-builtins", "cudart", "cupti", "cufft", "nvJitLink",
                    "cusparse", "cusparseLt", "cusolver", "nccl", "nvshmem_host", "cufile")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One call of dlopen."""

    name: str
    """A soname, or an absolute path."""
    by: str = ""
    """Path of the library whose code opens it; empty for Python itself."""
    without: str = ""
    """What is lost where it is not found; empty where nothing works without it."""
    quiet: bool = False
    """Whether nothing is to be said where it is not found."""
    unless: str = ""
    """The path of a library that makes it needless where that is loaded."""


Files = Mapping[str, InstalledFile]
"""By path below the root of the image."""


def openings(framework: str, wheel: FrameworkWheel, site: str, files: Files) -> tuple[Opening, ...]:
    """List what a framework opens, in its order; `site` is an absolute path. Empty for a CPU build."""
    if wheel.cuda is None:
        return ()
    plan = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}
    return tuple(plan[framework](wheel, site, files))


def _tensorflow(wheel: FrameworkWheel, site: str, files: Files) -> Iterator[Opening]:
    caller = _first(files, site, _TENSORFLOW)
    yield Opening(name=caller)
    yield from (Opening(name=name, by=caller) for name in _in_order(wheel.libraries))
    major = f"{wheel.cuda}".partition(".")[0]
    if int(major) >= 12:
        yield Opening(name=f"libcupti.so.{major}", by=caller, without="the profiler sees no GPU")


def _jax(wheel: FrameworkWheel, site: str, files: Files) -> Iterator[Opening]:
    plugin = _first(files, site, r"jax_plugins/xla_cuda\d+/xla_cuda_plugin\.so")
    yield from _jax_preloaded(site, files)
    yield Opening(name=plugin)
    cudnn = f"libcudnn.so.{(wheel.cudnn or '').partition('.')[0]}"
    names = wheel.libraries or (*_BY_CUDA.get(f"{wheel.cuda}".partition(".")[0], ()), cudnn)
    yield from (Opening(name=name, by=plugin) for name in _in_order(names))
    rest = (name for name in names if stem(name) not in _ORDER)
    yield from (Opening(name=name, by=plugin, without="what is made of it does not run") for name in rest)
    yield from (Opening(name=path) for path in _matching(files, site, r"jax_cuda\d+_plugin/_\w+\.so"))


def _jax_preloaded(site: str, files: Files) -> Iterator[Opening]:
    """What the plug-in's own Python opens by path, folder by folder."""
    for path in _matching(files, site, r"jax_plugins/xla_cuda\d+/__init__\.py"):
        file = files[path[1:]]
        text = file.archive.read(file.member).decode(errors="replace") if file.member else ""
        for folder, names in _PRELOADED.findall(text):
            inside = re.findall(r"""["']([\w.]+)["']""", names)
            places = (f"{site}/nvidia/{folder.replace('.', '/')}/lib/{name}" for name in inside)
            yield from (Opening(name=place, quiet=True) for place in places if place[1:] in files)


def loaded_before(framework: str, site: str, files: Files) -> tuple[Opening, ...]:
    """List what is loaded by `import torch`, `import tensorflow`, or JAX's search for its plug-ins."""
    if framework == "torch":
        return tuple(_torch(None, site, files))
    if framework == "jax":
        return tuple(_jax_preloaded(site, files))
    return tuple(Opening(name=it) for it in _matching(files, site, _TENSORFLOW))


def _torch(_: FrameworkWheel | None, site: str, files: Files) -> Iterator[Opening]:
    """Its libraries; where the first cannot be opened, Python opens NVIDIA's by path and tries again."""
    first, *rest = _TORCH
    deps = next(iter(_matching(files, site, f"torch/{first}")), "")
    yield Opening(name=deps, quiet=True)
    for stem in _TORCH_PRELOADED:
        nvidia = _matching(files, site, rf"nvidia/\w+/lib/lib{stem}\.so\.[\w.]*\d")
        yield from (Opening(name=path, quiet=True, unless=deps) for path in nvidia)
    for pattern in (first, *rest):
        yield from (Opening(name=path) for path in _matching(files, site, f"torch/{pattern}"))


def open_library(process: Process, opening: Opening) -> list[tuple[Opening, MissingLibrary]]:
    """Open a library in a process; what is missing for that."""
    if opening.unless and process.find(opening.unless):
        return []
    caller = process.find(opening.by) if opening.by else process.program
    if opening.by and caller is None:
        return []  # the caller itself is missing, which has a finding of its own
    return [(opening, missing) for missing in process.open(opening.name, caller)[1]]


def cudnn_openings(library: str, folder: Iterable[str], cuda: str) -> Iterator[Opening]:
    """What a libcudnn.so.N at a path opens in turn: its parts, and for some engines the run-time compiler.

    `folder` are the names beside it.
    """
    number = library.rpartition(".so.")[2].partition(".")[0]
    parts = sorted(name for name in folder if re.fullmatch(rf"libcudnn_\w+\.so\.{number}", name))
    yield from (Opening(name=name, by=library) for name in parts)
    major = cuda.partition(".")[0]
    without = "cuDNN leaves out the engines that it compiles at run time"
    for part in parts if int(major) >= 12 else ():
        if part.partition(".")[0] in _CUDNN_COMPILING:
            by = f"{library.rpartition('/')[0]}/{part}"
            yield Opening(name=f"libnvrtc.so.{major}", by=by, without=without)


def _in_order(names: Sequence[str]) -> list[str]:
    return sorted((name for name in names if stem(name) in _ORDER), key=lambda name: _ORDER.index(stem(name)))


def core(path: str) -> str:
    """`cudart` of `usr/local/cuda/lib64/libcudart.so.12`; empty for what is none of CUDA's first libraries."""
    name = path.rpartition("/")[2]
    return stem(name) if CUDA.fullmatch(name) and ".so." in name and stem(name) in _ORDER else ""


def stem(name: str) -> str:
    """`cublasLt` of `libcublasLt.so.12`."""
    return name.partition(".so")[0].removeprefix("lib")


def _first(files: Files, site: str, pattern: str) -> str:
    """The one file of this name; a path that no file has where it is not there, so that it is reported as lost."""
    return next(iter(_matching(files, site, pattern)), f"{site}/{pattern.replace(chr(92), '')}")


def _matching(files: Files, site: str, pattern: str) -> list[str]:
    """The absolute paths below `site` that a pattern matches; it begins with letters, which decide fast."""
    known, begin = (
        re.compile(f"{re.escape(site[1:])}/{pattern}"),
        site[1:] + "/" + re.split(r"[^\w/]", pattern, maxsplit=1)[0],
    )
    return sorted(f"/{path}" for path in files if path.startswith(begin) and known.fullmatch(path))


Kind = Literal["found", "missing", "unfit", "twice", "broken", "warning", "note"]
"""`warning` and `note` are no faults: what the run is not known to have used does not work, or is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFinding:
    """What became of one library."""

    kind: Kind
    library: str
    """`libcudnn.so.8`; or another subject."""
    says: str
    """One sentence."""
    path: str = ""
    """Where it is found, links followed; empty where it is not."""
    via: str = ""
    """What leads the loader there: `RUNPATH of …`, `LD_LIBRARY_PATH`, `/etc/ld.so.cache`."""
    version: str = ""
    """As the wheel or the file's name says; empty where neither does."""
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.library}: {self.says}"

    @property
    def advice(self) -> str:
        """The line with what to do."""
        return f"{self}; {self.todo}" if self.todo else str(self)
