"""Files that several wheels install to the same path: the later wheel of the lock wins, and it is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.errors import BuildError
from envbuild.lock.model import LockedWheel
from envbuild.splice.fingerprint import content_of
from envbuild.splice.install import InstalledFile


@dataclass(frozen=True, slots=True)
class Overlap:
    """One path with different content in several wheels."""

    path: str
    winner: LockedWheel
    losers: tuple[str, ...]
    """Their names."""


Installed = Mapping[LockedWheel, Sequence[InstalledFile]]


def find_overlaps(installed: Installed) -> list[Overlap]:
    """List paths whose content differs between wheels, sorted; BuildError where one has a file and another a folder."""
    owners: dict[str, list[tuple[LockedWheel, InstalledFile]]] = {}
    for wheel in sorted(installed, key=lambda wheel: wheel.name):
        for file in installed[wheel]:
            owners.setdefault(file.path, []).append((wheel, file))
    _check_folders(owners)
    return [
        Overlap(path, found[-1][0], tuple(wheel.name for wheel, _ in found[:-1]))
        for path, found in sorted(owners.items())
        if len(found) > 1 and len({content_of(file) for _, file in found}) > 1
    ]


def _check_folders(owners: Mapping[str, Sequence[tuple[LockedWheel, InstalledFile]]]) -> None:
    folders = {path.rpartition("/")[0]: found for path, found in owners.items()}
    while folders:
        for folder, found in folders.items():
            if folder in owners:
                names = f"{owners[folder][0][0].filename} and {found[0][0].filename}"
                raise BuildError(
                    f"{folder} is a file in one wheel and a folder in another",
                    where=names,
                    todo="the two releases cannot be installed together; change one of them in the run",
                )
        folders = {folder.rpartition("/")[0]: found for folder, found in folders.items() if "/" in folder}
