"""What envbuild knows of drivers, GPUs and distributions: `profiles/cuda.toml`, which is a part of the program."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache

from envbuild.files import data_folder
from envbuild.match.profiles import Profiles, load_profiles, within
from envbuild.match.variant import CUDA_WHEEL
from envbuild.verify.rules.releases import numbers

_SUFFIX = re.compile(r"-cu(\d\d)\d?\Z")
"""`-cu12`, and the `-cu117` of the first of them."""
_AS_CUDA = frozenset({"cuda-toolkit", "nvidia-cublas", "nvidia-cuda-runtime"})
"""Names without a suffix whose major version is CUDA's."""


@cache
def known() -> Profiles:
    """The facts that no wheel says, without the profiles of frameworks."""
    return load_profiles(data_folder("profiles"), ())


def is_nvidia(name: str) -> bool:
    """Whether a distribution is NVIDIA's, or serves a GPU only."""
    return any(fnmatchcase(name, pattern) for pattern in (*known().nvidia_wheels, *known().cuda_only))


def is_foreign(name: str) -> bool:
    """Whether no index has a distribution for Linux, so that no image can."""
    return any(row.name == name for row in known().foreign)


def minimum_driver(cuda: str) -> tuple[str, str] | None:
    """The lowest driver that runs a CUDA, and the CUDA that this is the row of; None where none is known.

    From CUDA 11 on that of the major version: minor version compatibility (NVIDIA CUDA Compatibility guide).
    """
    parts = cuda.split(".")
    names = {parts[0], ".".join(parts[:2])}
    return next(((row.minimum, row.cuda) for row in known().drivers if row.cuda in names), None)


def cuda_major(versions: Mapping[str, str | None]) -> str | None:
    """The highest major version of CUDA that there are wheels for, by their names: `12`; None without any."""
    wheels = {name: version for name, version in versions.items() if CUDA_WHEEL.match(name)}
    named = [int(found[1]) for name in wheels if (found := _SUFFIX.search(name))]
    plain = [numbers(version)[0] for name, version in wheels.items() if name in _AS_CUDA and numbers(version)]
    return str(max(named + plain)) if named or plain else None


def cudnn_floor(framework: str, version: str) -> str:
    """The lowest cuDNN that a release takes at run time; empty where none is known. InvalidVersion for no version."""
    return next((row.minimum for row in known().cudnn_floors if within(row, framework, version)), "")
