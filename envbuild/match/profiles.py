"""Profiles: what is known of framework releases, CUDA bases, drivers and base images, read from `profiles/*.toml`."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.version import Version

from envbuild.errors import MatchError
from envbuild.match.rows import (
    Capability,
    Compiler,
    CudaArchive,
    CudaBase,
    CudnnFloor,
    Driver,
    Foreign,
    FrameworkProfile,
    FrameworkWheel,
    Generation,
    LabelledBuild,
    LibraryPath,
    Limit,
    Opener,
    Release,
    Repair,
    Suite,
    Text,
    Toolkit,
    WheelSet,
)
from envbuild.validation import InvalidError, fields_of, read_values

SCHEMA = 1
FRAMEWORKS = ("tensorflow", "torch", "jax")
"""Each has a file of its own, which `python -m profiles.refresh` writes."""
_CORRECT = "correct the file, or write it with python -m profiles.refresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """Everything that matching knows."""

    frameworks: tuple[FrameworkProfile, ...]
    bases: tuple[CudaBase, ...]
    repairs: tuple[Repair, ...]
    library_paths: tuple[LibraryPath, ...]
    drivers: tuple[Driver, ...]
    suites: tuple[Suite, ...]
    """In the order they are tried."""
    foreign: tuple[Foreign, ...]
    nvidia_wheels: tuple[str, ...]
    """Shell patterns of the normalised names that are NVIDIA's."""
    python_image: Text
    """With `{python}` and `{suite}`."""
    toolkits: tuple[Toolkit, ...] = ()
    cudnn_floors: tuple[CudnnFloor, ...] = ()
    limits: tuple[Limit, ...] = ()
    wheel_sets: tuple[WheelSet, ...] = ()
    compilers: tuple[Compiler, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    generations: tuple[Generation, ...] = ()
    builds: tuple[LabelledBuild, ...] = ()
    """In rising order of CUDA."""
    labelled: tuple[str, ...] = ()
    """Normalised names of projects whose builds for CPU and CUDA differ by a local label: `+cpu`, `+cu118`."""
    cuda_only: tuple[str, ...] = ()
    """Shell patterns of the normalised names that only serve a GPU, besides NVIDIA's own."""
    archives: tuple[CudaArchive, ...] = ()
    openers: tuple[Opener, ...] = ()
    """By distribution, then in rising order of releases."""

    def python_suite(self, python: str, *, oldest: str = "0", newest: str = "9") -> Suite | None:
        """Return the first suite with an image of this Python, and with a glibc from `oldest` to `newest`."""
        fits = (it for it in self.suites if Version(oldest) <= Version(it.glibc) <= Version(newest))
        return next((it for it in fits if it.has_image(python)), None)

    def glibc_of(self, image: str) -> str | None:
        """Return the glibc of an image that `decide_base` chose; None for any other image."""
        pythons = ((self.python_image.format(python="*", suite=it.name), it.glibc) for it in self.suites)
        cuda = ((it.image, it.glibc) for it in self.bases)
        return next((glibc for name, glibc in (*pythons, *cuda) if fnmatchcase(image, name)), None)


_KEYS = {
    "bases": "base",
    "repairs": "repair",
    "library_paths": "library_path",
    "drivers": "driver",
    "suites": "suite",
    "foreign": "foreign",
    "cudnn_floors": "cudnn",
    "limits": "limit",
    "wheel_sets": "wheel_set",
    "compilers": "compiler",
    "generations": "generation",
    "builds": "build",
    "archives": "archive",
    **{key: key for key in ("nvidia_wheels", "python_image", "labelled", "cuda_only")},
}
"""Fields of Profiles, with their keys in cuda.toml."""


@dataclass(frozen=True, kw_only=True)
class _Toolkits:
    source: Text
    drivers: dict[str, Text]


@dataclass(frozen=True, kw_only=True)
class _Gpus:
    source: Text
    gpus: dict[str, tuple[Text, ...]]


@dataclass(frozen=True, kw_only=True)
class _Release:
    version: Version
    wheel: tuple[FrameworkWheel, ...]
    extras: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_profiles(folder: Path, names: Sequence[str] = FRAMEWORKS) -> Profiles:
    """Read the profiles of these frameworks, and `cuda.toml`; MatchError names the file, and its key or line."""
    path = folder / "cuda.toml"
    data, hints = read_toml(path), {name: hint for name, hint, _ in fields_of(Profiles)}
    toolkits = read_profile(path, data, "toolkits", tuple[_Toolkits, ...])
    gpus = read_profile(path, data, "capabilities", tuple[_Gpus, ...])
    return Profiles(
        frameworks=tuple(load_framework(folder, name) for name in names),
        toolkits=tuple(Toolkit(cuda, driver, it.source) for it in toolkits for cuda, driver in it.drivers.items()),
        capabilities=tuple(Capability(*pair) for it in gpus for pair in it.gpus.items()),
        openers=load_openers(folder),
        **{name: read_profile(path, data, key, hints[name]) for name, key in _KEYS.items()},
    )


def load_openers(folder: Path) -> tuple[Opener, ...]:
    """Read the profiles of the other projects that open CUDA; MatchError as `load_profiles`."""
    path = folder / "openers.toml"
    return tuple(read_profile(path, read_toml(path), "opener", tuple[Opener, ...]))


def load_framework(folder: Path, name: str) -> FrameworkProfile:
    """Read the profile of one framework; MatchError as `load_profiles`."""
    path = folder / f"{name}.toml"
    data = read_toml(path)
    rows = read_profile(path, data, "release", tuple[_Release, ...])
    releases = []
    for it, text in zip(rows, data["release"], strict=True):
        wheels = tuple(replace(wheel, version=text["version"]) for wheel in it.wheel)
        releases.append(Release(version=it.version, wheels=wheels, extras=it.extras, notes=it.notes))
    name = read_profile(path, data, "framework", Text)
    return FrameworkProfile(name=name, releases=tuple(sorted(releases, key=lambda it: it.version)))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file of the profiles; MatchError names it, and the line where it is not TOML."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        todo = "give a folder that has it by --profiles; where none was given, install envbuild again"
        raise MatchError(f"a profile cannot be read: {error.strerror}", where=str(path), todo=todo) from error
    except ValueError as error:
        raise MatchError(f"a profile is not TOML: {error}", where=str(path), todo=_CORRECT) from error
    if data.get("schema") != SCHEMA:
        raise MatchError(f"a profile is not valid: expected {SCHEMA}", where=f"{path}: schema", todo=_CORRECT)
    return data


def read_profile(path: Path, data: dict[str, Any], key: str, kind: Any) -> Any:
    """Read the value of a key; MatchError names what is not valid in it."""
    try:
        return read_values(data.get(key), kind, key)
    except InvalidError as error:
        fault = error.faults[0]
        what = f"a profile is not valid: {fault.what}"
        raise MatchError(what, where=f"{path}: {fault.path}", todo=_CORRECT) from error
