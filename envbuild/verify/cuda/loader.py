"""The loader proof: every CUDA library that a framework opens is found in the image; no GPU is needed.

TensorFlow's are opened by libtensorflow_framework (tsl/platform/default/load_library.cc), JAX's by Python first (the
plug-in's `_load_nvidia_libraries`) and then by its plug-in, PyTorch's are needed by its own libraries (DT_NEEDED).
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from envbuild.errors import VerifyError
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.rootfs import resolve
from envbuild.recipe import Base, Recipe
from envbuild.verify.cuda.files import (
    InstalledFile,
    PlannedImage,
    WheelFiles,
    framework_wheel,
    plan_image,
    read_base_files,
)
from envbuild.verify.cuda.process import Loaded, MissingLibrary, Process

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


Files = Mapping[str, InstalledFile]
"""By path below the root of the image."""


def openings(framework: str, wheel: FrameworkWheel, site: str, files: Files) -> tuple[Opening, ...]:
    """List what a framework opens, in its order; `site` is an absolute path. Empty for a CPU build."""
    if wheel.cuda is None:
        return ()
    plan = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}
    return tuple(plan[framework](wheel, site, files))


def _tensorflow(wheel: FrameworkWheel, site: str, files: Files) -> Iterator[Opening]:
    caller = _first(files, site, r"tensorflow(_core)?/libtensorflow_framework\.so\.\d+")
    yield Opening(name=caller)
    yield from (Opening(name=name, by=caller) for name in _in_order(wheel.libraries))
    major = f"{wheel.cuda}".partition(".")[0]
    if int(major) >= 12:
        yield Opening(name=f"libcupti.so.{major}", by=caller, without="the profiler sees no GPU")


def _jax(wheel: FrameworkWheel, site: str, files: Files) -> Iterator[Opening]:
    plugin = _first(files, site, r"jax_plugins/xla_cuda\d+/xla_cuda_plugin\.so")
    for folder, inside in _preloaded(files, site):
        places = (f"{site}/nvidia/{folder}/lib/{name}" for name in inside)
        yield from (Opening(name=place, quiet=True) for place in places if place[1:] in files)
    yield Opening(name=plugin)
    cudnn = f"libcudnn.so.{(wheel.cudnn or '').partition('.')[0]}"
    names = wheel.libraries or (*_BY_CUDA.get(f"{wheel.cuda}".partition(".")[0], ()), cudnn)
    yield from (Opening(name=name, by=plugin) for name in _in_order(names))
    rest = (name for name in names if stem(name) not in _ORDER)
    yield from (Opening(name=name, by=plugin, without="what is made of it does not run") for name in rest)
    yield from (Opening(name=path) for path in _matching(files, site, r"jax_cuda\d+_plugin/_\w+\.so"))


def _preloaded(files: Files, site: str) -> Iterator[tuple[str, list[str]]]:
    """What the plug-in's own Python opens by path, folder by folder."""
    for path in _matching(files, site, r"jax_plugins/xla_cuda\d+/__init__\.py"):
        file = files[path[1:]]
        text = file.archive.read(file.member).decode(errors="replace") if file.member else ""
        for folder, names in _PRELOADED.findall(text):
            yield folder.replace(".", "/"), re.findall(r"""["']([\w.]+)["']""", names)


def _torch(_: FrameworkWheel, site: str, files: Files) -> Iterator[Opening]:
    """Its libraries; where the first cannot be opened, Python opens NVIDIA's by path and tries again."""
    first, *rest = _TORCH
    yield from (Opening(name=path, quiet=True) for path in _matching(files, site, f"torch/{first}"))
    for stem in _TORCH_PRELOADED:
        nvidia = _matching(files, site, rf"nvidia/\w+/lib/lib{stem}\.so\.[\w.]*\d")
        yield from (Opening(name=path, quiet=True) for path in nvidia)
    for pattern in (first, *rest):
        yield from (Opening(name=path) for path in _matching(files, site, f"torch/{pattern}"))


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
    known = re.compile(f"{re.escape(site[1:])}/{pattern}")
    return sorted(f"/{path}" for path in files if known.fullmatch(path))


Kind = Literal["found", "missing", "unfit", "twice", "note"]
"""`note` is not a fault: something optional is missing, or not known."""
_LIKELY = re.compile(r"libcudnn_\w+\.so\.\d+|libnvJitLink\.so\.\d+|libtorch_\w+\.so")
_CUDNN = re.compile(r"libcudnn\.so\.\d+")
_BROUGHT_BY = {"cudart": "cuda-runtime", "cublasLt": "cublas", "cupti": "cuda-cupti", "nvrtc": "cuda-nvrtc"}
"""Stems of the distributions whose names are not the library's own in lower case."""
_PARTS = {
    "ptxas": ("bin/ptxas", "kernels are compiled by the driver, or not at all"),
    "libdevice.10.bc": ("nvvm/libdevice/libdevice.10.bc", "what XLA compiles (jit_compile) fails"),
}
_FLAG = re.compile(r"--xla_gpu_cuda_data_dir=(\S+)")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProof:
    """What the loader finds in an image for one framework."""

    framework: str
    """`tensorflow 2.15.1`."""
    cuda: bool
    """False for a CPU build, which opens nothing."""
    findings: tuple[LoaderFinding, ...]
    """What is found in the loader's order, then what is wrong, then notes."""

    @property
    def faults(self) -> tuple[LoaderFinding, ...]:
        """What makes the proof fail."""
        return tuple(it for it in self.findings if it.kind not in ("found", "note"))

    @property
    def notes(self) -> tuple[LoaderFinding, ...]:
        """What is worth a line, and fails nothing."""
        return tuple(it for it in self.findings if it.kind == "note")

    @property
    def summary(self) -> str:
        """One line."""
        found = sum(it.kind == "found" for it in self.findings)
        if not self.cuda:
            return f"{self.framework} is a CPU build and opens no CUDA library"
        if not self.faults:
            return f"all {found} CUDA libraries that {self.framework} opens or needs are found"
        names = ", ".join(dict.fromkeys(it.library for it in self.faults))
        return f"{self.framework} would not run on a GPU: {names}"

    def require(self) -> None:
        """Raise VerifyError with every fault and what to do, unless there is none."""
        if self.faults:
            lines = "\n  - ".join((self.summary, *map(str, self.faults)))
            todo = "; ".join(dict.fromkeys(it.todo for it in self.faults if it.todo))
            raise VerifyError(lines, where="loader proof", todo=todo)


def prove_loading(
    stack: Stack, recipe: Recipe, base: Base, wheels: Mapping[Digest, Path], profiles: Profiles, facts: Path
) -> LoaderProof:
    """Search as the loader would in the image; `wheels` are verified files by their sha256.

    `facts` is a folder that remembers what was read, by content. WheelError and BaseError where files cannot be read.
    """
    row = framework_wheel(stack, profiles)
    name = f"{row.distribution} {row.version}"
    if row.cuda is None:
        return LoaderProof(framework=name, cuda=False, findings=())
    with ExitStack() as opened:
        files = WheelFiles(recipe, wheels, facts, opened)
        image = plan_image(stack, row, recipe, base, profiles, read_base_files(base, facts), files)
        findings = tuple(_findings(image, recipe.python_path))
        files.keep()
    return LoaderProof(framework=name, cuda=True, findings=findings)


def _findings(image: PlannedImage, program: str) -> Iterator[LoaderFinding]:
    process = image.process()
    losses = [(Opening(name=program), missing) for missing in process.start(program)]
    plan = openings(image.framework, image.wheel, image.site, image.wheels.files)
    # read at once what is likely to be loaded; the rest is read when it is
    names, files = {posixpath.basename(it.name) for it in plan}, image.wheels.files
    image.wheels.warm(it for it in files if (name := posixpath.basename(it)) in names or _LIKELY.fullmatch(name))
    for opening in plan:
        losses += _open(process, opening)
    for library in [it for it in process.loaded if _CUDNN.fullmatch(posixpath.basename(it.path))]:
        for opening in cudnn_openings(library.real, image.siblings(library.real), f"{image.wheel.cuda}"):
            losses += _open(process, opening)
    libraries = [it for it in process.loaded if it.real and CUDA.fullmatch(posixpath.basename(it.path))]
    for library in libraries:
        via, _, owner = library.via.partition(" of ")
        via = f"{via} of {image.short(owner)}" if owner else via
        name, version = posixpath.basename(library.path), image.version(library.real)
        says = f"{image.short(library.real)}{f' ({version})' if version else ''}, by {via}"
        yield LoaderFinding(kind="found", library=name, says=says, path=library.real, via=via, version=version)
    yield from _missing(image, losses)
    for library in libraries:
        yield from _fit(image, library)
    yield from _two_sources(image)
    yield from _compiler_findings(image)


def _open(process: Process, opening: Opening) -> list[tuple[Opening, MissingLibrary]]:
    caller = process.find(opening.by) if opening.by else process.program
    if opening.by and caller is None:
        return []  # the caller itself is missing, which has a finding of its own
    return [(opening, missing) for missing in process.open(opening.name, caller)[1]]


def _missing(image: PlannedImage, losses: Sequence[tuple[Opening, MissingLibrary]]) -> Iterator[LoaderFinding]:
    """One finding for each library: a fault where anything needs it, else a note, else nothing."""
    for name in dict.fromkeys(missing.name for _, missing in losses):
        found = [(opening, missing) for opening, missing in losses if missing.name == name and not opening.quiet]
        needed = [it for it in found if not it[0].without]
        for opening, missing in (needed or found)[:1]:
            by = f"{image.short(missing.needed_by)} needs it, and " if missing.needed_by else ""
            where, todo = _remedy(image, name)
            without = f"; {opening.without}" if opening.without else ""
            yield LoaderFinding(
                kind="note" if opening.without else "missing",
                library=image.short(name),
                says=f"{by}{image.short(missing.why)}{where}{without}",
                todo="" if opening.without else todo,
            )


def _remedy(image: PlannedImage, name: str) -> tuple[str, str]:
    """Where it lies all the same, and what can be done."""
    base = posixpath.basename(name)
    if places := [posixpath.dirname(path) for path in image.places(base) if resolve(image.tree, path)]:
        row = "a [[library_path]] row in profiles/cuda.toml, or ENV in the base"
        return f"; it lies in {image.short(places[0])}", f"put {places[0]} on LD_LIBRARY_PATH: {row}"
    known = stem(base)
    requirement = image.wheel.requirement(_BROUGHT_BY.get(known, known.lower()))
    if requirement:
        todo = f"install {requirement}, which brings {base}"
    else:
        todo = f"give a base that has {base} by --base" + (", or use --variant cpu" if CUDA.fullmatch(base) else "")
    return "; it is nowhere in the image", todo


def _fit(image: PlannedImage, library: Loaded) -> Iterator[LoaderFinding]:
    """The version of a library against the one that the framework was built with."""
    name, version, pin = posixpath.basename(library.path), image.version(library.real), image.wheel.pin
    if _CUDNN.fullmatch(name):
        floor, source = _cudnn_floor(image.framework, image.wheel, image.profiles)
        fits = _cudnn_fits(version, floor)
        needs = f"{pin} takes cuDNN {floor} or a later minor version of it ({source})"
        if fits is None:
            yield LoaderFinding(kind="note", library=name, says=f"{needs}; the version of this one is unknown")
        elif not fits:
            todo = f"install cuDNN {floor} or a later minor version of the same major one"
            yield LoaderFinding(kind="unfit", library=name, says=f"{needs}; this is {version}", todo=todo)
    built = f"{image.wheel.cuda}"
    if stem(name) == "cudart" and version and Version(version).release[:2] < Version(built).release[:2]:
        says = f"CUDA {version} is older than the {built} that {pin} was built with"
        yield LoaderFinding(kind="note", library=name, says=says)


def _two_sources(image: PlannedImage) -> Iterator[LoaderFinding]:
    """CUDA has one source in an image: which of two copies is taken depends on who loads it first."""
    wheels, base = (
        {core(path): path for path in paths if core(path)} for paths in (image.wheels.files, image.base.tree)
    )
    for name in sorted(wheels.keys() & base.keys()):
        library = posixpath.basename(wheels[name])
        says = f"it comes from a wheel ({image.short('/' + wheels[name])}) and from the base (/{base[name]})"
        todo = "give a base without CUDA by --base, or take CUDA from the base by --cuda-source base"
        yield LoaderFinding(kind="twice", library=library, says=says, todo=todo)


def _cudnn_floor(framework: str, wheel: FrameworkWheel, profiles: Profiles) -> tuple[str, str]:
    """The lowest cuDNN that a release accepts and the source of that; the major version alone where no more is known.

    cuDNN of the same major version works when its minor version is that of the build or a later one.
    """
    if wheel.cudnn_built:
        return wheel.cudnn_built, wheel.source
    row = next((it for it in profiles.cudnn_floors if it.covers(framework, wheel.version)), None)
    return (row.minimum, row.source) if row else (wheel.cudnn or "", wheel.source)


def _cudnn_fits(found: str, floor: str) -> bool | None:
    """Whether a cuDNN serves a build; None where one of the two versions is not known well enough."""
    try:
        own, least = Version(found).release, Version(floor).release
    except InvalidVersion:
        return None
    if own[0] != least[0]:
        return False
    return own[1] >= least[1] if len(own) > 1 and len(least) > 1 else None


def _compiler_findings(image: PlannedImage) -> Iterator[LoaderFinding]:
    """Note what XLA's own compiler does not find: it starts ptxas and reads libdevice, both in a few folders.

    PyTorch compiles with what Triton brings.
    """
    if image.framework not in ("tensorflow", "jax"):
        return
    flag = _FLAG.search(image.variables.get("XLA_FLAGS", ""))
    folders = [flag[1]] if flag else []
    if image.framework == "jax":
        folders += [f"{image.site}/nvidia/{folder}" for folder in ("cuda_nvcc", "cu13")]
    elif not any(it.covers(image.framework, image.wheel.version) for it in image.profiles.compilers):
        folders.append(f"{image.site}/nvidia/cuda_nvcc")  # by itself, except for the releases that these rows name
    folders.append("/usr/local/cuda")
    for name, (place, without) in _PARTS.items():
        if not any(resolve(image.tree, f"{folder}/{place}") for folder in folders):
            says = f"it is in none of the folders where XLA looks for it ({', '.join(folders)}); {without}"
            yield LoaderFinding(kind="note", library=name, says=says)
