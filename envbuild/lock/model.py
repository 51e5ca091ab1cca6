"""Lock: exact files for one Python and one platform."""

from dataclasses import dataclass, field
from typing import Protocol

from envbuild.match.stack import Gaps
from envbuild.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the locked wheels must run on; it can differ from the host."""

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

    def __str__(self) -> str:
        return f"CPython {self.python} on {self.machine} with glibc {self.glibc}"


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
    """Its address, without credentials and query; not part of the wheel's identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPackage:
    """One Debian package, by content."""

    name: str
    version: str
    """As Debian has it, with its epoch: `1:1.2.13.dfsg-1`."""
    architecture: str
    """`amd64`, `arm64` or `all`."""
    filename: str
    """Its path in an archive, which all mirrors have in common: `pool/main/z/zlib/zlib1g_1.2.13.dfsg-1_amd64.deb`."""
    sha256: Digest
    size: int
    """Bytes."""

    @property
    def basename(self) -> str:
        """The name of its file."""
        return self.filename.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Every wheel of the environment, and every package of the system that the base lacks."""

    target: Target
    wheels: tuple[LockedWheel, ...]
    """Sorted by name; one wheel a name."""
    packages: tuple[SystemPackage, ...] = ()
    """Sorted by name; one a name."""
    owners: tuple[tuple[str, str], ...] = ()
    """Paths that several distributions installed, as in RECORD, and the one whose file the run had; sorted."""
    yanked: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Names of wheels that their index has withdrawn (PEP 592), with its reason, which may be empty."""
    base: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """`name`, `digest` and `mirror_of` of the base that it was made for, as far as the file has them; sorted."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """Remarks on the date of what was added to an incomplete record."""
    slim: tuple[str, ...] = field(default=(), compare=False)
    """Names of the distributions of the run that were left out, as only training uses them; sorted."""
    direct: tuple[str, ...] = field(default=(), compare=False)
    """Names of wheels that came from an address of their own, which no index need have; sorted."""
    dropped: tuple[str, ...] = field(default=(), compare=False)
    """Names of the distributions of the run that `--drop` left out; sorted."""
    exclude_newer: str | None = field(default=None, compare=False)
    """The moment as of which an incomplete record was completed, `none` for no limit; None where nothing was added."""

    @property
    def pins(self) -> tuple[str, ...]:
        """The wheels as requirements: by version, or by address where they came from one of their own."""
        names = set(self.direct)
        return tuple(f"{it.name} @ {it.url}" if it.name in names else f"{it.name}=={it.version}" for it in self.wheels)


class Resolver(Protocol):
    """Turns requirements into exact wheels; adds their dependencies only when there are gaps to fill."""

    def resolve(
        self, requirements: tuple[str, ...], target: Target, gaps: Gaps | None = None, *, local: bool = False
    ) -> Lock:
        """Lock all requirements for `target`; LockError names everything that cannot be locked, all at once.

        `local` looks only in folders of this machine, and in no index.
        """
        ...
