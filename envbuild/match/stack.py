"""Stack: the decision that follows from a manifest and the profiles, and the values that a person sets against them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from envbuild.errors import MatchError, UsageError
from envbuild.match.rows import Limit
from envbuild.oci.reference import Reference

Variant = Literal["gpu", "cpu"]
VariantChoice = Literal["auto", "gpu", "cpu"]
CudaSource = Literal["wheels", "base", "none"]
CudaChoice = Literal["auto", "wheels", "base"]
OWN = "the run's own"
"""Why a decision is as it is, where it was the run's."""
KEYS = ("base", "cuda", "cudnn", "driver_minimum", "python")
"""What `--set` takes."""
_NUMBERS = re.compile(r"\d+(\.\d+)*\Z")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    """How the lock adds what the run's record leaves out: as dependencies of what it lists."""

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
    """Pairs of releases that are known to fail together. They are refused, as only a record with gaps can have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What has to be locked, and on what it will stand."""

    framework: str
    distribution: str
    """`tensorflow` or `tensorflow-cpu`."""
    version: str
    variant: Variant
    python: str
    """The run's exact Python."""
    machine: str
    cuda: str | None
    """CUDA of the image, as exactly as it is known: `11.8`, `12.5.1`."""
    cudnn: str | None
    """cuDNN of the image, as exactly as it is known: `8.9.4.25`; of a base or a range, its major version."""
    cuda_source: CudaSource
    base: str
    """The base that the profile names; an option may replace it. Empty if none is known."""
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
    not_imported: tuple[str, ...] = ()
    """Those that the run did not import. The lock has one that is not among `dropped` where what stays requires it."""
    unimported: tuple[str, ...] = ()
    """Those that the run did not import and the stack has all the same; empty where the record does not say it."""
    overrides: tuple[tuple[str, str], ...] = ()
    """What was set by hand against the profiles: `("cuda", "12.2")`; sorted."""

    @property
    def title(self) -> str:
        """`tensorflow 2.15.1`, or `no framework`."""
        return "no framework" if self.framework == "none" else f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values by key; an empty one is not set."""

    base: str = ""
    cuda: str = ""
    cudnn: str = ""
    driver_minimum: str = ""
    python: str = ""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """What is set, sorted by key."""
        return tuple((key, value) for key in KEYS if (value := str(getattr(self, key))))

    def refused(self, key: str, why: str, todo: str = "leave it out, or set another value") -> MatchError:
        """Return the error for a value that no stack can have."""
        return MatchError(f"{key} {getattr(self, key)} is not available: {why}", where=f"--set {key}", todo=todo)

    def mark_overridden(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """Mark the decisions that were set by hand, as warnings."""
        keys = {"driver" if key == "driver_minimum" else key: (key, value) for key, value in self.pairs}
        found = []
        for it in decisions:
            key, value = keys.get(it.what, ("", ""))
            reasons = (f"overridden: {key} was set by hand", *(text for text in it.reason.split("; ") if text != OWN))
            source = f"--set {key}={value}; {it.source}"
            found.append(replace(it, reason="; ".join(reasons), source=source, warning=True) if key else it)
        return tuple(found)


def read_overrides(values: Mapping[str, str] | None) -> Overrides:
    """Take overrides by key; UsageError for an unknown key, or a value that it cannot have."""
    for key, value in (values or {}).items():
        where = f"--set {key}={value}"
        if key not in KEYS:
            raise UsageError(f"nothing is decided by {key!r}", where="--set", todo=f"set one of {', '.join(KEYS)}")
        if not value or (key != "base" and not _NUMBERS.match(value)):
            expected = "an image" if key == "base" else "numbers with dots, such as 12.2"
            raise UsageError(f"{key} must be {expected}", where=where, todo="correct the value")
        if key == "base" and not value.startswith(("oci:", "/", ".")):
            try:
                Reference.parse(value.removeprefix("docker://"))
            except ValueError as error:
                todo = "give it as IMAGE:TAG, or IMAGE@sha256:..."
                raise UsageError(f"base names no image: {error}", where=where, todo=todo) from None
    return Overrides(**(values or {}))


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Read `KEY=VALUE` as the command line has it; UsageError for a key without a value, or one that comes twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not value or key in pairs:
            what = f"{key} is set twice" if value else f"{text!r} sets nothing"
            raise UsageError(what, where="--set", todo=f"give KEY=VALUE, each key of {', '.join(KEYS)} once at most")
        pairs[key] = value
    return pairs
