"""The Linux wheels on a project's page, and the rows that they share."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envbuild.errors import LockError
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from profiles.refresh.index import Index, IndexFile

MACHINES = ("x86_64", "aarch64")
"""In the order rows are written."""
WORKERS = 16
Report = Callable[[int, int], object]
"""Is told after each wheel how many rows were read, and how many there are."""
T = TypeVar("T")
_NAMED = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX = re.compile(r"(manylinux1|manylinux2010|manylinux2014|manylinux_(\d+)_(\d+))_(x86_64|aarch64)\Z")
_INTERPRETER = re.compile(r"cp3(\d+)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A Linux wheel on a project's page."""

    distribution: str
    version: Version
    machine: str
    python: int | None
    """The minor version of Python 3; None where it is for every one."""
    glibc: tuple[int, int]
    build: tuple[int, str] | tuple[()]
    """The build tag; of two builds the later one counts."""
    file: IndexFile

    @property
    def order(self) -> tuple[int, tuple[int, str] | tuple[()]]:
        """Rises with what is read of a row: the newest Python's wheel, in its last build."""
        return self.python or 0, self.build


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The wheels of one distribution, version and machine."""

    wheels: tuple[Candidate, ...]
    """From the oldest Python to the newest."""

    @property
    def newest(self) -> Candidate:
        """The one that is read; those of the other Pythons are built from the same source in the same way."""
        return self.wheels[-1]

    @property
    def pythons(self) -> tuple[str, ...]:
        """`3.9`, in rising order."""
        return tuple(f"3.{minor}" for minor in sorted({it.python for it in self.wheels if it.python is not None}))

    @property
    def glibc(self) -> tuple[int, int]:
        """The lowest that all of them accept."""
        return max(it.glibc for it in self.wheels)


def released(name: str, oldest: str, distribution: str) -> Version | None:
    """The version in a file's name, unless it is another project's, too old, a prerelease or no wheel's at all."""
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    return version if project == distribution and version >= Version(oldest) and not version.is_prerelease else None


def linux_rows(index: Index, distribution: str, oldest: str) -> tuple[Row, ...]:
    """Group the Linux wheels of a project's page by version and machine, in rising order."""
    found = sorted(_candidates(distribution, oldest, index.files(distribution)), key=lambda it: (*_row(it), it.order))
    return tuple(Row(wheels=tuple(group)) for _, group in groupby(found, key=_row))


def read_rows(
    index: Index,
    name: str,
    distributions: Iterable[str],
    oldest: str,
    read: Callable[[Index, Row], FrameworkWheel],
    report: Report,
) -> FrameworkProfile:
    """Read one wheel of each row in parallel; LockError names the wheel that cannot be read."""
    with ThreadPoolExecutor(WORKERS) as pool:
        pages = pool.map(lambda it: linux_rows(index, it, oldest), distributions)
        rows = [row for page in pages for row in page]
        found = list(counted(pool.map(lambda row: read(index, row), rows), len(rows), report))
    # One stable sort keeps the distributions and machines of a version in the order they were asked for.
    found.sort(key=lambda it: Version(it.version))
    releases = groupby(found, key=lambda it: Version(it.version))
    return profile(name, (Release(version=version, wheels=tuple(wheels)) for version, wheels in releases))


def profile(name: str, releases: Iterable[Release]) -> FrameworkProfile:
    """All releases of a framework; LockError when the index has none, which no profile may say."""
    kept = tuple(releases)
    if not kept:
        raise LockError(f"the package index has no release of {name}", todo="check the index settings of pip or uv")
    return FrameworkProfile(name=name, releases=kept)


def counted(found: Iterable[T], total: int, report: Report) -> Iterator[T]:
    """Pass on what is found, and tell how much of it there was."""
    report(0, total)
    for done, one in enumerate(found, 1):
        report(done, total)
        yield one


def other_files(row: Row) -> tuple[str, ...]:
    """The wheels of a row's other Pythons, in rising order: file name and digest."""
    latest = {it.python: it.file for it in row.wheels}
    return tuple(f"{file.name} ({file.sha256})" for file in latest.values() if file != row.newest.file)


def dotted(glibc: tuple[int, int]) -> str:
    """`2.17`."""
    return "{}.{}".format(*glibc)


def _row(candidate: Candidate) -> tuple[Version, int]:
    return candidate.version, MACHINES.index(candidate.machine)


def _candidates(distribution: str, oldest: str, files: Iterable[IndexFile]) -> Iterator[Candidate]:
    for file in files:
        version = released(file.name, oldest, distribution)
        if version is not None:
            _, _, build, tags = parse_wheel_filename(file.name)
            platform = _platform(tags)
            if platform:
                python, machine, glibc = platform
                yield Candidate(
                    distribution=distribution,
                    version=version,
                    machine=machine,
                    python=python,
                    glibc=glibc,
                    build=build,
                    file=file,
                )


def _platform(tags: Iterable[Tag]) -> tuple[int | None, str, tuple[int, int]] | None:
    """Python, machine and the lowest glibc of a Linux wheel of Python 3; None for the wheels of others.

    Free-threaded builds (`cp313t`) are others: no profile has rows for them.
    """
    found = []
    for tag in tags:
        interpreter, platform = _INTERPRETER.match(tag.interpreter), _MANYLINUX.match(tag.platform)
        plain = tag.abi in {tag.interpreter, f"{tag.interpreter}m"} if interpreter else tag.interpreter == "py3"
        if plain and platform:
            level = _NAMED.get(platform[1]) or (int(platform[2]), int(platform[3]))
            found.append((int(interpreter[1]) if interpreter else None, platform[4], level))
    return min(found, key=lambda it: it[2]) if found else None
