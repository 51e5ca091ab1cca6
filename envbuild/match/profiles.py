"""Profiles: what is known of framework releases, CUDA bases, drivers and base images, read from `profiles/*.toml`."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version

from envbuild.errors import MatchError
from envbuild.oci.digest import Digest

FRAMEWORKS = ("tensorflow",)
"""Each has a file of its own, made by `python -m envbuild.refresh`."""
SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkWheel:
    """The Linux wheels of one distribution, version and machine, as one of them says."""

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
    cuda: str | None = None
    """CUDA that it was built with; None for a CPU build."""
    cudnn: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    cuda_requirements: tuple[str, ...] = ()
    """The requirements of its extra for CUDA; empty where CUDA has to come from the base."""
    stands_for: str | None = None
    """The requirement that an empty wheel brings the framework by: `tensorflow-cpu-aws==2.15.1`."""

    @property
    def pin(self) -> str:
        """`tensorflow-cpu==2.15.1`."""
        return f"{self.distribution}=={self.version}"

    @property
    def source(self) -> str:
        """The row's origin, for people."""
        return f"{self.wheel} ({self.sha256})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a framework, with the wheels of all its distributions."""

    version: Version
    wheels: tuple[FrameworkWheel, ...]


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
class CudaBase:
    """An image that brings CUDA where the framework's wheels do not."""

    cuda: str
    """As build_info.py has it: `11.2`."""
    image: str
    glibc: str
    python: str
    """Minor version of the distribution's own Python, which the image does not hold yet."""
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Requirements of an extra that cannot be installed as published and are left out."""

    versions: tuple[str, ...]
    pythons: tuple[str, ...]
    drop: tuple[str, ...]
    """Normalised names."""
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPath:
    """Releases that do not find their CUDA libraries by themselves."""

    versions: tuple[str, ...]
    folders: tuple[str, ...]
    """Below site-packages: `nvidia/cublas/lib`."""
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The lowest driver of a major version of CUDA."""

    cuda: str
    minimum: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A Debian release that Python's own slim images were made for."""

    name: str
    glibc: str
    since: tuple[str, ...]
    """For each minor version of Python the first patch that has such an image."""
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A distribution that a run may have, but that no index has for Linux."""

    name: str
    reason: str
    source: str


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


def load_profiles(folder: Path) -> Profiles:
    """Read the profiles; MatchError names the file, and the line or key, that is not right."""
    facts = _load(folder / "cuda.toml")
    return Profiles(
        frameworks=tuple(_framework(_load(folder / f"{name}.toml")) for name in FRAMEWORKS),
        bases=facts.each("base", _base),
        repairs=facts.each("repair", _repair),
        library_paths=facts.each("library_path", _library_path),
        drivers=facts.each("driver", lambda row: Driver(**row.strings("cuda", "minimum", "source"))),
        suites=facts.each("suite", _suite),
        foreign=facts.each("foreign", lambda row: Foreign(**row.strings("name", "reason", "source"))),
        nvidia_wheels=facts.texts("nvidia_wheels"),
        python_image=facts.text("python_image"),
    )


class _Table:
    """A TOML table whose values are asked for by key and type; errors carry the path to the key."""

    def __init__(self, data: dict[str, Any], path: str) -> None:
        self.data, self.path = data, path

    def wrong(self, key: str, expected: str) -> MatchError:
        return MatchError(
            f"a profile is not valid: expected {expected}",
            where=f"{self.path}{key}",
            todo="correct the file or make it anew",
        )

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a string")
        return value

    def maybe(self, key: str) -> str | None:
        return self.text(key) if key in self.data else None

    def strings(self, *keys: str) -> dict[str, str]:
        return {key: self.text(key) for key in keys}

    def texts(self, key: str, *, optional: bool = False) -> tuple[str, ...]:
        value = self.data.get(key, [] if optional else None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def each(self, key: str, read: Callable[["_Table"], T]) -> tuple[T, ...]:
        value = self.data.get(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, f"[[{key}]] tables")
        return tuple(read(_Table(item, f"{self.path}{key}[{place}].")) for place, item in enumerate(value))


def _load(path: Path) -> _Table:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise MatchError(
            f"a profile cannot be read: {error.strerror}", where=str(path), todo="install envbuild again"
        ) from error
    except ValueError as error:
        raise MatchError(
            f"a profile is not TOML: {error}", where=str(path), todo="correct the file or make it anew"
        ) from error
    table = _Table(data, f"{path}: ")
    if data.get("schema") != SCHEMA:
        raise table.wrong("schema", str(SCHEMA))
    return table


def _framework(table: _Table) -> FrameworkProfile:
    releases = table.each("release", _release)
    return FrameworkProfile(name=table.text("framework"), releases=tuple(sorted(releases, key=lambda it: it.version)))


def _release(table: _Table) -> Release:
    text = table.text("version")
    try:
        version = Version(text)
    except InvalidVersion:
        raise table.wrong("version", "a version as PEP 440 has it") from None
    return Release(version=version, wheels=table.each("wheel", lambda row: _wheel(row, text)))


def _wheel(row: _Table, version: str) -> FrameworkWheel:
    try:
        digest = Digest.parse(f"sha256:{row.text('sha256')}")
    except ValueError:
        raise row.wrong("sha256", "64 hexadecimal digits") from None
    return FrameworkWheel(
        **row.strings("distribution", "machine", "glibc", "wheel"),
        version=version,
        pythons=row.texts("pythons"),
        sha256=digest,
        cuda=row.maybe("cuda"),
        cudnn=row.maybe("cudnn"),
        compute_capabilities=row.texts("compute_capabilities", optional=True),
        cuda_requirements=row.texts("cuda_requirements", optional=True),
        stands_for=row.maybe("stands_for"),
    )


def _base(row: _Table) -> CudaBase:
    return CudaBase(**row.strings("cuda", "image", "glibc", "python", "reason", "source"))


def _repair(row: _Table) -> Repair:
    return Repair(
        versions=row.texts("versions"),
        pythons=row.texts("pythons"),
        drop=row.texts("drop"),
        reason=row.text("reason"),
        source=row.text("source"),
    )


def _library_path(row: _Table) -> LibraryPath:
    return LibraryPath(
        versions=row.texts("versions"),
        folders=row.texts("folders"),
        reason=row.text("reason"),
        source=row.text("source"),
    )


def _suite(row: _Table) -> Suite:
    return Suite(**row.strings("name", "glibc", "reason", "source"), since=row.texts("since"))
