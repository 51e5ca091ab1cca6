"""Stack: the decision that follows from a manifest and the profiles, with a reason for each part."""

from dataclasses import dataclass
from typing import Literal

from envbuild.match.facts import Limit

Variant = Literal["gpu", "cpu"]
CudaSource = Literal["wheels", "base", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One line of the plan."""

    what: str
    """`cuda`, `variant`, `base`."""
    value: str
    reason: str
    source: str
    """The profile row, the manifest key or the option that it rests on."""
    warning: bool = False
    """Whether it is something to look at: the run breaks a rule, or somebody overrode one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinChange:
    """A distribution that differs from the run because of the variant, the machine, or where CUDA comes from."""

    name: str
    before: str | None
    """Requirement of the run, `tensorflow==2.15.1`; None when it is added."""
    after: str | None
    """Requirement of the stack; None when it is dropped."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What the run's record leaves out, and how it is to be filled: by what the requirements require in turn."""

    without: tuple[str, ...] = ()
    """Normalised names that are never added, as the variant excludes them."""
    replaced: tuple[tuple[str, str], ...] = ()
    """Of these, what another distribution stands in for: `("tensorflow==2.15.0", "tensorflow-cpu==2.15.0")`.

    What requires the first one has to fit its version.
    """
    versions: tuple[str, ...] = ()
    """Bounds of what is added: `numpy==1.26.4` where the run's conda had it, `numpy<2` where the framework needs it."""
    before: str | None = None
    """Only what was uploaded before this moment is added: `2023-04-02T00:00:00Z`; None for any time."""
    limits: tuple[Limit, ...] = ()
    """What is known to fail together, and is refused, as no run is known to have had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What has to be locked, and on what it will stand."""

    framework: str
    """`tensorflow`."""
    distribution: str
    """`tensorflow` or `tensorflow-cpu`."""
    version: str
    variant: Variant
    python: str
    """The run's exact Python."""
    machine: str
    """`x86_64` or `aarch64`."""
    cuda: str | None
    """CUDA of the image, as exactly as it is known: `11.8`, `12.5.1`."""
    cudnn: str | None
    """cuDNN of the image, as exactly as it is known: `8.9.4.25`; else its major version: of a base, or of a range."""
    cuda_source: CudaSource
    base: str
    """The base that the profile names; an option may replace it. Empty where none is known, without a run."""
    glibc_minimum: str
    """Lowest glibc that the framework's wheel accepts: `2.17`."""
    driver_minimum: str | None = None
    """Lowest NVIDIA driver on the host; None without CUDA."""
    requirements: tuple[str, ...]
    """PEP 508 requirements, sorted by normalised name."""
    gaps: Gaps | None = None
    """None where the requirements are everything, and nothing that they depend on is added."""
    variables: tuple[tuple[str, str], ...]
    """Environment variables that the image sets for this stack, sorted."""
    changes: tuple[PinChange, ...]
    decisions: tuple[Decision, ...]
    dropped: tuple[str, ...] = ()
    """Normalised names of distributions of the run that were left out by hand; sorted."""
    overrides: tuple[tuple[str, str], ...] = ()
    """What was set by hand against the profiles: `("cuda", "12.2")`; sorted."""

    @property
    def title(self) -> str:
        """`tensorflow 2.15.1`, or `no framework`."""
        return "no framework" if self.framework == "none" else f"{self.distribution} {self.version}"
