"""Conda: the packages in conda-meta, and the projects of the package index that they hold.

`PROJECTS` holds names that differ, of packages in wide use; it was checked against the mapping that prefix.dev's
parselmouth derives from the packages themselves. Any other package with a Python build has its project's name.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Iterator

from envbuild.capture.files import Facts, decoded, read_bytes, read_text
from envbuild.capture.redact import scrub_line

PROJECTS = {
    "_dvc": "dvc", "antlr-python-runtime": "antlr4-python3-runtime", "astropy-base": "astropy", "boruta_py": "Boruta",
    "brotli-python": "Brotli", "cufflinks-py": "cufflinks", "cupy-core": "cupy", "cvxpy-base": "cvxpy",
    "cython-blis": "blis", "dask-core": "dask", "docker-py": "docker", "dvc-base": "dvc", "faiss": "faiss-cpu",
    "fastapi-core": "fastapi", "flask_cors": "flask-cors", "geopandas-base": "geopandas", "geoviews-core": "geoviews",
    "google-cloud-bigquery-core": "google-cloud-bigquery", "h2o-py": "h2o", "h3-py": "h3", "hist-base": "hist",
    "ibis-framework-core": "ibis-framework", "ignite": "pytorch-ignite", "jira-base": "jira",
    "jupyterhub-base": "jupyterhub", "libsvm-python": "libsvm", "matplotlib-base": "matplotlib", "mne-base": "mne",
    "modin-core": "modin", "msgpack-python": "msgpack", "mujoco-python": "mujoco", "napari-base": "napari",
    "nbconvert-core": "nbconvert", "neo4j-python-driver": "neo4j", "ninja-python": "ninja", "numpy-base": "numpy",
    "nvidia-ml": "nvidia-ml-py3", "opencv": "opencv-python", "ortools-python": "ortools", "osmnx-base": "osmnx",
    "pandera-base": "pandera", "pandera-core": "pandera", "panel-core": "panel", "pennylane-core": "PennyLane",
    "photutils-base": "photutils", "playwright-python": "playwright", "pvlib-python": "pvlib", "py-lief": "lief",
    "py-opencv": "opencv-python", "py-xgboost": "xgboost", "py-xgboost-cpu": "xgboost", "py-xgboost-gpu": "xgboost",
    "pyarrow-core": "pyarrow", "pyg": "torch-geometric", "pyhunspell": "hunspell", "pymc-base": "pymc",
    "pyqt": "PyQt5", "pyqt-impl": "PyQt5", "pysoundfile": "soundfile", "pysox": "sox", "pytables": "tables",
    "pytensor-base": "pytensor", "python-annoy": "annoy", "python-avro": "avro", "python-blosc": "blosc",
    "python-blosc2": "blosc2", "python-build": "build", "python-cityhash": "cityhash",
    "python-confluent-kafka": "confluent-kafka", "python-duckdb": "duckdb", "python-eccodes": "eccodes",
    "python-fastjsonschema": "fastjsonschema", "python-flair": "flair", "python-flatbuffers": "flatbuffers",
    "python-graphviz": "graphviz", "python-installer": "installer", "python-isal": "isal", "python-kaleido": "kaleido",
    "python-kubernetes": "kubernetes", "python-leveldb": "leveldb", "python-libarchive-c": "libarchive-c",
    "python-lmdb": "lmdb", "python-lsp-server-base": "python-lsp-server", "python-marisa-trie": "marisa-trie",
    "python-mss": "mss", "python-sounddevice": "sounddevice", "python-symengine": "symengine",
    "python-tzdata": "tzdata", "python-uv": "uv", "python-wget": "wget", "python-xxhash": "xxhash",
    "python-zstd": "zstd", "pytorch": "torch", "pytorch-cluster": "torch-cluster", "pytorch-cpu": "torch",
    "pytorch-gpu": "torch", "pytorch-scatter": "torch-scatter", "pytorch-sparse": "torch-sparse",
    "pytorch-spline-conv": "torch-spline-conv", "pytorch_cluster": "torch-cluster",
    "pytorch_geometric": "torch-geometric", "pytorch_scatter": "torch-scatter", "pytorch_sparse": "torch-sparse",
    "pytorch_spline_conv": "torch-spline-conv", "qtconsole-base": "qtconsole", "ray-core": "ray", "ray-default": "ray",
    "redis-py": "redis", "sagemaker-python-sdk": "sagemaker", "seaborn-base": "seaborn",
    "sentencepiece-python": "sentencepiece", "soxr-python": "soxr", "spyder-base": "spyder",
    "starlette-base": "starlette", "tensorflow-base": "tensorflow", "tensorflow-cpu": "tensorflow",
    "tensorflow-eigen": "tensorflow", "tensorflow-gpu": "tensorflow", "tensorflow-gpu-base": "tensorflow",
    "tensorflow-mkl": "tensorflow", "tiledb-py": "tiledb", "torchaudio-cpu": "torchaudio", "torchtriton": "triton",
    "torchvision-cpu": "torchvision", "transformer-engine-torch": "transformer-engine", "trino-python-client": "trino",
    "uproot-base": "uproot", "uritemplate.py": "uritemplate", "vtk-base": "vtk",
}  # fmt: skip
"""Projects by the names of conda's packages, for names that differ."""

_NO_PYTHON = re.compile(
    "_.*|anaconda|arrow-cpp|backports|boost|cudatoolkit.*|intelpython|libopencv|py-boost|pypy[0-9.]*|python|"
    "python_abi|sphinxcontrib|zope|.*[-_]mutex"
)
"""Packages without a distribution although some of their builds are for Python."""
_PYTHON_BUILD = re.compile(r"(?<![a-z])py(\d|_|h)")
"""`py310h2b0b2b6_0`, `pyhd8ed1ab_0`, `cuda120py310h9360858_3`, `py3.10_cuda11.8_cudnn8.7.0_0`."""
_WITHOUT_PYTHON = re.compile(r"[a-z]")
"""A build that would name Python if the package had any, unlike `0` and `1`."""
_OTHER_CLASS = "libraries and data"
_CLASSES = {
    "CUDA, which the base or NVIDIA's wheels bring": (
        "cudatoolkit.*|cudnn|cuda[0-9]*|cuda-(?!python|bindings|core$|pathfinder).*|cutensor|nccl|magma(-.*)?|"
        "libcu(?!rl).*|libnv.*|libnpp.*|pytorch-cuda|cpuonly|nvidia-virtual-packages"
    ),
    "math libraries, which wheels bring themselves": (
        "mkl|mkl-include|mkl-devel|blas|blas-devel|lib(blas|cblas|lapack|lapacke|openblas)|openblas.*|"
        "intel-openmp|llvm-openmp|tbb|fftw|eigen|metis|suitesparse|arpack|glpk|mumps|mumps-.*|gmp|mpc|mpfr"
    ),
    "compilers and their runtimes": (
        "libgcc.*|libstdcxx.*|libgomp|libgfortran.*|libclang.*|libllvm.*|llvm-tools|llvm|clang|clangxx|gcc.*|"
        "gxx.*|gfortran.*|binutils.*|ld_impl.*|sysroot.*|kernel-headers.*|(c-|cxx-|fortran-)?compilers?|rust|go|"
        "nodejs"
    ),
    "what only conda needs": (
        "_.*|anaconda|backports|blas-.*|intelpython|pybind11-abi|pypy[0-9.]*|python|python_abi|.*[-_]mutex"
    ),
    "programs, which Debian's packages bring": (
        "ffmpeg|git|git-lfs|graphviz|pandoc|openjdk|maven|cmake|make|ninja|pkg-config|patchelf|perl.*|r-.*|curl|"
        "wget|tesseract|imagemagick|poppler.*|ghostscript|texlive.*|openmpi|mpich|mpi|tmux|vim|htop|yarn|jq|bash|"
        "unzip|p7zip|rsync|m4|gawk|swig|bazel|protoc|ripgrep"
    ),
    _OTHER_CLASS: (
        "lib(?!cst|ensemble|rosa|pysal|sass|svmdata|tmux|usb1).*|(abseil|arrow|boost|grpc|thrift)-cpp|font-ttf-.*|"
        "fonts-.*|xorg-.*|gst-.*|gstreamer.*|aws-(c-.*|checksums|crt-cpp|sdk-cpp)|aom|atk.*|boost|bzip2|brotli|"
        "brotli-bin|c-ares|c-blosc2?|ca-certificates|cairo|capnproto|cfitsio|charls|cyrus-sasl|dav1d|dbus|"
        "double-conversion|expat|fontconfig|freeglut|freetype|freexl|fribidi|gdk-pixbuf|geos|geotiff|gettext|"
        "gflags|giflib|glib|glib-tools|glog|gnutls|graphite2|gsl|gtk[0-9]|harfbuzz|hdf[45]|icu|jasper|jpeg|json-c|"
        "jxrlib|kealib|keyutils|krb5|lame|lcms2|leptonica|lerc|leveldb|lmdb|lz4-c|lzo|minizip.*|mysql|"
        "mysql-(common|libs|client|server)|ncurses|nettle|nlohmann_json|nspr|nss|openexr|openh264|openjpeg|"
        "openldap|openssl|orc|p11-kit|pango|pcre2?|pixman|postgresql|proj|pthread-stubs|pugixml|qhull|qt6?(-main|"
        "-webengine|-multimedia)?|qtwebkit|rdma-core|re2|readline|s2n|sdl2?|sleef|snappy|spdlog|sqlite|svt-av1|"
        "tiledb|tk|tktable|tzcode|tzdata|ucx|unixodbc|utf8proc|wayland.*|x264|x265|xerces-c|xkeyboard-config|xz|"
        "xz-.*|yaml|yaml-cpp|zeromq|zfp|zlib|zlib-ng|zstd"
    ),
}
"""Classes of packages without a wheel, with a pattern of their names."""


def project_of(name: str, build: str | None) -> str | None:
    """Return the project that a package of conda holds, or None; an unknown name counts as a project."""
    if name in PROJECTS:
        return PROJECTS[name]
    if _NO_PYTHON.fullmatch(name):
        return None
    if build and _PYTHON_BUILD.search(build):
        return name
    if any(re.fullmatch(names, name) for names in _CLASSES.values()):
        return None
    # Metapackages, and what was built before builds named Python: petsc4py, path.py.
    return name if build is None or "py" in name or not _WITHOUT_PYTHON.search(build) else None


def class_of(name: str) -> str:
    """Return the class of a package without a distribution."""
    return next((kind for kind, names in _CLASSES.items() if re.fullmatch(names, name)), _OTHER_CLASS)


LONG_LISTS = re.compile(rb'"(files|paths)": *\[[^\]]*\]')
SITE_ENTRY = re.compile(rb'"(lib/python[^/"]*/site-packages/[^/"]+)')
PATH_ENTRY = re.compile(rb"\{[^{}]*\}")
DIGEST = re.compile("[0-9a-f]{64}")


def conda_prefix() -> str | None:
    """Return the conda environment of the interpreter, or of the one that its virtual environment was made from."""
    prefixes = (prefix for prefix in (sys.prefix, sys.base_prefix) if os.path.isdir(os.path.join(prefix, "conda-meta")))
    return next(prefixes, None)


def conda_facts() -> Facts | None:
    """Describe the conda environment; None where there is none."""
    prefix = conda_prefix()
    if prefix is None:
        return None
    # As conda names it: by its folder in `envs`, the installation itself `base`.
    name = "base" if os.path.isdir(os.path.join(prefix, "condabin")) else None
    if os.path.basename(os.path.dirname(prefix)) == "envs":
        name = scrub_line(os.path.basename(prefix))
    history = read_text(os.path.join(prefix, "conda-meta", "history")) or ""
    commands = re.findall("^# cmd: (.*)$", history, re.MULTILINE)
    words = [word for command in commands for word in re.findall(r"(?<=\s)(?:-c|--channel)[ =](\S+)", command)]
    return {
        "packages": [item["facts"] for item in conda_packages()],
        "name": name,
        "channels": list(dict.fromkeys(filter(None, map(_without_token, words)))),
    }


def conda_packages() -> list[Facts]:
    """List the packages by name: `facts`, the `record` that holds them, and `entries` in the site folder, as paths."""
    prefix = conda_prefix()
    folder = os.path.join(prefix or "", "conda-meta")
    # An installation since the last capture of this process changes the folder.
    return _conda_packages(folder, os.stat(folder).st_mtime_ns) if prefix is not None else []


@lru_cache(maxsize=1)
def _conda_packages(folder: str, _changed: int) -> list[Facts]:
    found = [_conda_package(str(record)) for record in Path(folder).glob("*.json")]
    return sorted((item for item in found if item), key=lambda item: str(item["facts"]["name"]))


def _conda_package(record: str) -> Facts | None:
    data = read_bytes(record) or b""
    package: Facts = {}
    # The lists of files are most of the text.
    for text in (LONG_LISTS.sub(rb'"\1": []', data), data):
        try:
            value = json.loads(decoded(text))
            package = value if isinstance(value, dict) else {}
            break
        except (ValueError, RecursionError):
            continue
    if not all(isinstance(package.get(key), str) for key in ("name", "version")):
        return None
    texts = {key: scrub_line(value) for key, value in package.items() if isinstance(value, str) and value}
    facts = {key: texts.get(key) for key in ("name", "version", "build", "subdir")}
    digest = texts.get("sha256", "")
    # The channel's name without host and platform, which conda may leave out.
    channel = _without_token(str(package.get("channel") or ""))
    parts = (channel.partition("://")[2].partition("/")[2] if "://" in channel else channel).strip("/").split("/")
    in_platform = parts[-1] == texts.get("subdir", "") and parts[1:]
    facts["channel"] = "/".join(parts[:-1] if in_platform else parts) or None
    facts["url"] = _without_token(str(package.get("url") or "")) or None
    facts["sha256"] = digest if DIGEST.fullmatch(digest) else None
    names = sorted(set(SITE_ENTRY.findall(data)))
    entries = [os.path.join(os.path.dirname(os.path.dirname(record)), decoded(name)) for name in names]
    return {"facts": facts, "record": record, "entries": entries}


def _without_token(url: str) -> str:
    """Cut the token of a private channel: https://host/t/TOKEN/channel, or without the host, t/TOKEN/channel."""
    return re.sub(r"(?<=[^/])/t/[^/]+(?=/)|^/?t/[^/]+(?:/|$)", "", scrub_line(url))


def conda_owners() -> dict[str, Facts]:
    """Map each metadata folder that conda installed to its package; of one without metadata, its first entry."""
    owners: dict[str, Facts] = {}
    for item in conda_packages():
        folders = [path for path in item["entries"] if path.endswith((".dist-info", ".egg-info"))]
        owners.update((os.path.realpath(path), item) for path in folders or item["entries"][:1])
    return owners


def conda_files(record: str) -> Iterator[Facts]:
    """Yield the files of a package: `path`, and `sha256` and `size` as installed; conda's own files lack these."""
    for match in PATH_ENTRY.finditer(read_bytes(record) or b""):
        try:
            entry = json.loads(decoded(match.group()))
        except ValueError:
            continue
        if entry.get("path_type", "hardlink") == "hardlink" and isinstance(entry.get("_path"), str):
            # conda writes the prefix over a placeholder.
            changed = bool(entry.get("prefix_placeholder"))
            yield {
                "path": entry["_path"],
                "sha256": entry.get("sha256_in_prefix") or (None if changed else entry.get("sha256")),
                "size": None if changed else entry.get("size_in_bytes"),
            }
