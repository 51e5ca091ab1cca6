"""TensorFlow's releases, as their wheels on the index say."""

import re
import zipfile
from collections.abc import Iterable, Mapping

from packaging.version import Version

from envbuild.errors import LockError
from envbuild.match.rows import FrameworkProfile, FrameworkWheel
from profiles.refresh.archive import assigned, constants, member, remote_wheel
from profiles.refresh.index import Index
from profiles.refresh.metadata import Need, limits, read_metadata
from profiles.refresh.rows import Report, Row, dotted, other_files, read_rows

DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-cpu-aws")
"""In the order they are written; the last one holds the code of `tensorflow` on aarch64 up to 2.15."""
OLDEST = "1.15"
_CUDA_EXTRA = "and-cuda"
# The package's folder was tensorflow_core until 2.1.
_BUILD_INFO = re.compile(r"tensorflow(_core)?/python/platform/build_info\.py")
_KERAS_NAMES = {"keras", "keras-nightly"}
_KERAS = re.compile(r"tensorflow(_core)?/python/keras/__init__\.py")
_CUDA_CONFIG = re.compile(r"tensorflow(_core)?/include/.*/cuda_config\.h")
_CUDNN_VERSION = re.compile(r"tensorflow(_core)?/include/.*/cudnn_version\.h")
_TEXT = re.compile(r'^#define\s+(TF_\w+)\s+"([^"]*)"', re.MULTILINE)
_NUMBER = re.compile(r"^#define\s+CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)\s*$", re.MULTILINE)
_CAPABILITY = re.compile(r'CudaVersion\("([\d.]+)"\)')
_LIBRARIES = ("cublas", "cublasLt", "cudart", "cudnn", "cufft", "curand", "cusolver", "cusparse")
"""Without which no GPU is registered; observed by running the loader."""
# What cuda_config.h does not say, observed in the same way.
_SINCE = {"cublasLt": Version("2.4")}
_UNTIL = {"curand": Version("2.14")}


def read_tensorflow(index: Index, report: Report) -> FrameworkProfile:
    """Read a wheel of every release, distribution and machine by range requests; LockError names what failed."""
    return read_rows(index, "tensorflow", DISTRIBUTIONS, OLDEST, _read_row, report)


def _read_row(index: Index, row: Row) -> FrameworkWheel:
    newest = row.newest
    with remote_wheel(index, newest.file) as archive:
        metadata = read_metadata(archive)
        needs = metadata.needs(newest.machine, row.pythons)
        build = _build_info(archive)
        config = _cuda_config(archive) if build and build.get("is_cuda_build") else {}
        keras = None if build is None or any(it.name in _KERAS_NAMES for it in needs) else _keras_inside(archive)
        cudnn_built = _cudnn_built(archive) if config else None
    cuda = metadata.needs(newest.machine, row.pythons, _CUDA_EXTRA) if config else ()
    requirements = tuple(it.text for it in cuda if it not in needs)
    return FrameworkWheel(
        distribution=newest.distribution,
        version=str(newest.version),
        machine=newest.machine,
        pythons=row.pythons,
        glibc=dotted(row.glibc),
        extra=_CUDA_EXTRA if requirements else None,
        cuda=config.get("TF_CUDA_VERSION"),
        cudnn=config.get("TF_CUDNN_VERSION"),
        cudnn_built=cudnn_built,
        compute_capabilities=_capabilities(build or {}, config),
        libraries=_libraries(config, newest.version),
        cuda_requirements=requirements,
        limits=limits(needs),
        keras_inside=keras,
        stands_for=None if build is not None else _stands_for(newest.file.name, needs),
        wheel=newest.file.name,
        sha256=newest.file.sha256.hex,
        others=other_files(row),
    )


def _build_info(archive: zipfile.ZipFile) -> Mapping[str, object] | None:
    """What the build tells of itself: a dictionary from 2.3 on, single names before; None where there is no code."""
    name = _member(archive, _BUILD_INFO)
    if name is None:
        return None
    found = constants(archive, name)
    build = found.get("build_info", found)
    if not isinstance(build, dict) or not isinstance(build.get("is_cuda_build"), bool):
        raise zipfile.BadZipFile(f"{name} does not say whether it is a CUDA build")
    return build


def _cuda_config(archive: zipfile.ZipFile) -> dict[str, str]:
    """The versions of CUDA's libraries; better than build_info's, whose '10' is 10.0 once and 10.1 another time."""
    name = _member(archive, _CUDA_CONFIG)
    if name is None:
        raise zipfile.BadZipFile("it is a CUDA build and has no cuda_config.h")
    text = member(archive, name)
    found = {key: value for key, value in _TEXT.findall(text) if value}
    if not {"TF_CUDA_VERSION", "TF_CUDNN_VERSION"} <= found.keys():
        raise zipfile.BadZipFile(f"{name} does not say which CUDA and cuDNN it was built with")
    capabilities = _CAPABILITY.findall(text)
    return found | ({"capabilities": " ".join(capabilities)} if capabilities else {})


def _cudnn_built(archive: zipfile.ZipFile) -> str | None:
    """The exact cuDNN where its header is in the wheel, as it is from 2.17 on."""
    name = _member(archive, _CUDNN_VERSION)
    numbers = dict(_NUMBER.findall(member(archive, name))) if name else {}
    return ".".join(numbers[it] for it in ("MAJOR", "MINOR", "PATCHLEVEL")) if len(numbers) == 3 else None


def _keras_inside(archive: zipfile.ZipFile) -> str | None:
    """The major version of `tensorflow.python.keras`, which tells two versions (TF 1 and TF 2) until 2.2."""
    name = _member(archive, _KERAS)
    versions = assigned(archive, name, "__version__") if name else ()
    majors = {it.partition(".")[0] for it in versions if isinstance(it, str)}
    return majors.pop() if len(majors) == 1 else None


def _capabilities(build: Mapping[str, object], config: Mapping[str, str]) -> tuple[str, ...]:
    """Of build_info from 2.3 on, of cuda_config.h before."""
    if not config:
        return ()
    said = build.get("cuda_compute_capabilities")
    return tuple(map(str, said)) if isinstance(said, list) else tuple(config.get("capabilities", "").split())


def _libraries(config: Mapping[str, str], version: Version) -> tuple[str, ...]:
    """Names with versions: the library's own, else (until 2.2) the one that all share, else (cudart, 2.3) CUDA's."""
    names = []
    for library in _LIBRARIES if config else ():
        key = "CUBLAS" if library == "cublasLt" else library.upper()
        shared = "TF_CUDA_VERSION" if library == "cudart" else "TF_CUDA_LIB_VERSION"
        suffix = config.get(f"TF_{key}_VERSION") or config.get(shared)
        opened = _SINCE.get(library, version) <= version < _UNTIL.get(library, Version("9999"))
        if suffix and opened:
            names.append(f"lib{library}.so.{suffix}")
    return tuple(names)


def _stands_for(wheel: str, needs: Iterable[Need]) -> str:
    """The one requirement of a wheel without code."""
    chosen = [it.text for it in needs]
    if len(chosen) != 1:
        what = f"the wheel has no build_info.py and requires {len(chosen)} others"
        raise LockError(what, where=wheel, todo="report it to the framework's makers")
    return chosen[0]


def _member(archive: zipfile.ZipFile, pattern: re.Pattern[str]) -> str | None:
    """The first of the members that match, by name: copies of a header say the same."""
    return min((it for it in archive.namelist() if pattern.fullmatch(it)), default=None)
