"""The shared libraries that the process has loaded: parts of CUDA, BLAS and OpenMP, and what installed them."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from envbuild.capture.files import Facts, decoded, normal_name, output_of, read_bytes, read_text
from envbuild.capture.redact import scrub

DELETED = " (deleted)"
"""The kernel adds it to the path of a file that was replaced or removed."""
_MAPPED = re.compile(r"/.*\.so(?:\.[\w.]+)?(?: \(deleted\))?")
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CUDA_LIBRARIES = {
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
"""The component of each library, and its function that only returns a constant, without a GPU or a driver.

libcudnn of cuDNN 8 and 9 would load another 65 MB to answer (8.9.7 and 9.26 tried), the ones beside it do not;
cuptiGetVersion crashes without a driver (13.2 tried).
"""
_PACKAGE = re.compile(
    r"(?:nvidia-)?(?:lib|cuda-)??(tensorrt|nvshmem|nvrtc|nvjitlink|nvinfer|nccl|cusparselt|cusparse|cusolver|curand|cupti"
    r"|cufft|cudnn|cudatoolkit|cudart|cuda-runtime|cuda-nvcc|cublas)(?:-cu\d+|-?\d[\d.-]*(?:-cuda-\d+)?)?"
)
"""`nvidia-cudnn-cu12`, `nvidia-cublas`, `libcudnn9-cuda-12`, `cuda-cudart-12-4`, `libcudart11.0`, `cudatoolkit`."""
_PACKAGE_COMPONENTS = {
    "cuda-nvcc": "nvcc",
    "cuda-runtime": "cuda",
    "cudart": "cuda",
    "cudatoolkit": "cuda",
    "nvinfer": "tensorrt",
}
"""Those whose packages have other names."""
_OWNER_KINDS = {"wheel": "distribution", "debian": "Debian package", "conda": "conda package"}


def native_facts(
    distributions: dict[str, Facts], process: str, maps: str = "/proc/self/maps", root: str = "/"
) -> Facts:
    """Describe the libraries in /proc/self/maps; `process` is `run` or `fresh`, `root` the package managers' root."""
    paths = mapped_libraries(maps)
    owners = find_owners(paths, distributions, root)
    libraries = [
        {
            "name": _printable(os.path.basename(path).replace(DELETED, "")),
            "path": _printable(path),
            "owner": owners.get(path, {"kind": "none"}),
        }
        for path in paths
    ]
    return {
        "process": process,
        "libraries": libraries,
        "components": _find_components(libraries, distributions, root),
        "thread_pools": _find_thread_pools(libraries),
    }


def _printable(name: str) -> str:
    return _CONTROL_CHARACTERS.sub("\ufffd", scrub(name))


def mapped_libraries(maps: str = "/proc/self/maps") -> list[str]:
    """List the shared objects that a process has mapped, sorted by path; `maps` has the format of proc(5)."""
    fields = (line.split(None, 5) for line in (read_bytes(maps) or b"").split(b"\n") if b".so" in line)
    paths = {os.fsdecode(field[5]) for field in fields if len(field) == 6}
    return sorted(path for path in paths if _MAPPED.fullmatch(path))


def _loaded_library(path: str) -> Any:
    """Return a handle to a library that is loaded already; None if it is not. It never loads one."""
    try:
        # Some interpreters were built without it.
        import ctypes

        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    except (ImportError, AttributeError, OSError):
        return None


def _call_int(library: Any, function: str) -> int | None:
    """Call `int function(void)`; None where there is no such function."""
    return int(getattr(library, function)()) if hasattr(library, function) else None


def _call_text(library: Any, function: str, *arguments: int) -> str | None:
    """Call `char *function(int...)`; None where there is no such function, or for NULL."""
    import ctypes

    if not hasattr(library, function):
        return None
    call = getattr(library, function)
    call.restype = ctypes.c_char_p
    text = call(*arguments)
    return decoded(text) if text is not None else None


def _call_output(library: Any, function: str, *arguments: int, count: int = 1) -> list[int] | None:
    """Call `int function(int..., int *...)` with `count` pointers; None where it is missing or fails (is not 0)."""
    import ctypes

    values = [ctypes.c_int() for _ in range(count)]
    if not hasattr(library, function) or getattr(library, function)(*arguments, *map(ctypes.byref, values)):
        return None
    return [value.value for value in values]


def _find_components(libraries: list[Facts], distributions: dict[str, Facts], root: str) -> list[Facts]:
    """List the parts of CUDA, the loaded ones first, each with the source of its version."""
    found: dict[tuple[str, str, str], Facts] = {}
    for library in libraries:
        stem, major = (re.findall(r"^(lib[A-Za-z_]+)(?:-[0-9a-f]+)?\.so\.?(\d*)", library["name"]) or [("", "")])[0]
        name, function = _CUDA_LIBRARIES.get(stem, ("", ""))
        if stem == "libcudart" and int(major or 0) < 12:
            # That would initialise the driver, after which a process must not fork.
            function = ""
        version, source = _component_version(library, name, function)
        if name and version:
            # Of several libraries of a component the last counts, as libcudnn_graph.so.9 beside libcudnn.so.9.
            place = (name, os.path.dirname(library["path"]), major)
            facts = {"name": name, "version": version, "source": source, "loaded": True, "path": library["path"]}
            found[place] = facts
    loaded = sorted(found.values(), key=lambda item: (item["name"], item["path"]))
    owners = {_owner_text(library["owner"]) for library in libraries}
    return loaded + [item for item in _installed_components(distributions, root) if item["source"] not in owners]


def _component_version(library: Facts, name: str, function: str) -> tuple[str | None, str]:
    """Take the version from the library, else from its file name, else from the package that installed it."""
    numbers = _library_version(_loaded_library(library["path"]), function) if function else None
    if numbers:
        return ".".join(map(str, numbers)), function + "()"
    # Two numbers are an interface's: all of CUDA 11 has libcudart.so.11.0.
    match = re.search(r"\.so\.(\d+(?:\.\d+){2,})$", library["name"])
    if match:
        return match.group(1), "file name"
    owner = library["owner"]
    own = component_of(owner.get("name") or "") == name
    return (leading_numbers(owner.get("version") or "") if own else None), _owner_text(owner)


def _library_version(library: Any, function: str) -> list[int] | None:
    """Call the function by the convention of its library."""
    if library is None:
        return None
    if function.endswith("Property"):
        parts = [_call_output(library, function, kind) for kind in range(3)]
        return [part[0] for part in parts if part] if all(parts) else None
    if function in ("nvrtcVersion", "nvJitLinkVersion"):
        return _call_output(library, function, count=2)
    if function in ("cudnnGetVersion", "getInferLibVersion"):
        code = _call_int(library, function)
    else:
        code = (_call_output(library, function) or [0])[0]
    return decoded_version(code, function == "cudaRuntimeGetVersion") if code else None


def decoded_version(code: int, cuda: bool = False) -> list[int]:
    """Split a version in one number: of CUDA 12040, of its libraries 8907 and, from 10000 on, 90300."""
    if cuda:
        return [code // 1000, code % 1000 // 10]
    unit = 1000 if code < 10000 else 10000
    return [code // unit, code % unit // 100, code % 100]


def _installed_components(distributions: dict[str, Facts], root: str) -> list[Facts]:
    wheels = ((normal_name(item["name"]), item["version"]) for item in distributions.values())
    # Without a prefix the names on the index belong to other projects.
    packages: list[Facts] = [
        {"kind": "wheel", "name": name, "version": version}
        for name, version in wheels
        if name.startswith(("nvidia-", "tensorrt"))
    ]
    for prefix in {sys.prefix, sys.base_prefix}:
        packages += conda_records(prefix).values()
    debian = {name: version for (name, _), version in debian_packages(root).items()}
    packages += [{"kind": "debian", "name": name, "version": version} for name, version in debian.items()]
    versions = [(component_of(item["name"]), item["version"], _owner_text(item)) for item in packages]
    # CUDA's installer leaves this file behind.
    path = os.path.join(root, "usr/local/cuda/version.json")
    with suppress(ValueError, TypeError, KeyError):
        versions.append(("cuda", str(json.loads(read_text(path) or "")["cuda"]["version"]), path))
    found = [
        {"name": name, "version": leading_numbers(version), "source": source, "loaded": False}
        for name, version, source in versions
    ]
    valid = (item for item in found if item["name"] and item["version"])
    return sorted(valid, key=lambda item: (str(item["name"]), str(item["source"])))


def component_of(package: str) -> str | None:
    """Name the part of CUDA that a package installs; None for any other package."""
    match = _PACKAGE.fullmatch(package)
    return _PACKAGE_COMPONENTS.get(match.group(1), match.group(1)) if match else None


def leading_numbers(version: str) -> str | None:
    """Cut a distribution's or Debian's version down to its numbers: `1:8.9.7.29-1+cuda12.2` is `8.9.7.29`."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    return match.group(1) if match else None


def _owner_text(owner: Facts) -> str:
    return "%s %s" % (_OWNER_KINDS.get(owner["kind"], owner["kind"]), owner.get("name"))


def _find_thread_pools(libraries: list[Facts]) -> list[Facts]:
    """Ask each BLAS and OpenMP library, whose functions threadpoolctl's documentation lists."""
    pools: list[Facts] = []
    mkl_ready = any(library["name"].startswith("libmkl_core.") for library in libraries)
    for library in libraries:
        kind = next((kind for kind, (pattern, _) in _THREAD_POOLS.items() if re.match(pattern, library["name"])), None)
        if kind is None:
            continue
        # libmkl_rt would load MKL's other libraries to answer.
        silent = library["name"].startswith("libmkl_rt.") and not mkl_ready
        handle = None if silent else _loaded_library(library["path"])
        facts = _THREAD_POOLS[kind][1](handle) if handle is not None else {}
        if facts is not None:
            pools.append(dict(facts, kind=kind, library=library["name"]))
    return pools


def _openblas(library: Any) -> Facts | None:
    # SciPy's and NumPy's own have other names, and so have those with 64-bit indices.
    names = ["%sopenblas_%%s%s" % (prefix, suffix) for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")]
    name = next((name for name in names if hasattr(library, name % "get_num_threads")), None)
    if name is None:
        return None
    version = re.match(r"OpenBLAS (\S+)", _call_text(library, name % "get_config") or "")
    return {
        "version": version.group(1) if version else None,
        "threads": _call_int(library, name % "get_num_threads"),
        "architecture": _call_text(library, name % "get_corename"),
    }


def _mkl(library: Any) -> Facts | None:
    if not hasattr(library, "MKL_Get_Max_Threads"):
        return None
    import ctypes

    text = ctypes.create_string_buffer(256)
    library.MKL_Get_Version_String(text, len(text))
    version = re.search(r"Version (\d[\d.]*)", decoded(text.value))
    return {"version": version.group(1) if version else None, "threads": _call_int(library, "MKL_Get_Max_Threads")}


def _openmp(library: Any) -> Facts | None:
    threads = _call_int(library, "omp_get_max_threads")
    return {"threads": threads} if threads is not None else None


_THREAD_POOLS: Dict[str, Tuple[str, Callable[[Any], Optional[Facts]]]] = {
    "openblas": (r"lib(?:scipy_)?openblas", _openblas),
    "mkl": (r"lib(?:mkl_rt|torch_cpu)\.", _mkl),
    "openmp": (r"lib[gi]?omp5?[-.]", _openmp),
}
"""By the name of the file; PyTorch has MKL within its own library."""


DPKG = "var/lib/dpkg"
_RPM_DATABASES = ("var/lib/rpm", "usr/lib/sysimage/rpm")


def find_owners(paths: list[str], distributions: dict[str, Facts], root: str = "/") -> dict[str, Facts]:
    """Map files to the packages that list them; the package managers' own files lie in `root`."""
    owners = _wheel_owners(paths, distributions)
    for find in (_conda_owners, _debian_owners, _rpm_owners):
        owners.update(find([path for path in paths if path not in owners], root))
    return owners


def _wheel_owners(paths: list[str], distributions: dict[str, Facts]) -> dict[str, Facts]:
    """Look into the RECORD of every wheel, except those that conda installed."""
    owners: dict[str, Facts] = {}
    relative: dict[str, dict[bytes, str]] = {}
    for folder, facts in distributions.items():
        site = os.path.dirname(folder)
        if site not in relative:
            relative[site] = _relative_to(os.path.realpath(site), paths)
        if facts["origin"]["kind"] != "conda":
            owner = {"kind": "wheel", "name": normal_name(facts["name"]), "version": facts["version"]}
            lines = (read_bytes(os.path.join(folder, "RECORD")) or b"").split(b"\n")
            names = (line.rsplit(b",", 2)[0].strip(b'"') for line in lines if b".so" in line)
            owners.update((relative[site][name], owner) for name in names if name in relative[site])
    return owners


def _relative_to(folder: str, paths: list[str]) -> dict[bytes, str]:
    return {os.fsencode(os.path.relpath(path, folder)): path for path in paths}


def _conda_owners(paths: list[str], _root: str) -> dict[str, Facts]:
    owners: dict[str, Facts] = {}
    for prefix in {sys.prefix, sys.base_prefix}:
        records = conda_records(prefix) if paths else {}
        relative = _relative_to(os.path.realpath(prefix), paths) if records else {}
        quoted = {json.dumps(decoded(name)).encode("ascii"): path for name, path in relative.items()}
        for record, owner in records.items():
            # Parsing all of these files would take most of a second.
            for name in re.findall(rb'"[^"\n]*\.so[^"\n]*"', read_bytes(record) or b""):
                if name in quoted:
                    owners[quoted[name]] = owner
    return owners


def conda_records(prefix: str) -> dict[str, Facts]:
    """Map each file of conda-meta to the package that it describes, by its name alone: `NAME-VERSION-BUILD.json`."""
    parts = {str(path): path.stem.rsplit("-", 2) for path in sorted(Path(prefix, "conda-meta").glob("*-*-*.json"))}
    return {path: {"kind": "conda", "name": part[0], "version": part[1]} for path, part in parts.items()}


def _debian_owners(paths: list[str], root: str) -> dict[str, Facts]:
    versions = debian_packages(root) if paths else {}
    owners: dict[str, Facts] = {}
    # A path as the kernel has it, and as packages from before the merge of / and /usr list it.
    spelled = {os.fsencode(path[4:] if path.startswith("/usr/") else "/usr" + path): path for path in paths}
    spelled.update((os.fsencode(path), path) for path in paths)
    for listing in Path(root, DPKG, "info").glob("*.list") if versions else ():
        data = read_bytes(listing) or b""
        package, _, architecture = listing.stem.partition(":")
        # Most packages have no library at all.
        if b".so" in data and (package, architecture) in versions:
            owner = {"kind": "debian", "name": package, "version": versions[package, architecture]}
            owners.update((spelled[name], owner) for name in spelled.keys() & set(data.split(b"\n")))
    return owners


def debian_packages(root: str = "/") -> dict[tuple[str, str], str]:
    """Map the name and architecture of each installed Debian package to its version, and its name alone too."""
    versions: dict[tuple[str, str], str] = {}
    for stanza in (read_text(os.path.join(root, DPKG, "status")) or "").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Architecture|Version): *(.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and len(fields) == 4:
            for architecture in ("", fields["Architecture"]):
                versions[fields["Package"], architecture] = fields["Version"]
    return versions


def _rpm_owners(paths: list[str], root: str) -> dict[str, Facts]:
    if not any(os.path.exists(os.path.join(root, database)) for database in _RPM_DATABASES):
        return {}
    # rpm prints no line for a missing file, and fails after all lines if one file has no owner.
    paths = [path for path in paths if os.path.exists(path)]
    query = 'rpm -qf --qf "=%{NAME} %{VERSION}-%{RELEASE}\\n" -- "$@" || :'
    lines = (output_of("sh", "-c", query, "sh", *paths) or "").split("\n") if paths else []
    answers = (re.fullmatch(r"=(\S+) (\S+)", line) for line in lines)
    rows = [{"kind": "rpm", "name": row.group(1), "version": row.group(2)} if row else None for row in answers]
    # One line for each, in their order, unless two packages share a file.
    return {path: row for path, row in zip(paths, rows) if row and len(rows) == len(paths)}  # noqa: B905 - 3.10's
