"""The rows of profiles: wheels of frameworks, bases, drivers, limits and other projects, each with its source."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

Text = Annotated[str, Meta(min_length=1)]
_FIRST_VERSION = re.compile(r"(?:==|>=|~=|>)\s*([\d.]+)")


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
    withdrawn: Text | None = None
    """Since when its registry does not have it any more; None where it may be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaArchive:
    """NVIDIA's Debian packages of one CUDA, with cuDNN: a base can be made of them where no image is left."""

    cuda: Text
    """`10.1`."""
    lines: tuple[str, ...]
    """apt's one-line sources."""
    packages: tuple[str, ...]
    """Each as NAME=VERSION."""
    source: Text


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
class Opener:
    """Releases of a project that opens CUDA as frameworks do, with equal facts, as their wheels on the index say."""

    distribution: Text
    """Normalised: `onnxruntime-gpu`."""
    first: Text
    last: Text
    cuda: str = ""
    """The major version, or as exactly as the wheel says it: `12`, `12.8`; empty where it says none, or has several."""
    opens: tuple[str, ...] = ()
    """Sonames that it opens or links, without which it does not use the GPU: `libcublas.so.12`."""
    optional: tuple[str, ...] = ()
    """Sonames whose loss costs a feature only."""
    after: Literal["torch", "tensorflow", ""] = ""
    """The framework that its Python imports before it loads a library."""
    preloads: tuple[str, ...] = ()
    """Patterns below site-packages of what its Python opens by path before its own library."""
    needs_path: bool = False
    """Whether it finds NVIDIA's wheels by LD_LIBRARY_PATH alone, unless another library has loaded them before."""
    builds: tuple[str, ...] = ()
    """The CUDA of PyTorch that it has a build for, where it brings several: `12.6`, or `12` for any 12."""
    cpu: str = ""
    """The distribution that has the same API without CUDA; empty where there is none."""
    cpu_releases: tuple[str, ...] = ()
    """The releases of that distribution, in rising order."""
    gpu_only: bool = False
    """Whether it does nothing without a GPU, and has no build for the CPU."""
    requires: tuple[str, ...] = ()
    """What it needs of others where METADATA does not say so: `tensorflow==2.15.*`."""
    note: str = ""
    source: Text
    """The wheel that the row was read from, with its digest."""

    def covers(self, name: str, version: str) -> bool:
        """Whether it is one of these releases, in the index's own build: one with a local label is another."""
        release = public_version(version) if name == self.distribution and "+" not in version else None
        return release is not None and Version(self.first) <= release <= Version(self.last)

    @property
    def for_gpu(self) -> bool:
        """Whether nobody installs it without a GPU in mind."""
        return self.gpu_only or bool(self.cpu)


def public_version(text: str) -> Version | None:
    """The version without a local label; None for what PEP 440 does not allow."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None
