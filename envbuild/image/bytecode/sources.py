"""Which files of a wheel have bytecode, and where it goes (PEP 3147)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envbuild.wheel.archive import Member, WheelArchive
from envbuild.wheel.install import InstalledFile

_LONGEST_NAME, _LONGEST_PATH = 255, 3500
"""Bytes that file systems take; the path of a bytecode file is longer than that of its source."""


class Source(Protocol):
    """One source file."""

    @property
    def path(self) -> str:
        """Below the prefix: `lib/python3.11/site-packages/six.py`."""

    def read(self) -> bytes:
        """Its content."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A source in a wheel."""

    file: InstalledFile
    archive: WheelArchive

    @property
    def path(self) -> str:
        """Below the prefix."""
        return self.file.path

    def read(self) -> bytes:
        """The content, checked."""
        return self.archive.read(self.file.source) if isinstance(self.file.source, Member) else self.file.source


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """A source of the base's standard library."""

    path: str
    """Below the interpreter's prefix: `lib/python3.11/os.py`."""
    home: Path
    """A copy of what lies below that."""

    def read(self) -> bytes:
        """The content, which was checked."""
        return (self.home / self.path).read_bytes()


def wheel_sources(
    files: Sequence[InstalledFile], archive: WheelArchive, site_packages: str, lost: Collection[str]
) -> list[WheelSource]:
    """The sources that imports may find, sorted by path, without those that another wheel's files replace."""
    paths = {file.path for file in files}
    taken = {*lost} | {file.path for file in files if f"{_folder(file.path)}__pycache__" in paths}
    kept = [file for file in files if file.path.startswith(f"{site_packages}/") and file.path.endswith(".py")]
    return [WheelSource(file, archive) for file in kept if file.path not in taken]


def bytecode_path(path: str, cache_tag: str) -> str | None:
    """Where imports look for the bytecode of a source; None where that can be no file's name."""
    name = f"{path.removeprefix(_folder(path)).removesuffix('.py')}.{cache_tag}.pyc"
    found = f"{_folder(path)}__pycache__/{name}"
    return found if len(name.encode()) <= _LONGEST_NAME and len(found.encode()) <= _LONGEST_PATH else None


def _folder(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}"
