"""What one target of a verification says of an environment, in the same words whatever the target is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envbuild.manifest.artifact import Model
from envbuild.manifest.hardware import Accelerator, Cpu
from envbuild.manifest.model import Contract, Data, Framework, Numerics

Kind = Literal["model", "image", "manifest", "lock", "context", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One distribution."""

    name: str
    """As PEP 503 normalises it."""
    version: str | None
    """None where it is only known by a commit or a folder."""
    content: str | None = None
    """`content_sha256` of the manifest: the paths and hashes of its RECORD, the same for every installer; hex."""
    wheels: frozenset[str] = frozenset()
    """Hex sha256 of the files of which one is, or will be, installed; empty where nobody knows."""
    build: str = ""
    """Of a conda package its build, of a checkout its commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a target says; None, or an empty value where None is no choice, where it says nothing of that."""

    name: str
    """As it was given: `churn:7`, `host`."""
    kind: Kind
    python: str | None = None
    """`3.11.7`, or `3.11` where no more is known."""
    pythonless: bool = False
    """Whether somebody looked for a Python, and there is none at all."""
    implementation: str | None = None
    """`cpython`."""
    system: str | None = None
    """`Linux`."""
    machine: str | None = None
    """`x86_64`."""
    libc: str | None = None
    """`glibc`."""
    libc_version: str | None = None
    """`2.36`."""
    packages: Mapping[str, Package] | None = None
    """Every distribution by its normalised name."""
    complete: bool = True
    """Whether what is not among the packages is not there."""
    slim: frozenset[str] = frozenset()
    """Names of packages that only training uses and that were left out on purpose."""
    dropped: frozenset[str] = frozenset()
    """Names of packages that somebody left out by hand."""
    frameworks: tuple[Framework, ...] = ()
    """Every framework with what it was built for; the one that trained, or would serve, first."""
    cuda: str | None = None
    """CUDA's runtime that is in it: `12.5.82`."""
    cudnn: str | None = None
    """cuDNN that is in it: `9.3.0`."""
    variant: Literal["gpu", "cpu"] | None = None
    """What an image or lock was made for."""
    accelerator: Accelerator | None = None
    """GPUs and driver."""
    cpu: Cpu | None = None
    """The CPU; flags are empty where nobody looked."""
    variables: Mapping[str, str] | None = None
    """Values of environment variables, as far as they are known."""
    names: frozenset[str] | None = None
    """Names of all variables that are set, where all of them are known."""
    unset: frozenset[str] | None = None
    """Names of variables that are known not to be set, where not all names are known."""
    numerics: tuple[Numerics, ...] | None = None
    """What the running frameworks were told."""
    contract: Contract = field(default_factory=Contract)
    """What the program needs from wherever it runs."""
    model: Model | None = None
    """The model's own files."""
    absent_data: frozenset[str] | None = None
    """URIs of the other side's data that cannot be seen from here; None where nobody looked."""
    data: Mapping[str, Data] | None = None
    """What lies now at places that the other side's contract names, by their URI there."""
    trees: Mapping[str, str] | None = None
    """Git tree digests of preprocessing code here, by path: as contracts name it, or where it is imported instead."""

    @property
    def framework(self) -> Framework | None:
        """The framework that trained, or would serve."""
        return self.frameworks[0] if self.frameworks else None
