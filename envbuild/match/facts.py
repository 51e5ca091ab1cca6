"""Rows of `profiles/cuda.toml`: what no wheel says, kept by hand, each with its source."""

from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from envbuild.match.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaBase:
    """An image that brings CUDA where the framework's wheels do not."""

    cuda: str
    """As build_info.py has it: `11.2`."""
    image: str
    glibc: str
    python: str
    """Minor version of the distribution's own Python, which the image does not hold yet."""
    cudnn: str | None
    """cuDNN in it, where its recipe says so: `8.1.1.33`."""
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
    """The lowest driver of a major version of CUDA, or of a minor one before CUDA 11."""

    cuda: str
    minimum: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """The driver that a CUDA release came with: what compiles PTX for a GPU that the machine code does not fit."""

    cuda: str
    """`12.5.1`; `12.5` is the first release of 12.5."""
    driver: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnFloor:
    """The lowest cuDNN that a range of releases accepts at run time, where their wheels tell the major version only."""

    framework: str
    first: str
    last: str
    minimum: str
    """`8.6`; any later minor version of the same major one is accepted too."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A requirement that the wheels of a range of releases should have had."""

    distributions: tuple[str, ...]
    """Normalised names that have the same code: `tensorflow`, `tensorflow-cpu`."""
    first: str
    last: str
    requirement: str
    reason: str
    source: str
    breaks: str | None = None
    """What fails without it: `import tensorflow`; None where it is known of no version that it fails with."""
    undeclared: bool = False
    """Whether the release imports the distribution and its wheel does not require it: incomplete records get it."""

    def covers(self, name: str, version: str) -> bool:
        """Whether the limit is about this release."""
        if name not in self.distributions or not (release := _release(version)):
            return False
        return Version(self.first) <= release <= Version(self.last)

    def allows(self, version: str) -> bool:
        """Whether the requirement accepts a version of what it is about; True for what is no version."""
        return not _release(version) or Requirement(self.requirement).specifier.contains(version, prereleases=True)


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
class WheelSet:
    """Wheels of NVIDIA's that bring CUDA to builds whose own wheels require none."""

    cuda: str
    """`11.8`."""
    serves: tuple[str, ...]
    """The CUDA of the builds that open these libraries under the same names: `11.2`."""
    requirements: tuple[str, ...]
    """Exact pins, all but cuDNN."""
    cudnn: tuple[str, ...]
    """Exact pins of cuDNN to choose from, in rising order; the first is the default."""
    folders: tuple[str, ...]
    """Where the libraries lie, below site-packages: `nvidia/cublas/lib`."""
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Releases whose XLA has to be told where the wheel with ptxas and libdevice lies."""

    framework: str
    first: str
    last: str
    folder: str
    """Below site-packages: `nvidia/cuda_nvcc`."""
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """The compute capability of GPUs, for records that have their names only."""

    capability: str
    """`9.0`."""
    words: tuple[str, ...]
    """One of them is a word of the name: `H100`."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """GPUs that not every CUDA serves: neither one before `first_cuda` nor one after `last_cuda`."""

    lowest: str
    """The lowest compute capability of them: `10.0`."""
    highest: str
    """The highest one, as far as it is told: `9.0`."""
    first_cuda: str | None
    """`12.8`; None where every CUDA of the profiles had them."""
    last_cuda: str | None
    """`12`; None where no CUDA dropped them."""
    driver: str | None
    """The first driver that knows them; None where every driver of the profiles does."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledBuild:
    """The releases of PyTorch that its own index has a build of for one CUDA."""

    label: str
    """`cu118`."""
    first: str
    last: str | None
    """None where later releases may have it too."""

    def covers(self, version: Version) -> bool:
        """Whether the release has such a build."""
        release = Version(version.public)
        return Version(self.first) <= release and (self.last is None or release <= Version(self.last))


def _release(text: str) -> Version | None:
    """The version without a local label; None for what is no version of a release."""
    try:
        version = Version(Version(text).public)
    except InvalidVersion:
        return None
    return version if version.release else None


def within(row: "CudnnFloor | Compiler", framework: str, version: str) -> bool:
    """Whether a row is about this release."""
    release = Version(version)
    return row.framework == framework and Version(row.first) <= release <= Version(row.last)


def read_base(row: Table) -> CudaBase:
    """A CUDA base."""
    return CudaBase(**row.strings("cuda", "image", "glibc", "python", "reason", "source"), cudnn=row.maybe("cudnn"))


def read_repair(row: Table) -> Repair:
    """A repair."""
    return Repair(
        versions=row.texts("versions"),
        pythons=row.texts("pythons"),
        drop=row.texts("drop"),
        reason=row.text("reason"),
        source=row.text("source"),
    )


def read_library_path(row: Table) -> LibraryPath:
    """A library path."""
    return LibraryPath(
        versions=row.texts("versions"),
        folders=row.texts("folders"),
        reason=row.text("reason"),
        source=row.text("source"),
    )


def read_suite(row: Table) -> Suite:
    """A suite."""
    return Suite(**row.strings("name", "glibc", "reason", "source"), since=row.texts("since"))


def read_toolkits(row: Table) -> tuple[Toolkit, ...]:
    """The drivers of several toolkits, which share a source."""
    source, drivers = row.text("source"), row.inner("drivers")
    return tuple(Toolkit(cuda=cuda, driver=drivers.text(cuda), source=source) for cuda in drivers.data)


def read_cudnn_floor(row: Table) -> CudnnFloor:
    """A lowest cuDNN."""
    return CudnnFloor(**row.strings("framework", "first", "last", "minimum", "source"))


def read_limit(row: Table) -> Limit:
    """A limit."""
    return Limit(
        **row.strings("first", "last", "requirement", "reason", "source"),
        distributions=row.texts("distributions"),
        breaks=row.maybe("breaks"),
        undeclared=row.data.get("undeclared") is True,
    )


def read_wheel_set(row: Table) -> WheelSet:
    """A set of wheels."""
    return WheelSet(
        **row.strings("cuda", "reason", "source"),
        serves=row.texts("serves"),
        requirements=row.texts("requirements"),
        cudnn=row.texts("cudnn"),
        folders=row.texts("folders"),
    )


def read_compiler(row: Table) -> Compiler:
    """A place of the compiler."""
    return Compiler(**row.strings("framework", "first", "last", "folder", "reason", "source"))


def read_generation(row: Table) -> Generation:
    """A generation."""
    texts = row.strings("lowest", "highest", "source")
    return Generation(
        **texts, first_cuda=row.maybe("first_cuda"), last_cuda=row.maybe("last_cuda"), driver=row.maybe("driver")
    )


def read_capabilities(row: Table) -> tuple[Capability, ...]:
    """GPUs by capability, which share a source."""
    source, gpus = row.text("source"), row.inner("gpus")
    return tuple(Capability(capability=key, words=gpus.texts(key), source=source) for key in gpus.data)


def read_labelled_build(row: Table) -> LabelledBuild:
    """A labelled build."""
    return LabelledBuild(**row.strings("label", "first"), last=row.maybe("last"))
