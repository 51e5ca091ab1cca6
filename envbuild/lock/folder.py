"""A lock in its folder, and wheelhouses: folders of wheels from which an image is built without a network."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from envbuild.errors import LockError, UsageError
from envbuild.files import staged_folder, write_whole, written_whole
from envbuild.lock.formats import WHEELS, is_local, pylock_text, read_pylock, requirements_text
from envbuild.lock.index import local_path
from envbuild.lock.model import Lock, LockedWheel
from envbuild.lock.run import LockedRun
from envbuild.oci.digest import Digest

PYLOCK, REQUIREMENTS = "pylock.toml", "requirements.txt"
_LIMIT = 64 << 20
_CHUNK = 1 << 20


def read_held(folder: Path) -> Lock | None:
    """The lock that lies in a folder; None when there is none.

    LockError when it is somebody else's, UsageError where none can be written.
    """
    path = folder / PYLOCK
    for taken in (it for it in (path, folder / REQUIREMENTS) if it.exists() and not it.is_file()):
        todo = "give another folder by --out, or remove what lies there"
        raise UsageError("something else has the name of a file that is written", where=str(taken), todo=todo)
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT)
    except FileNotFoundError:
        return None
    try:
        return read_pylock(data, str(path), folder)
    except LockError as error:
        todo = "give another folder by --out, or remove the file"
        raise LockError(f"another lock is in the way: {error.what}", where=str(path), todo=todo) from error


def write_lock(folder: Path, run: LockedRun) -> None:
    """Write requirements.txt, pylock.toml and the wheels that no index has, all of it or nothing."""
    with staged_folder(folder) as staged:
        copy_local(run.lock, staged)
        write_whole(staged / REQUIREMENTS, requirements_text(run.lock))
        write_whole(staged / PYLOCK, pylock_text(run.lock, run.proof, dict(run.built)))


def copy_local(lock: Lock, folder: Path) -> None:
    """Put the wheels that no index has beside the lock, where its files name them."""
    for wheel in filter(is_local, lock.wheels):
        _copy(wheel, local_path(wheel.url), folder / WHEELS / wheel.filename)


def write_wheelhouse(folder: Path, wheels: Mapping[Digest, Path], locked: Iterable[LockedWheel]) -> None:
    """Put fetched wheels into a folder that `--find-links` takes; what lies there already is kept."""
    for wheel in locked:
        place = folder / wheel.filename
        if not _is_there(place, wheel):
            _copy(wheel, wheels[wheel.sha256], place)


def _is_there(place: Path, wheel: LockedWheel) -> bool:
    if not place.exists():
        return False
    with place.open("rb") as file:
        if Digest.of_file(file) == (wheel.sha256, wheel.size):
            return True
    todo = "remove it, or give another folder by --download"
    raise LockError("a file of this name with other content is in the way", where=str(place), todo=todo)


def _copy(wheel: LockedWheel, source: Path | None, place: Path) -> None:
    """Copy a wheel and hold the copy to the lock: a folder's file may have changed since it was locked."""
    assert source is not None, "only wheels of this machine are copied"
    hasher, size = hashlib.sha256(), 0
    with source.open("rb") as original, written_whole(place) as file:
        while chunk := original.read(_CHUNK):
            hasher.update(chunk)
            size += file.write(chunk)
        if (hasher.hexdigest(), size) != (wheel.sha256.hex, wheel.size):
            raise LockError("a wheel changed since it was locked", where=str(source), todo="lock again")
