"""The subject to reproduce, this machine, the choice, and the launch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envbuild.lock.model import Lock
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.manifest.model import Contract, TrainingManifest
from envbuild.oci.layout import ARCHITECTURES
from envbuild.stamp.record import StampedImage
from envbuild.verify.findings import Finding
from envbuild.verify.sources import Side

Slot = tuple[str, str, str]
"""Role, variant and platform."""
Variant = Literal["gpu", "cpu"]
VariantChoice = Literal["auto", "gpu", "cpu"]
EngineKind = Literal["docker", "podman"]
GpuWay = Literal["cdi", "runtime"]
"""How containers get GPUs: by a CDI specification, or by NVIDIA's runtime and its hook."""
WORKSPACE = "/workspace"
"""The caller's folder in the container."""
_HEEDS_GPUS = (5, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be reproduced."""

    name: str
    """As it was given."""
    side: Side
    """What its run had, as rules read it; of an image what lies in it."""
    manifest: TrainingManifest | None = None
    """The run's; None for an image."""
    manifest_bytes: bytes | None = None
    """The manifest as it was captured or stamped."""
    images: tuple[StampedImage, ...] = ()
    """With what the model is stamped."""
    locks: Mapping[Slot, Lock] = field(default_factory=dict)
    """Of each stamped image, by the copy beside the record."""
    model: str | None = None
    """The model that the user named; the location in a manifest is only a claim."""
    named: str | None = None
    """The one file of the model that was given on the command line: only that is mounted, and not the folder around."""
    image: str | None = None
    """The image that was given itself."""
    findings: tuple[Finding, ...] = ()
    """What is not as it was stamped: the model's files, and the copies beside its record."""

    @property
    def contract(self) -> Contract:
        """What the program needs."""
        return (self.manifest.contract if self.manifest else None) or Contract()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A container engine that answers."""

    kind: EngineKind
    version: str
    machine: str
    """`x86_64` or `aarch64`: whose images it runs without emulation."""
    rootless: bool = False
    gpus: GpuWay | None = None
    """How its containers get GPUs; None where they do not."""
    folder: Path | None = None
    """Where it keeps images, if that is on this machine."""
    near: bool = True
    """Whether it runs on this machine, so that its containers see files and GPUs of it."""

    @property
    def ignores_gpus(self) -> bool:
        """Whether it ignores requests for GPUs: podman's socket before 5.4 (podman #25171)."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return self.kind == "podman" and found is not None and (int(found[1]), int(found[2])) < _HEEDS_GPUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine here, as far as it decides what can be run."""

    machine: str
    """`x86_64` or `aarch64`: the engine's, where there is one."""
    system: str
    """`Linux`, `Darwin`."""
    cpu: Cpu | None = None
    accelerator: Accelerator | None = None
    engine: Engine | None = None
    """None where none answers."""
    free: int | None = None
    """Bytes that are free where images will lie; None where nobody knows."""

    @property
    def platform(self) -> str:
        """`linux/amd64`."""
        return f"linux/{ARCHITECTURES.get(self.machine, self.machine)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision: which environment, and how it comes here."""

    variant: Variant
    platform: str
    """`linux/amd64`."""
    gpus: bool
    """Whether the container gets this machine's GPUs."""
    pull: StampedImage | None = None
    """The stamped image that is pulled by digest; None where it has to be built, or was given."""
    expected: StampedImage | None = None
    """What the model is stamped with for the same variant and platform, if that was never pushed: building gives it."""
    nearest: StampedImage | None = None
    """The stamped image whose pins are compared; None without a stamp."""
    reasons: tuple[str, ...] = ()
    """Each in a sentence, in the order in which they were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of this machine in the container."""

    source: Path
    """Absolute."""
    target: str
    """Absolute, in the container."""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of the container that is reached here."""

    host: int
    """0 for any that is free."""
    container: int
    address: str = "127.0.0.1"
    """The address of this machine that listens."""

    @property
    def option(self) -> str:
        """As the option has it, for messages."""
        return f"--port {self.address}:{self.host}:{self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The contract, met as far as it can be."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """What the container gets, mapped data locations rewritten."""
    mounts: tuple[Mount, ...] = ()
    """Data and credentials."""
    missing: tuple[str, ...] = ()
    """Variables that the run had, the program reads, and nothing provides."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Which source each variable came from: `run`, `.env`, `shell`, `option`, `data`, `model`, `adc`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A container to be started, and to be gone when it ends."""

    image: str
    """As the engine names it: an id, or a reference that it has."""
    command: tuple[str, ...]
    """Program and arguments; of `/bin/sh` where only that can be hoped for."""
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    folder: str = WORKSPACE
    """The working directory in the container."""
    ports: tuple[Port, ...] = ()
    shm_size: int | None = None
    """Bytes of /dev/shm; None for the engine's own choice."""
    gpus: GpuWay | None = None
    """None where it gets none."""
    devices: tuple[str, ...] = ()
    """Which GPUs, by index or UUID; empty for all."""
    user: str | None = None
    """`1000:1000`; None for the caller's own."""
    interactive: bool = False
    """Whether it gets a terminal, if stdin and stdout are one."""
