"""Which projects of the package index the packages of conda are, and what is said of those that are none.

`PROJECTS` holds names that differ, of packages that people use; it was checked against the mapping that prefix.dev's
parselmouth derives from the packages themselves. Any other package with a Python build has its project's name.
"""

from __future__ import annotations

import re

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
"""Packages without a distribution although some of their builds are Python's."""
_PYTHON_BUILD = re.compile(r"(?<![a-z])py(\d|_|h)")
"""`py310h2b0b2b6_0`, `pyhd8ed1ab_0`, `cuda120py310h9360858_3`, `py3.10_cuda11.8_cudnn8.7.0_0`."""
_WITHOUT_PYTHON = re.compile(r"[a-z]")
"""A build that would name Python if the package had any; `0` and `1` say nothing."""
_REST = "libraries and data"
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
    _REST: (
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
"""Why packages have no wheel, with a pattern of their names."""


def project_of(name: str, build: str | None) -> str | None:
    """Return the project whose distribution a package of conda holds; None where it holds none.

    A name that nothing is known of counts as a project: the lock then says that it cannot be had.
    """
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
    """Say what sort of package one without a distribution is."""
    return next((kind for kind, names in _CLASSES.items() if re.fullmatch(names, name)), _REST)
