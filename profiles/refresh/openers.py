"""Projects that open CUDA beside a framework, as the wheels of their releases on the index say."""

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, NamedTuple

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuild.errors import LockError
from envbuild.match.rows import Opener
from profiles.refresh.archive import constants, member, remote_wheel
from profiles.refresh.index import Index, IndexFile
from profiles.refresh.metadata import read_metadata
from profiles.refresh.rows import Report, counted, released

_WORKERS = 4
"""Each inflates libraries, which takes a processor."""
_PIECE, _WHOLE = 4 << 20, 256 << 20
"""The begin of a library, where its linker wrote the names, and the largest that is read on if it has none there."""
_NAME = re.compile(
    rb"\0(lib(?:cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|cusparseLt|cudnn|nvrtc|nvJitLink|nccl|nvjpeg|"
    rb"cutensor|cutensorMg|nvcomp|cufile)\.so\.\d+(?:\.\d+)?)(?=\0)"
)
_BUNDLED = re.compile(r"[^/]+\.libs/(lib\w+)[-.]\w+(\.so\.\d+)[\d.]*")
"""`torchvision.libs/libcudart.41118559.so.12`: a copy under a name of the wheel's own."""
_OF_TOOLKIT = re.compile(r"lib(cudart|cublas|cublasLt|nvrtc|nvJitLink|nvjpeg)\.so\.(\d+)[\d.]*")
"""Libraries whose number is that of CUDA."""
_LABEL = re.compile(r"\+cu(\d+)(\d)\Z")
_BUILD = re.compile(r"bitsandbytes/libbitsandbytes_cuda(\d+)(\d)\.so")
_PRELOADED = re.compile(r'(?:nvidia\.\w+, +|_load\(os\.path\.join\(_\w+, )"(lib[\w.]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Project:
    """A project, and what of its wheels tells what it opens."""

    name: str
    oldest: str
    objects: str = ""
    """Pattern of the shared objects that are read."""
    library: str = ""
    """The distribution that has them, in the same version, where it is another one."""
    also: tuple[str, ...] = ()
    """What its Python opens by a name that it makes at run time; `{cuda}` is the major version."""
    optional: str = "nccl|cufile|nvjpeg|cusparseLt"
    """Pattern of the libraries whose loss costs a feature only."""
    after: Literal["torch", "tensorflow", ""] = ""
    cpu: str = ""
    gpu_only: bool = False
    pair: str = ""
    """What it needs where METADATA does not require that distribution: `tensorflow==2.15.*` of `tensorflow==`."""
    note: str = ""


_RAPIDS = (("cudf", "cudf", "24.12"), ("rmm", "rmm", "25.6"), ("pylibraft", "raft", "25.6"), ("cuml", "cuml", "25.10"))
_PROJECTS = (
    _Project(
        name="onnxruntime-gpu", oldest="1.16", cpu="onnxruntime",
        objects=r"onnxruntime/capi/libonnxruntime_providers_cuda\.so",
    ),
    *(
        _Project(
            name=f"cupy-cuda{major}x", oldest="12.3", also=("libnvrtc.so.{cuda}",),
            objects=r"cupy_backends/cuda/(api/runtime|libs/\w+)\.[^/]+\.so|cupy/cuda/cufft\.[^/]+\.so",
            optional="cudart|nccl|cudnn|cutensor|cutensorMg|nvJitLink", gpu_only=True,
        )
        for major in (11, 12, 13)
    ),
    _Project(
        name="xgboost", oldest="2.1", also=("libnccl.so.2",),
        note="runs on the CPU too; CUDA is linked statically",
    ),
    _Project(
        name="catboost", oldest="1.2",
        note="runs on the CPU too; CUDA is linked statically, and the wheel does not say which",
    ),
    _Project(
        name="vllm", oldest="0.2.2", after="torch", gpu_only=True,
        objects=r"vllm/_C(_\w+)?(\.abi3|\.cpython[^/]+)?\.so",
    ),
    _Project(name="faiss-gpu", oldest="1.7.2", objects=r"faiss(_gpu\.libs)?/.*\.so.*", cpu="faiss-cpu"),
    *(
        _Project(
            name=f"faiss-gpu-cu{major}", oldest="1.8", cpu="faiss-cpu",
            objects=r"faiss_gpu_cu\d+\.libs/libfaiss.*|faiss/_swigfaiss\.so",
        )
        for major in (11, 12)
    ),
    _Project(name="bitsandbytes", oldest="0.41", after="torch"),
    *(
        _Project(
            name=f"{name}-cu{major}", oldest=oldest, library=f"lib{stem}-cu{major}",
            objects=rf"lib{stem}/lib64/lib{stem}\.so", optional="cufile|nvcomp", gpu_only=True,
        )
        for name, stem, oldest in _RAPIDS
        for major in (12, 13)
    ),
    _Project(name="tensorflow-text", oldest="2.14", after="tensorflow", pair="tensorflow=="),
    _Project(
        name="torchvision", oldest="0.16", after="torch", pair="torch>=",
        objects=r"torchvision/(_C|image)(_stable)?\.so",
    ),
    _Project(
        name="torchaudio", oldest="2.1", after="torch", pair="torch>=",
        objects=r"torchaudio/lib/(lib|_)torchaudio(\.abi3)?\.so",
    ),
)  # fmt: skip


def read_openers(index: Index, report: Report) -> tuple[Opener, ...]:
    """Read the newest patch of each minor release for x86_64; LockError names the wheel that cannot be read."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        names = {name for it in _PROJECTS for name in (it.name, it.library, it.cpu) if name}
        pages = dict(zip(names, pool.map(lambda it: _releases(index, it), names), strict=True))
        wheels = [_Wheel(it, version, pages) for it in _PROJECTS for version in _newest_patches(it, pages[it.name])]
        rows = list(counted(pool.map(lambda it: _read(index, it), wheels), len(wheels), report))
    if not rows:
        raise LockError("the package index has none of the projects", todo="check the index settings of pip or uv")
    groups = groupby(rows, key=lambda it: replace(it, first="1", last="1", source="-"))
    merged = [(rows[0], rows[-1]) for rows in (list(group) for _, group in groups)]
    return tuple(replace(last, first=first.first, cpu_releases=_near(first, last, pages)) for first, last in merged)


class _Wheel(NamedTuple):
    """A release that is read."""

    project: _Project
    version: Version
    pages: Mapping[str, Mapping[Version, IndexFile]]

    @property
    def file(self) -> IndexFile:
        return self.pages[self.project.name][self.version]

    @property
    def library(self) -> IndexFile:
        """The wheel with the shared objects."""
        page = self.pages[self.project.library or self.project.name]
        return page[max(it for it in page if it.release[:2] == self.version.release[:2])]


def _releases(index: Index, name: str) -> dict[Version, IndexFile]:
    """For each release one wheel for Linux on x86_64, of the newest glibc and Python, in rising order."""
    found = []
    for file in index.files(name):
        version = released(file.name, "0", name)
        tags = parse_wheel_filename(file.name)[3] if version else frozenset()
        if version and any("manylinux" in it.platform and "x86_64" in it.platform for it in tags):
            # Of two builds the one with CUDA needs the newer glibc; a free-threaded one is not for every Python.
            glibc = max(map(int, re.findall(r"manylinux_2_(\d+)_", file.name)), default=17)
            python = max(int(it.interpreter[2:]) for it in tags)
            threaded = any(it.abi.endswith("t") for it in tags)
            found.append(((version, not threaded, glibc, python, file.name), file))
    return {key[0]: file for key, file in sorted(found, key=lambda it: it[0])}


def _newest_patches(project: _Project, page: Mapping[Version, IndexFile]) -> Iterator[Version]:
    versions = [it for it in page if it >= Version(project.oldest)]
    return (list(group)[-1] for _, group in groupby(versions, key=lambda it: it.release[:2]))


def _near(first: Opener, last: Opener, pages: Mapping[str, Iterable[Version]]) -> tuple[str, ...]:
    """The releases of the distribution for the CPU in a row's minor releases."""
    begin, end = (Version(it).release[:2] for it in (first.first, last.last))
    return tuple(str(it) for it in pages.get(last.cpu, ()) if begin <= it.release[:2] <= end)


def _read(index: Index, wheel: _Wheel) -> Opener:
    """One release's row."""
    project, version = wheel.project, wheel.version
    with remote_wheel(index, wheel.library) as archive:
        names = _opened(archive, project.objects)
        suffix = re.search(r"-cu(?:da)?(\d+)", project.name)
        also = {it.format(cuda=suffix[1]) for it in project.also} if suffix else set[str]()
        preloads, builds = _preloads(archive, names | also), _builds(archive)
        exact = _cuda_version(archive, project.name.replace("-", "_"))
        metadata = read_metadata(archive)
    if project.library:
        with remote_wheel(index, wheel.file) as archive:
            metadata = read_metadata(archive)
    required = {canonicalize_name(it.name) for it in metadata.requirements}
    numbers = {match[2] for it in names if (match := _OF_TOOLKIT.fullmatch(it))}
    nccl = (it.rpartition("cu")[2] for it in required if it.startswith("nvidia-nccl-cu"))
    cuda = exact or (suffix and suffix[1]) or max(numbers, key=int, default="") or next(nccl, "")
    major = cuda.partition(".")[0]
    # A library that loads what is there names it for each CUDA.
    names = {it for it in names if not (match := _OF_TOOLKIT.fullmatch(it)) or match[2] == major}
    known = {*map(_stem, names)}
    names |= {it.format(cuda=major) for it in project.also if _stem(it) not in known}
    # What CuPy's Python opens by path, it opens when a function first needs it; the import takes NVRTC alone.
    lazy = {it.rpartition("/")[2] for it in preloads} - also if also else set[str]()
    optional = {it for it in names if it in lazy or re.fullmatch(project.optional, _stem(it))}
    pair = re.match(r"[\w-]+", project.pair)
    paired = not pair or any(pair[0] == it for it in required)
    minor = ".".join(map(str, version.release[:2]))
    return Opener(
        distribution=project.name,
        first=minor,
        last=str(version),
        cuda=cuda,
        opens=tuple(sorted(names - optional)),
        optional=tuple(sorted(optional)),
        after=project.after,
        preloads=preloads,
        # RAPIDS' own Python searches for them, too.
        needs_path=bool(names - optional) and not (project.after or project.library or preloads),
        builds=builds,
        cpu=project.cpu,
        gpu_only=project.gpu_only,
        requires=() if paired else (f"{project.pair}{minor}{'.*' if '==' in project.pair else ''}",),
        note=project.note,
        source=f"{wheel.library.name} (sha256:{wheel.library.sha256.hex})",
    )


def _opened(archive: zipfile.ZipFile, pattern: str) -> set[str]:
    """CUDA's libraries that shared objects name, but for the wheel's own copies."""
    names = set[str]()
    for info in archive.infolist():
        if pattern and re.fullmatch(pattern, info.filename):
            names |= _named(archive, info)
    return names - {match[1] + match[2] for it in archive.namelist() if (match := _BUNDLED.fullmatch(it))}


def _named(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> set[str]:
    """The names in one object: those at its begin, else (where a tool has moved them) all."""
    found, kept = set[str](), b""
    with archive.open(info) as file:
        while piece := file.read(_PIECE):
            found |= {it.decode() for it in _NAME.findall(kept + piece)}
            if not kept and (found or info.compress_size > _WHOLE):
                break
            kept = piece[-100:]
    return found


def _preloads(archive: zipfile.ZipFile, names: Iterable[str]) -> tuple[str, ...]:
    """What its Python opens by path: faiss by a list or one by one, CuPy from 14 on by NVIDIA's own search."""
    found = set[str]()
    for file in {"faiss/_preload_library.json", "faiss/__init__.py", "cupy/_environment.py"} & {*archive.namelist()}:
        text = member(archive, file)
        if file.endswith(".json"):
            found |= {it["library"] for it in json.loads(text)["preload-library"]}
        else:
            found |= {*_PRELOADED.findall(text), *(names if "load_nvidia_dynamic_lib(lib)" in text else ())}
    return tuple(f"nvidia/*/lib/{it}" for it in sorted(found))


def _builds(archive: zipfile.ZipFile) -> tuple[str, ...]:
    """The CUDA of each of bitsandbytes' builds; the major ones where it takes any of the same major version."""
    found = [match.groups() for it in archive.namelist() if (match := _BUILD.fullmatch(it))]
    nearest = found and "_find_cuda_libs" in member(archive, "bitsandbytes/cextension.py")
    return tuple(sorted({major if nearest else f"{major}.{minor}" for major, minor in found}))


def _cuda_version(archive: zipfile.ZipFile, package: str) -> str:
    """The CUDA that it says it was built with: ONNX Runtime in so many words, PyTorch's projects by a label."""
    own = next((it for it in archive.namelist() if it.endswith("/build_and_package_info.py")), "")
    if own:
        return str(constants(archive, own).get("cuda_version", ""))
    name = f"{package}/version.py"
    version = str(constants(archive, name).get("__version__", "")) if name in archive.namelist() else ""
    return ".".join(match.groups()) if (match := _LABEL.search(version)) else ""


def _stem(name: str) -> str:
    """`cublasLt` of `libcublasLt.so.12`."""
    return name.partition(".so")[0].removeprefix("lib")
