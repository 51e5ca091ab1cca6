"""Files that several wheels install to the same path: which of them the image has.

It is the run's, where the lock says whose the run had; else that of the wheel that pip installs last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from envbuild.errors import BuildError
from envbuild.lock.model import LockedWheel
from envbuild.wheel.fingerprint import content_of
from envbuild.wheel.install import InstalledFile


@dataclass(frozen=True, slots=True)
class Overlap:
    """One path with different content in several wheels."""

    path: str
    winner: LockedWheel
    losers: tuple[str, ...]
    """Their names."""


Installed = Mapping[LockedWheel, Sequence[InstalledFile]]


def find_overlaps(
    installed: Installed, owners: Mapping[str, str], install_order: Callable[[], Sequence[str]]
) -> list[Overlap]:
    """List paths whose content differs between wheels, sorted; BuildError where one has a file and another a folder.

    `owners` are names of distributions by path; `install_order` is called where they do not decide.
    """
    claims: dict[str, list[tuple[LockedWheel, InstalledFile]]] = {}
    for wheel in sorted(installed, key=lambda wheel: wheel.name):
        for file in installed[wheel]:
            claims.setdefault(file.path, []).append((wheel, file))
    _check_folders(claims)
    differing = {
        path: {wheel.name: wheel for wheel, _ in found}
        for path, found in sorted(claims.items())
        if len(found) > 1 and len({content_of(file) for _, file in found}) > 1
    }
    chosen = {path: owners[path] for path, wheels in differing.items() if owners.get(path) in wheels}
    place = {name: at for at, name in enumerate(install_order())} if len(chosen) < len(differing) else {}
    overlaps = []
    for path, wheels in differing.items():
        name = chosen.get(path) or max(wheels, key=place.__getitem__)
        overlaps.append(Overlap(path, wheels[name], tuple(it for it in wheels if it != name)))
    return overlaps


def _check_folders(claims: Mapping[str, Sequence[tuple[LockedWheel, InstalledFile]]]) -> None:
    folders = {path.rpartition("/")[0]: found for path, found in claims.items()}
    while folders:
        for folder, found in folders.items():
            if folder in claims:
                names = f"{claims[folder][0][0].filename} and {found[0][0].filename}"
                raise BuildError(
                    f"{folder} is a file in one wheel and a folder in another",
                    where=names,
                    todo="the two releases cannot be installed together; change one of them in the run",
                )
        folders = {folder.rpartition("/")[0]: found for folder, found in folders.items() if "/" in folder}
