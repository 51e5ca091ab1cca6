"""TrainingManifest: what a training run really had, as values."""

from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = "1.0"
"""Written by this release; a newer minor version is read, a newer major one is refused."""

OriginKind = Literal["index", "vcs", "archive", "editable", "conda", "unknown"]
"""`editable` is any folder of sources (PEP 610 dir_info), installed in place or copied: no index has it either way.

`unknown` is what nothing tells the origin of: no INSTALLER, an egg-info, or a package of the operating system.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a distribution came from (PEP 610 for all but index and conda)."""

    kind: OriginKind
    url: str | None = None
    """Without user name or password."""
    commit: str | None = None
    """The VCS commit that was installed."""
    subdirectory: str | None = None
    sha256: str | None = None
    """Hexadecimal digest of the archive, where PEP 610 recorded it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One installed distribution."""

    name: str
    """As its metadata spells it."""
    version: str
    """Local version labels kept."""
    origin: Origin
    installer: str | None = None
    """The INSTALLER file: `pip`, `uv`, `conda`."""
    requested: bool = False
    record_sha256: str | None = None
    """Hexadecimal digest of the RECORD file as installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The interpreter of the run."""

    version: str
    """Exact, `3.11.7`."""
    implementation: str
    """As `sys.implementation.name`: `cpython`."""
    soabi: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Operating system and C library of the run."""

    system: str
    """As `platform.system()`: `Linux`."""
    machine: str
    """As `platform.machine()`: `x86_64`, `aarch64`."""
    libc: str | None = None
    """`glibc` or `musl`."""
    libc_version: str | None = None
    os_id: str | None = None
    """ID of /etc/os-release: `debian`."""
    os_version: str | None = None
    """VERSION_ID of /etc/os-release: `12`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The framework of the run and how it was built."""

    name: str
    """`tensorflow`."""
    distribution: str
    """The distribution that brought it: `tensorflow`, `tensorflow-cpu`, `tensorflow-gpu`."""
    version: str
    cuda: str | None = None
    """CUDA that it was built with, as its build_info.py says; None for a CPU build."""
    cudnn: str | None = None
    compute_capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU that the run could see."""

    name: str
    memory: int | None = None
    """Bytes."""
    compute_capability: str | None = None
    """`9.0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The NVIDIA driver and GPUs of the run."""

    driver: str | None = None
    """`535.129.03`."""
    cuda_maximum: str | None = None
    """The newest CUDA that the driver serves: `12.2`."""
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The CPU of the run."""

    model: str | None = None
    count: int | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The git checkout that the run was started in."""

    commit: str
    remote: str | None = None
    """Without user name or password."""
    dirty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingManifest:
    """What a training run really had; absent facts are None or empty, never guessed."""

    schema_version: str
    created: str
    """RFC 3339, UTC."""
    python: Python
    platform: Platform
    distributions: tuple[Distribution, ...]
    """Sorted by normalised name."""
    framework: Framework | None = None
    accelerator: Accelerator | None = None
    """None when no NVIDIA driver was there."""
    cpu: Cpu = field(default_factory=Cpu)
    variables: tuple[tuple[str, str], ...] = ()
    """Allow-listed environment variables, sorted by name."""
    code: Code | None = None
    model_uri: str | None = None
