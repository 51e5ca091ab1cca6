"""Profiles: what is known of framework releases, CUDA bases, drivers and base images, read from `profiles/*.toml`."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import MatchError
from envbuild.validation import InvalidError, fields_of, read_values

SCHEMA = 1
FRAMEWORKS = ("tensorflow", "torch", "jax")
"""Each has a file of its own, which `python -m profiles.refresh` writes."""
Text = Annotated[str, Meta(min_length=1)]
_FIRST_VERSION = re.compile(r"(?:==|>=|~=|>)\s*([\d.]+)")
_CORRECT = "correct the file, or write it with python -m profiles.refresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkWheel:
    """A row of a profile: the Linux wheels of one distribution, version, machine and extra, read from one of them."""

    distribution: Text
    """Normalised: `tensorflow-cpu`."""
    machine: Text
    pythons: tuple[str, ...]
    """Minor versions that there is a wheel for: `3.11`; in rising order."""
    glibc: Text
    """Lowest glibc that the manylinux tags accept."""
    wheel: Text
    """File name of the wheel that the row was read from."""
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", title="SHA-256 digest")]
    version: str = ""
    """Its release's."""
    extra: Text | None = None
    """The extra that brings CUDA: `and-cuda`, `cuda12`; None where there is none or CUDA is required without one."""
    cuda: Text | None = None
    """CUDA that it was built with, as exactly as it says: `12`, `12.2`, `12.5.1`; None for a CPU build."""
    cudnn: Text | None = None
    """cuDNN that it was built with, else the lowest that it requires, as exactly as it says: `8`, `9.1.0.70`."""
    cudnn_built: Text | None = None
    """cuDNN whose header the wheel brings: `9.3.0`."""
    compute_capabilities: tuple[str, ...] = ()
    """`sm_80`: machine code; `compute_80`: PTX too; `8.0`: it does not say which."""
    libraries: tuple[str, ...] = ()
    """Names of the CUDA libraries that it opens, `libcudart.so.12`, where its files tell them."""
    cuda_requirements: tuple[str, ...] = ()
    """What it requires for CUDA, with its extra; empty where CUDA has to come from the base."""
    limits: tuple[str, ...] = ()
    """What it requires of NumPy, protobuf, Keras and the like; with a marker where that depends on Python."""
    keras_inside: Text | None = None
    """Major version of the Keras that is a part of it, where it requires none."""
    stands_for: Text | None = None
    """For a wheel without code, the requirement that has it: `tensorflow-cpu-aws==2.15.1`, `jaxlib==0.4.36`."""
    parts: tuple[str, ...] = ()
    """The other wheels that the row was read from: file name and digest."""
    others: tuple[str, ...] = ()
    """The wheels for the other Pythons, which nothing was read from: file name and digest."""

    @property
    def pin(self) -> str:
        """`tensorflow-cpu==2.15.1`."""
        return f"{self.distribution}=={self.version}"

    @property
    def source(self) -> str:
        """The row's origin, for people."""
        return f"{self.wheel} (sha256:{self.sha256})"

    def cited_for(self, python: str) -> "FrameworkWheel":
        """The row with the wheel for this minor version of Python as the source that is cited, if there is one."""
        own = next((it for it in self.others if f"-cp{python.replace('.', '')}-" in it.partition(" ")[0]), None)
        name, _, digest = (own or self.source).removesuffix(")").partition(" (sha256:")
        return replace(self, wheel=name, sha256=digest)

    @property
    def jaxlib(self) -> str | None:
        """The version of jaxlib that belongs to it."""
        name, _, version = (self.stands_for or "").partition("==")
        return version if name == "jaxlib" else None

    @property
    def keras(self) -> str | None:
        """Major version of the Keras that it works with; None where it has and requires none."""
        for text in self.limits:
            requirement = Requirement(text)
            lowest = _FIRST_VERSION.search(str(requirement.specifier))
            if requirement.name in {"keras", "keras-nightly"} and lowest:
                return lowest[1].partition(".")[0]
        return self.keras_inside

    def requirement(self, library: str) -> str | None:
        """What it requires for CUDA of one library, by the name's stem: `nccl` finds `nvidia-nccl-cu12==2.16.5`."""
        known = re.compile(rf"(nvidia-)?{re.escape(library)}(-cu\d+)?\Z")
        return next((it for it in self.cuda_requirements if known.match(canonicalize_name(Requirement(it).name))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a framework, with the wheels of all its distributions."""

    version: Version
    wheels: tuple[FrameworkWheel, ...] = ()
    extras: tuple[str, ...] = ()
    """All that its metadata names, normalised; known of JAX only."""
    notes: tuple[str, ...] = ()
    """What it offers and cannot keep: extras whose distributions are not on the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile:
    """All releases of one framework, in rising order."""

    name: str
    releases: tuple[Release, ...]

    @property
    def distributions(self) -> frozenset[str]:
        """The names that bring the framework."""
        return frozenset(wheel.distribution for wheel in self.wheels)

    @property
    def wheels(self) -> tuple[FrameworkWheel, ...]:
        """The rows of all releases."""
        return tuple(wheel for release in self.releases for wheel in release.wheels)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaBase:
    """An image that brings CUDA where the framework's wheels do not."""

    cuda: Text
    """As build_info.py has it: `11.2`."""
    image: Text
    glibc: Text
    python: Text
    """Minor version of the distribution's own Python, which the image does not hold yet."""
    reason: Text
    source: Text
    cudnn: Text | None = None
    """cuDNN in it, where its recipe says so: `8.1.1.33`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Requirements of an extra that cannot be installed as published and are left out."""

    versions: tuple[str, ...]
    pythons: tuple[str, ...]
    drop: tuple[str, ...]
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPath:
    """Releases that do not find their CUDA libraries by themselves."""

    versions: tuple[str, ...]
    folders: tuple[str, ...]
    """Below site-packages: `nvidia/cublas/lib`."""
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The lowest driver of a major version of CUDA, or of a minor one before CUDA 11."""

    cuda: Text
    minimum: Text
    source: Text


class Toolkit(NamedTuple):
    """The driver that a CUDA release came with: what compiles PTX for a GPU that the machine code does not fit."""

    cuda: str
    """`12.5.1`; `12.5` is the first release of 12.5."""
    driver: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Releases of a framework."""

    framework: Text
    first: Text
    last: Text

    def covers(self, framework: str, version: str) -> bool:
        """Whether the release is one of them."""
        return self.framework == framework and Version(self.first) <= Version(version) <= Version(self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnFloor(_Range):
    """The lowest cuDNN that a range of releases accepts at run time, where their wheels tell the major version only."""

    minimum: Text
    """`8.6`; any later minor version of the same major one is accepted too."""
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A requirement that the wheels of a range of releases should have had."""

    distributions: tuple[str, ...]
    """Normalised names that have the same code: `tensorflow`, `tensorflow-cpu`."""
    first: Text
    last: Text
    requirement: Text
    reason: Text
    source: Text
    breaks: Text | None = None
    """What fails without it: `import tensorflow`; None where it is known of no version that it fails with."""
    undeclared: bool = False
    """Whether the release imports the distribution and its wheel does not require it: incomplete records get it."""

    def covers(self, name: str, version: str) -> bool:
        """Whether the limit is about this release."""
        release = public_version(version) if name in self.distributions else None
        return release is not None and Version(self.first) <= release <= Version(self.last)

    def allows(self, version: str) -> bool:
        """Whether the requirement accepts a version; True for what PEP 440 does not allow."""
        return not public_version(version) or Requirement(self.requirement).specifier.contains(
            version, prereleases=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A Debian release that Python's own slim images were made for."""

    name: Text
    glibc: Text
    since: tuple[str, ...]
    """For each minor version of Python the first patch that has such an image."""
    reason: Text
    source: Text

    def has_image(self, python: str) -> bool:
        """Whether Python's own image of this patch, or of an earlier one of its minor version, exists on the suite."""
        version, exact = Version(python), python.count(".") > 1
        firsts = (Version(it) for it in self.since)
        return any(it.release[:2] == version.release[:2] and (not exact or it <= version) for it in firsts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A distribution that a run may have, but that no index has for Linux."""

    name: Text
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSet:
    """Wheels of NVIDIA's that bring CUDA to builds whose own wheels require none."""

    cuda: Text
    """`11.8`."""
    serves: tuple[str, ...]
    """The CUDA of the builds that open these libraries under the same names: `11.2`."""
    requirements: tuple[str, ...]
    """Exact pins, all but cuDNN."""
    cudnn: tuple[str, ...]
    """Exact pins of cuDNN to choose from, in rising order; the first is the default."""
    folders: tuple[str, ...]
    """Where the libraries lie, below site-packages: `nvidia/cublas/lib`."""
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler(_Range):
    """Releases whose XLA needs a flag to find the wheel with ptxas and libdevice."""

    folder: Text
    """Below site-packages: `nvidia/cuda_nvcc`."""
    reason: Text
    source: Text


class Capability(NamedTuple):
    """The compute capability of GPUs, for records that have their names only."""

    capability: str
    """`9.0`."""
    words: tuple[str, ...]
    """One of them is a word of the name: `H100`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """GPUs that not every CUDA serves: neither one before `first_cuda` nor one after `last_cuda`."""

    lowest: Text
    """The lowest compute capability of them: `10.0`."""
    highest: Text
    """The highest one that the source lists: `9.0`."""
    source: Text
    first_cuda: Text | None = None
    """`12.8`; None where every CUDA of the profiles had them."""
    last_cuda: Text | None = None
    """`12`; None where no CUDA dropped them."""
    driver: Text | None = None
    """The first driver that knows them; None where every driver of the profiles does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledBuild:
    """The releases of PyTorch that its own index has a build of for one CUDA."""

    label: Text
    """`cu118`."""
    first: Text
    last: Text | None = None
    """None where later releases may have it too."""

    def covers(self, version: Version) -> bool:
        """Whether the release has such a build."""
        release = Version(version.public)
        return Version(self.first) <= release and (self.last is None or release <= Version(self.last))


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

    def glibc_of(self, image: str) -> str | None:
        """Return the glibc of an image that `decide_base` chose; None for any other image."""
        pythons = ((self.python_image.format(python="*", suite=it.name), it.glibc) for it in self.suites)
        cuda = ((it.image, it.glibc) for it in self.bases)
        return next((glibc for name, glibc in (*pythons, *cuda) if fnmatchcase(image, name)), None)


def public_version(text: str) -> Version | None:
    """The version without a local label; None for what PEP 440 does not allow."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


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
        **{name: read_profile(path, data, key, hints[name]) for name, key in _KEYS.items()},
    )


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
