"""Wheels that are open, and where their files go."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from envbuild.oci.digest import Digest
from envbuild.wheel.archive import WheelArchive, check_locked
from envbuild.wheel.install import InstalledFile, Scheme, installed_files
from envbuild.wheel.layer import LayerFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWheel:
    """A verified wheel on this machine."""

    path: Path
    filename: str
    sha256: Digest
    size: int
    """As the lock says it."""
    proving: bool = False
    """Whether what is read of it is held against its RECORD."""


@dataclass(frozen=True, slots=True)
class OpenWheel:
    """A wheel and where its files go."""

    archive: WheelArchive
    files: Sequence[InstalledFile]


def open_wheel(wheel: LocalWheel, scheme: Scheme, stack: ExitStack) -> OpenWheel:
    """Open a wheel until the stack is left; WheelError where it cannot be installed rightly."""
    check_locked(wheel.path, wheel.filename, wheel.size)
    archive = stack.enter_context(WheelArchive(wheel.path, wheel.filename))
    archive.proving = wheel.proving
    return OpenWheel(archive, installed_files(archive, scheme))


def layer_files(wheels: Iterable[OpenWheel]) -> list[LayerFile]:
    """All files of some wheels in the order of the lock, as the later wheel wins where two have one path."""
    return list({file.path: LayerFile(file, wheel.archive) for wheel in wheels for file in wheel.files}.values())
