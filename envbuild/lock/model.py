"""Lock: exact files for one Python and one platform."""

from dataclasses import dataclass, field
from typing import Protocol

from envbuild.match.stack import Gaps
from envbuild.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the locked wheels must run on; it need not be the host."""

    python: str
    """Exact version of the interpreter in the base: `3.11.2`."""
    machine: str
    """`x86_64` or `aarch64`."""
    glibc: str
    """Version of the C library in the base: `2.36`."""

    @property
    def python_minor(self) -> str:
        """`3.11`."""
        return ".".join(self.python.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """One wheel, by content."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    filename: str
    sha256: Digest
    size: int
    """Bytes."""
    url: str
    """Where it was found, without credentials; no part of the wheel's identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Every wheel of the environment."""

    target: Target
    wheels: tuple[LockedWheel, ...]
    """Sorted by name; one wheel a name."""
    yanked: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Names of wheels that their index has withdrawn (PEP 592), with its reason, which may be empty."""


class Resolver(Protocol):
    """Turns requirements into exact wheels, without adding what they depend on unless there are gaps to fill."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """Lock all requirements for `target`; LockError names everything that cannot be locked, all at once.

        `local` looks only in folders of this machine, and in no index.
        """
        ...
