"""Versions as people compare them, and the profiles' facts about drivers, GPUs and distributions."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache

from packaging.version import InvalidVersion, Version

from envbuild.files import data_folder
from envbuild.match.profiles import Profiles, load_profiles
from envbuild.match.run import CUDA_WHEEL

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")
_SUFFIX = re.compile(r"-cu(\d\d)\d?\Z")
"""`-cu12`, and the `-cu117` of the first of them."""
_AS_CUDA = frozenset({"cuda-toolkit", "nvidia-cublas", "nvidia-cuda-runtime"})
"""Names without a suffix whose major version is CUDA's."""


def numbers(text: str | None) -> tuple[int, ...]:
    """`(2, 15, 1)` of `2.15.1rc1+cu118`; empty where no number leads."""
    found = _NUMBERS.match(text or "")
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def minor(text: str | None) -> str:
    """`2.15` of `2.15.1`; empty where less is known."""
    found = numbers(text)[:2]
    return ".".join(map(str, found)) if len(found) == 2 else ""


def same_numbers(one: str, other: str, count: int) -> bool:
    """Whether the first numbers are equal, as many of them as both have."""
    shorter = min(count, len(numbers(one)), len(numbers(other)))
    return numbers(one)[:shorter] == numbers(other)[:shorter]


def label(version: str) -> str:
    """`cu118` of `2.1.0+cu118`."""
    return version.partition("+")[2].lower()


def same_release(one: str, other: str) -> bool:
    """Whether two versions are equal by PEP 440, whatever their local labels; letter by letter where it has no say."""
    first, second = one.partition("+")[0], other.partition("+")[0]
    if first == second:
        return True  # nearly always, and thousands of times
    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return first == second


def as_version(text: str | None) -> Version | None:
    """A version to order by; None where it is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


@cache
def profile_data() -> Profiles:
    """The facts that no wheel says, without the profiles of frameworks."""
    return load_profiles(data_folder("profiles"), ())


def is_nvidia(name: str) -> bool:
    """Whether a distribution is NVIDIA's, or serves a GPU only."""
    return any(fnmatchcase(name, pattern) for pattern in (*profile_data().nvidia_wheels, *profile_data().cuda_only))


def is_foreign(name: str) -> bool:
    """Whether no index has a distribution for Linux, so that no image can."""
    return any(row.name == name for row in profile_data().foreign)


def minimum_driver(cuda: str) -> tuple[str, str] | None:
    """The lowest driver that runs a CUDA, and the CUDA that this is the row of; None where none is known.

    From CUDA 11 on that of the major version: minor version compatibility (NVIDIA CUDA Compatibility guide).
    """
    parts = cuda.split(".")
    names = {parts[0], ".".join(parts[:2])}
    return next(((row.minimum, row.cuda) for row in profile_data().drivers if row.cuda in names), None)


def cuda_major(versions: Mapping[str, str | None]) -> str | None:
    """The highest major version of CUDA that there are wheels for, by their names: `12`; None without any."""
    wheels = {name: version for name, version in versions.items() if CUDA_WHEEL.match(name)}
    named = [int(found[1]) for name in wheels if (found := _SUFFIX.search(name))]
    plain = [numbers(version)[0] for name, version in wheels.items() if name in _AS_CUDA and numbers(version)]
    return str(max(named + plain)) if named or plain else None


def cudnn_floor(framework: str, version: str) -> str:
    """The lowest cuDNN that a release takes at run time; empty where none is known. InvalidVersion for no version."""
    return next((row.minimum for row in profile_data().cudnn_floors if row.covers(framework, version)), "")
