"""A lock: exact files for one Python and one platform; and which wheels a target can use, the best first."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from msgspec import Meta
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.version import InvalidVersion, Version

from envbuild.errors import UsageError
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.validation import read_values
from envbuild.wheel.install import FilePattern
from envbuild.wheel.name import parsed_wheel

PACKAGE_NAME, PACKAGE_VERSION = r"[a-z0-9][a-z0-9+.-]+", r"[0-9][0-9A-Za-z.+~:-]*"
"""Of Debian packages (Debian Policy, sections 5.6.1 and 5.6.12)."""
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of manylinux levels (PEP 600)."""
_LOWEST = {"x86_64": 5, "aarch64": 17}
"""The first glibc 2.N that wheels of a machine were made for."""

_GLIBC = re.compile(r"2\.([0-9]{1,3})")
"""Each N has its own tags, so an N without a bound would fill the memory."""
_OLDEST = "2.17"
"""That of manylinux2014, the oldest that uv locks for."""


Named = TypeVar("Named")


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
    left_out: tuple[FilePattern, ...] = ()
    """Which of its files are not installed."""

    @property
    def content_key(self) -> tuple[str | tuple[FilePattern, ...], ...]:
        """What decides the files that it installs."""
        return (self.filename, str(self.sha256), *([self.left_out] if self.left_out else []))

    @property
    def label(self) -> str | None:
        """The label of a wheel variant, which pip and uv do not take from an index; None for any other file."""
        wheel = parsed_wheel(self.filename)
        return wheel.label if wheel else None

    @property
    def plain_name(self) -> str:
        """The file name without that label, under which pip and uv take the file from a folder."""
        wheel = parsed_wheel(self.filename)
        return wheel.plain if wheel else self.filename


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPackage:
    """One Debian package, by content; the texts become parts of command lines and addresses."""

    name: Annotated[str, Meta(pattern=rf"\A{PACKAGE_NAME}\Z")]
    version: Annotated[str, Meta(pattern=rf"\A{PACKAGE_VERSION}\Z")]
    """As Debian has it, with its epoch: `1:1.2.13.dfsg-1`."""
    architecture: Annotated[str, Meta(pattern=r"\A[a-z0-9-]+\Z")]
    """`amd64`, `arm64` or `all`."""
    filename: Annotated[str, Meta(pattern=r"\A(?:(?!\.)[\w.+~%:-]+/)*[a-z0-9][\w.+~%:-]*\.deb\Z")]
    """Its path in an archive, which all mirrors have in common: `pool/main/z/zlib/zlib1g_1.2.13.dfsg-1_amd64.deb`."""
    sha256: Digest
    size: Annotated[int, Meta(gt=0)]
    """Bytes."""

    @property
    def basename(self) -> str:
        """The name of its file."""
        return self.filename.rpartition("/")[2]


def package_of(value: Mapping[str, Any]) -> SystemPackage:
    """Read a package from an untrusted file; ValueError where it is not valid."""
    path = f"system package {value.get('name')}"
    return read_values({**value, "sha256": {"hex": value.get("sha256")}}, SystemPackage, path)


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
    date_warnings: tuple[str, ...] = field(default=(), compare=False)
    """What was added to an incomplete record as of another date than its own, or without one."""
    slim: tuple[str, ...] = field(default=(), compare=False)
    """Names of the distributions of the run that were left out, as only training uses them; sorted."""
    slim_files: tuple[str, ...] = field(default=(), compare=False)
    """The rules by which files of the wheels were left out, as no program that serves opens them; sorted."""
    direct: tuple[str, ...] = field(default=(), compare=False)
    """Names of wheels that came from an address of their own, which no index need have; sorted."""
    dropped: tuple[str, ...] = field(default=(), compare=False)
    """Names of the distributions of the run that `--drop` or `--only-imported` left out; sorted."""
    drop_reasons: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Why these were left out, by name, other than by `--drop` alone; sorted."""
    as_of: str | None = field(default=None, compare=False)
    """The moment as of which an incomplete record was completed, `none` for no limit; None where nothing was added."""

    @property
    def drops(self) -> tuple[str, ...]:
        """What was left out as `--drop` takes it: `NAME`, or `NAME=REASON`."""
        reasons = dict(self.drop_reasons)
        return tuple(f"{it}={reasons[it]}" if it in reasons else it for it in self.dropped)

    @property
    def pins(self) -> tuple[str, ...]:
        """The wheels as requirements: by version, or by address where they came from one of their own."""
        names = {it.name for it in self.wheels if it.name in self.direct and not it.label}
        return tuple(f"{it.name} @ {it.url}" if it.name in names else f"{it.name}=={it.version}" for it in self.wheels)


def stack_target(stack: Stack, base_glibc: str | None, glibc: str | None = None) -> Target:
    """The target without a base: the run's Python, and `glibc`, else the default base's or the framework's lowest."""
    lowest = Target(python=stack.python, machine=stack.machine, glibc=stack.glibc_minimum)
    if glibc is not None:
        asked = replace(lowest, glibc=glibc)
        if glibc_minor(asked) < glibc_minor(lowest):
            what = f"the framework's wheel needs glibc {stack.glibc_minimum}"
            raise UsageError(what, where=f"--glibc {glibc}", todo="ask for that or a later one")
        return asked
    return max(lowest, replace(lowest, glibc=base_glibc or _OLDEST), key=glibc_minor)


def glibc_minor(target: Target) -> int:
    """The N of glibc 2.N; UsageError for anything else."""
    found = _GLIBC.fullmatch(target.glibc)
    if found is None:
        raise UsageError(f"glibc {target.glibc!r} is not a glibc version", todo="give it as 2.N, such as 2.36")
    return int(found[1])


@lru_cache(maxsize=16)
def ranked_tags(target: Target) -> Mapping[Tag, int]:
    """Every tag that the target accepts, with its place: 0 is the best."""
    version = tuple(int(part) for part in target.python_minor.split("."))
    name = "cp" + "".join(map(str, version))
    abi = f"{name}m" if version < (3, 8) else name
    platforms = list(_platforms(target))
    tags = [*cpython_tags(version, [abi], platforms), *compatible_tags(version, name, platforms)]
    return {tag: place for place, tag in reversed(list(enumerate(tags)))}


def same_version(text: str | None, other: str) -> bool:
    """Whether both are the same version (PEP 440), however written."""
    try:
        return text is not None and Version(text) == Version(other)
    except InvalidVersion:
        return text == other


def best_wheel(candidates: Iterable[tuple[str, Named]], target: Target) -> Named | None:
    """The value whose file name an installer on the target takes: best tag, then highest build, then first name.

    A wheel variant comes after all others: what it needs beside its tags is not known here.
    """
    rank = ranked_tags(target)
    fitting: list[tuple[tuple[bool, int, tuple[int, int, str], str], Named]] = []
    for filename, value in candidates:
        wheel = parsed_wheel(filename)
        places = [rank[tag] for tag in wheel.tags if tag in rank] if wheel else []
        if wheel and places:
            number, suffix = wheel.build or (-1, "")
            order = (wheel.label is not None, min(places), (-number, len(suffix), suffix), filename)
            fitting.append((order, value))
    return min(fitting, key=lambda item: item[0])[1] if fitting else None


def _platforms(target: Target) -> Iterator[str]:
    """Platform tags in the order of packaging.tags: wheels built on such a machine, then the newest glibc first."""
    lowest = _LOWEST.get(target.machine)
    if lowest is None:
        raise UsageError(f"machine {target.machine!r} is not supported", todo="use x86_64 or aarch64")
    yield f"linux_{target.machine}"
    for minor in range(glibc_minor(target), lowest - 1, -1):
        yield f"manylinux_2_{minor}_{target.machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{target.machine}"
