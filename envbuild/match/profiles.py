"""Profiles: what is known of framework releases, CUDA bases, drivers and base images, read from `profiles/*.toml`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.match import facts
from envbuild.match.facts import (
    Capability,
    Compiler,
    CudaBase,
    CudnnFloor,
    Driver,
    Foreign,
    Generation,
    LabelledBuild,
    LibraryPath,
    Limit,
    Repair,
    Suite,
    Toolkit,
    WheelSet,
)
from envbuild.match.table import Table, read_table
from envbuild.oci.digest import Digest

FRAMEWORKS = ("tensorflow", "torch", "jax")
"""Each has a file of its own, which `python -m profiles.refresh` writes."""


_FIRST_VERSION = re.compile(r"(?:==|>=|~=|>)\s*([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkWheel:
    """The Linux wheels of one distribution, version, machine and extra for CUDA, as one of them says."""

    distribution: str
    """Normalised: `tensorflow-cpu`."""
    version: str
    machine: str
    """`x86_64` or `aarch64`."""
    pythons: tuple[str, ...]
    """Minor versions that there is a wheel for: `3.11`; in rising order."""
    glibc: str
    """Lowest glibc that the manylinux tags accept."""
    wheel: str
    """File name of the wheel that the row was read from."""
    sha256: Digest
    extra: str | None = None
    """The extra that brings CUDA: `and-cuda`, `cuda12`; None where there is none or CUDA is required without one."""
    cuda: str | None = None
    """CUDA that it was built with, as exactly as it says: `12`, `12.2`, `12.5.1`; None for a CPU build."""
    cudnn: str | None = None
    """cuDNN that it was built with, else the lowest that it requires, as exactly as it says: `8`, `9.1.0.70`."""
    cudnn_built: str | None = None
    """cuDNN whose header the wheel brings: `9.3.0`."""
    compute_capabilities: tuple[str, ...] = ()
    """`sm_80`: machine code; `compute_80`: PTX too; `8.0`: it does not say which."""
    libraries: tuple[str, ...] = ()
    """Names of the CUDA libraries that it opens, `libcudart.so.12`, where its files tell them."""
    cuda_requirements: tuple[str, ...] = ()
    """What it requires for CUDA, with its extra; empty where CUDA has to come from the base."""
    limits: tuple[str, ...] = ()
    """What it requires of NumPy, protobuf, Keras and the like; with a marker where that depends on Python."""
    keras_inside: str | None = None
    """Major version of the Keras that is a part of it, where it requires none."""
    stands_for: str | None = None
    """The requirement that a wheel without the code brings it by: `tensorflow-cpu-aws==2.15.1`, `jaxlib==0.4.36`."""
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
        return f"{self.wheel} ({self.sha256})"

    def cited_for(self, python: str) -> "FrameworkWheel":
        """The row with the wheel for this minor version of Python as its source, where it has one of its own."""
        tag = f"-cp{python.replace('.', '')}-"
        for text in self.others:
            name, _, digest = text.removesuffix(")").partition(" (")
            if tag in name:
                return replace(self, wheel=name, sha256=Digest.parse(digest))
        return self

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
    wheels: tuple[FrameworkWheel, ...]
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
        return frozenset(wheel.distribution for release in self.releases for wheel in release.wheels)


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
    python_image: str
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


def load_profiles(folder: Path, names: Sequence[str] = FRAMEWORKS) -> Profiles:
    """Read the profiles of these frameworks, and what is known besides.

    MatchError names the file, and the line or key, that is not right.
    """
    table = read_table(folder / "cuda.toml")
    return Profiles(
        frameworks=tuple(load_framework(folder, name) for name in names),
        bases=table.each("base", facts.read_base),
        repairs=table.each("repair", facts.read_repair),
        library_paths=table.each("library_path", facts.read_library_path),
        drivers=table.each("driver", lambda row: Driver(**row.strings("cuda", "minimum", "source"))),
        suites=table.each("suite", facts.read_suite),
        foreign=table.each("foreign", lambda row: Foreign(**row.strings("name", "reason", "source"))),
        nvidia_wheels=table.texts("nvidia_wheels"),
        python_image=table.text("python_image"),
        toolkits=tuple(it for rows in table.each("toolkits", facts.read_toolkits) for it in rows),
        cudnn_floors=table.each("cudnn", facts.read_cudnn_floor),
        limits=table.each("limit", facts.read_limit),
        wheel_sets=table.each("wheel_set", facts.read_wheel_set),
        compilers=table.each("compiler", facts.read_compiler),
        capabilities=tuple(it for rows in table.each("capabilities", facts.read_capabilities) for it in rows),
        generations=table.each("generation", facts.read_generation),
        builds=table.each("build", facts.read_labelled_build),
        labelled=table.texts("labelled"),
        cuda_only=table.texts("cuda_only"),
    )


def load_framework(folder: Path, name: str) -> FrameworkProfile:
    """Read the profile of one framework; MatchError as `load_profiles`."""
    return _framework(read_table(folder / f"{name}.toml"))


def _framework(table: Table) -> FrameworkProfile:
    releases = table.each("release", _release)
    return FrameworkProfile(name=table.text("framework"), releases=tuple(sorted(releases, key=lambda it: it.version)))


def _release(table: Table) -> Release:
    text = table.text("version")
    try:
        version = Version(text)
    except InvalidVersion:
        raise table.wrong("version", "a version as PEP 440 has it") from None
    wheels = table.each("wheel", lambda row: _wheel(row, text))
    extras, notes = (table.texts(key, optional=True) for key in ("extras", "notes"))
    return Release(version=version, wheels=wheels, extras=extras, notes=notes)


def _wheel(row: Table, version: str) -> FrameworkWheel:
    return FrameworkWheel(
        **row.strings("distribution", "machine", "glibc", "wheel"),
        version=version,
        pythons=row.texts("pythons"),
        sha256=row.sha256("sha256"),
        extra=row.maybe("extra"),
        cuda=row.maybe("cuda"),
        cudnn=row.maybe("cudnn"),
        cudnn_built=row.maybe("cudnn_built"),
        compute_capabilities=row.texts("compute_capabilities", optional=True),
        libraries=row.texts("libraries", optional=True),
        cuda_requirements=row.texts("cuda_requirements", optional=True),
        limits=row.texts("limits", optional=True),
        keras_inside=row.maybe("keras_inside"),
        stands_for=row.maybe("stands_for"),
        parts=row.texts("parts", optional=True),
        others=row.texts("others", optional=True),
    )
