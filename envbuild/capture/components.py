"""The parts of CUDA that the process has loaded or the machine has installed, each with what says its version."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from envbuild.capture.loaded import loaded_library, number_from, numbers_from
from envbuild.capture.owners import conda_records, debian_packages
from envbuild.capture.reading import Facts, normal_name, read_text

_PART_LIBRARIES = {
    "libcudart": ("cuda", "cudaRuntimeGetVersion"),
    "libcudnn": ("cudnn", ""),
    "libcudnn_graph": ("cudnn", "cudnnGetVersion"),
    "libcudnn_ops_infer": ("cudnn", "cudnnGetVersion"),
    "libcublas": ("cublas", "cublasGetProperty"),
    "libcufft": ("cufft", "cufftGetProperty"),
    "libcupti": ("cupti", ""),
    "libcurand": ("curand", "curandGetProperty"),
    "libcusolver": ("cusolver", "cusolverGetProperty"),
    "libcusparse": ("cusparse", "cusparseGetProperty"),
    "libcusparseLt": ("cusparselt", "cusparseLtGetProperty"),
    "libnccl": ("nccl", "ncclGetVersion"),
    "libnvJitLink": ("nvjitlink", "nvJitLinkVersion"),
    "libnvinfer": ("tensorrt", "getInferLibVersion"),
    "libnvrtc": ("nvrtc", "nvrtcVersion"),
    "libnvshmem_host": ("nvshmem", ""),
}
"""What each library is, and its function that does nothing but return a constant, without a GPU or a driver.

libcudnn of cuDNN 8 and 9 would load another 65 MB to answer (8.9.7 and 9.26 tried), the ones beside it do not;
cuptiGetVersion crashes without a driver (13.2 tried).
"""
_PARTS = {
    "cublas": "cublas",
    "cuda-nvcc": "nvcc",
    "cuda-runtime": "cuda",
    "cudart": "cuda",
    "cudatoolkit": "cuda",
    "cudnn": "cudnn",
    "cufft": "cufft",
    "cupti": "cupti",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparse": "cusparse",
    "cusparselt": "cusparselt",
    "nccl": "nccl",
    "nvinfer": "tensorrt",
    "nvjitlink": "nvjitlink",
    "nvrtc": "nvrtc",
    "nvshmem": "nvshmem",
    "tensorrt": "tensorrt",
}
_PART = re.compile(
    r"(?:nvidia-)?(?:lib|cuda-)??(%s)(?:-cu\d+|-?\d[\d.-]*(?:-cuda-\d+)?)?" % "|".join(sorted(_PARTS, reverse=True))
)
"""`nvidia-cudnn-cu12`, `nvidia-cublas`, `libcudnn9-cuda-12`, `cuda-cudart-12-4`, `libcudart11.0`, `cudatoolkit`."""
_OWNER_KINDS = {"wheel": "distribution", "debian": "Debian package", "conda": "conda package"}


def find_components(libraries: list[Facts], distributions: dict[str, Facts], root: str = "/") -> list[Facts]:
    """List the parts of CUDA, those that are loaded first; `libraries` are as Native has them."""
    loaded = _loaded_components(libraries)
    brought = {_spoken(library["owner"]) for library in libraries}
    return loaded + [part for part in _installed_components(distributions, root) if part["source"] not in brought]


def _loaded_components(libraries: list[Facts]) -> list[Facts]:
    found: dict[tuple[str, str, str], Facts] = {}
    for library in libraries:
        stem, major = (re.findall(r"^(lib[A-Za-z_]+)(?:-[0-9a-f]+)?\.so\.?(\d*)", library["name"]) or [("", "")])[0]
        name, function = _PART_LIBRARIES.get(stem, ("", ""))
        if stem == "libcudart" and int(major or 0) < 12:
            # That would initialise the driver, after which a process must not fork.
            function = ""
        version, source = _part_version(library, name, function)
        if name and version:
            # What stands for several libraries is the last, as libcudnn_graph.so.9 is beside libcudnn.so.9.
            place = (name, os.path.dirname(library["path"]), major)
            facts = {"name": name, "version": version, "source": source, "loaded": True, "path": library["path"]}
            found[place] = facts
    return sorted(found.values(), key=lambda part: (part["name"], part["path"]))


def _part_version(library: Facts, name: str, function: str) -> tuple[str | None, str]:
    """Ask the library, then its file's name, then the package that brought it."""
    numbers = _library_answer(loaded_library(library["path"]), function) if function else None
    if numbers:
        return ".".join(map(str, numbers)), function + "()"
    # Two numbers are an interface's: libcudart.so.11.0 is that of all of CUDA 11.
    match = re.search(r"\.so\.(\d+(?:\.\d+){2,})$", library["name"])
    if match:
        return match.group(1), "file name"
    owner = library["owner"]
    own = component_of(owner.get("name") or "") == name
    return (leading_numbers(owner.get("version") or "") if own else None), _spoken(owner)


def _library_answer(library: Any, function: str) -> list[int] | None:
    """Call the function, each family in its own way."""
    if library is None:
        return None
    if function.endswith("Property"):
        parts = [numbers_from(library, function, kind) for kind in range(3)]
        return [part[0] for part in parts if part] if all(parts) else None
    if function in ("nvrtcVersion", "nvJitLinkVersion"):
        return numbers_from(library, function, count=2)
    if function in ("cudnnGetVersion", "getInferLibVersion"):
        code = number_from(library, function)
    else:
        code = (numbers_from(library, function) or [0])[0]
    return decoded_version(code, function == "cudaRuntimeGetVersion") if code else None


def decoded_version(code: int, cuda: bool = False) -> list[int]:
    """Take apart a version in one number: of CUDA 12040, of its libraries 8907 and, from 10000 on, 90300."""
    if cuda:
        return [code // 1000, code % 1000 // 10]
    unit = 1000 if code < 10000 else 10000
    return [code // unit, code % unit // 100, code % 100]


def _installed_components(distributions: dict[str, Facts], root: str) -> list[Facts]:
    facts = [
        {"kind": "wheel", "name": normal_name(item["name"]), "version": item["version"]}
        for item in distributions.values()
    ]
    # The bare names belong to others there.
    packages = [item for item in facts if item["name"].startswith(("nvidia-", "tensorrt"))]
    for prefix in {sys.prefix, sys.base_prefix}:
        packages += conda_records(prefix).values()
    debian = {name: version for (name, _), version in debian_packages(root).items()}
    packages += [{"kind": "debian", "name": name, "version": version} for name, version in debian.items()]
    found = [_installed_part(component_of(item["name"]), item["version"], _spoken(item)) for item in packages]
    found.append(_toolkit_part(root))
    return sorted((part for part in found if part), key=lambda part: (part["name"], part["source"]))


def _installed_part(name: str | None, version: str, source: str) -> Facts:
    numbers = leading_numbers(version)
    return {"name": name, "version": numbers, "source": source, "loaded": False} if name and numbers else {}


def _toolkit_part(root: str) -> Facts:
    """Read what CUDA's installer leaves behind."""
    path = os.path.join(root, "usr/local/cuda/version.json")
    try:
        return _installed_part("cuda", json.loads(read_text(path) or "")["cuda"]["version"], path)
    except (ValueError, TypeError, KeyError):
        return {}


def component_of(package: str) -> str | None:
    """Name the part of CUDA that a package brings; None for any other package."""
    match = _PART.fullmatch(package)
    return _PARTS[match.group(1)] if match else None


def leading_numbers(version: str) -> str | None:
    """Cut a distribution's or Debian's version down to its numbers: `1:8.9.7.29-1+cuda12.2` is `8.9.7.29`."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    return match.group(1) if match else None


def _spoken(owner: Facts) -> str:
    return "%s %s" % (_OWNER_KINDS.get(owner["kind"], owner["kind"]), owner.get("name"))
