"""The folder of a virtual environment: whose it is, from what it was made, and that nobody changes what others use."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any

from packaging.utils import canonicalize_name

from envbuild.errors import UsageError
from envbuild.files import write_whole
from envbuild.lock.model import Lock
from envbuild.lock.tags import same_version
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.report import Reporter

MARKER = ".envbuild.json"
"""What makes a folder one of ours; it says from which lock only when everything is there."""
_LOCK = ".envbuild.lock"
_OURS = {MARKER, _LOCK}
_ASIDE = ".envbuild-new"
_OTHER = "give a folder that is new, empty, or was made by envbuild"
_OF_ITS_OWN = "give a folder of its own, such as --venv .venv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a folder's marker says."""

    lock: str
    """The digest of the wheels and the wanted Python; empty while it is not whole."""
    python: str
    """The exact version of its interpreter."""
    entries: tuple[str, ...]
    """The names in the folder when it was whole."""


def made(folder: Path) -> Made | None:
    """Read a folder's marker; None where the folder is not ours."""
    try:
        value: Any = json.loads((folder / MARKER).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        value = {}
    said = value if isinstance(value, dict) else {}
    entries = said.get("entries")
    return Made(
        lock=str(said.get("lock") or ""),
        python=str(said.get("python") or ""),
        entries=tuple(map(str, entries)) if isinstance(entries, list) else (),
    )


def is_held(folder: Path, lock: Lock, python: str) -> Made | None:
    """What a folder's marker says, where it is whole and was made from this lock for this Python."""
    found = made(folder)
    same = found is not None and found.lock == _digest(lock, python)
    return found if same and (folder / "bin" / "python").exists() else None


def check_place(folder: Path) -> None:
    """See that programs can be found in a folder, and that it is not the one they work in; UsageError if not."""
    if folder == Path():
        what = "this is the current folder, which is for the files of what is run"
        raise UsageError(what, where="--venv", todo=_OF_ITS_OWN)
    if os.pathsep in str(folder.absolute()):
        what = f"no program is found in a folder with {os.pathsep} in its path: PATH cannot hold it"
        raise UsageError(what, where=f"--venv {folder}", todo="give a folder without it")


class Door:
    """The lock of a folder: used by many, or changed by one."""

    def __init__(self, folder: Path, file: IO[bytes], report: Reporter) -> None:
        self._folder, self._file, self._report = folder, file, report

    @property
    def key(self) -> int:
        """The handle of the lock, for programs that are to hold it too."""
        return self._file.fileno()

    def share(self) -> None:
        """Keep others from changing the folder; who had it to himself lets nobody else in between, where Linux can."""
        self._lock(LOCK_SH)

    def seize(self) -> None:
        """Have the folder to oneself; UsageError where it holds what is not ours, or cannot be written."""
        if not self._file.writable():
            what = "the folder has another environment, and may not be written"
            raise UsageError(what, where=str(self._folder), todo=_OTHER)
        flock(self._file, LOCK_UN)  # of two that wait for each other's share, neither would come in
        self._lock(LOCK_EX)
        _check_ours(self._folder)

    def _lock(self, kind: int) -> None:
        try:
            flock(self._file, kind | LOCK_NB)
        except BlockingIOError:
            self._report.note(f"waiting for another run that makes or uses {self._folder}")
            flock(self._file, kind)


@contextmanager
def opened(folder: Path, report: Reporter) -> Iterator[Door]:
    """Have a folder's lock at hand, the folder made where it is missing; UsageError where it holds what is not ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _LOCK).exists():
            _check_ours(folder)
        # What is there already can be used by those who may not write it.
        read_only = (folder / _LOCK).exists() and not os.access(folder / _LOCK, os.W_OK)
        file = (folder / _LOCK).open("rb" if read_only else "a+b")
    except OSError as error:
        raise UsageError(f"this cannot be a folder: {error.strerror}", where=str(folder), todo=_OTHER) from error
    with file:
        yield Door(folder, file, report)


def _check_ours(folder: Path) -> None:
    found, names = made(folder), {it.name for it in folder.iterdir()} - _OURS
    # What a run left that was killed is ours, whatever it is.
    others = names if found is None else names - set(found.entries) if found.lock else set()
    if others:
        more = " and others" if len(others) > 1 else ""
        what = f"the folder holds what envbuild did not put there: {min(others)}{more}"
        raise UsageError(what, where=str(folder), todo=_OTHER)


@contextmanager
def begun(folder: Path) -> Iterator[Path]:
    """Empty a folder of ours, and yield an empty one in it that ends with the block; after an error nothing is left."""
    write_whole(folder / MARKER, b"{}\n")
    _clear(folder)
    aside = folder / _ASIDE
    aside.mkdir()
    try:
        yield aside
    except BaseException:
        _clear(folder)
        (folder / MARKER).unlink(missing_ok=True)
        raise
    shutil.rmtree(aside)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in _OURS:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def finished(folder: Path, lock: Lock, python: str) -> None:
    """Say in a folder from what it was made, as the last thing of all."""
    entries = sorted(it.name for it in folder.iterdir() if it.name not in _OURS)
    said = {"lock": _digest(lock, python), "python": _version(folder), "entries": entries}
    write_whole(folder / MARKER, json.dumps(said, indent=2).encode() + b"\n")


def _version(folder: Path) -> str:
    """The interpreter's, as uv writes it into pyvenv.cfg (PEP 405)."""
    lines = (line.partition("=") for line in (folder / "pyvenv.cfg").read_text("utf-8").splitlines())
    settings = {name.strip(): value.strip() for name, _, value in lines}
    return settings.get("version_info", "")


def moved(folder: Path, lock: Lock) -> tuple[str, ...]:
    """What of a folder's packages is not as locked: `ipython 8.0 added`, `numpy 1.26.4 -> 2.0.0`, `six 1.0 missing`."""
    site = folder / "lib" / f"python{lock.target.python_minor}" / "site-packages"
    found = {str(canonicalize_name(it.name)): it.version for it in distributions(path=[str(site)])}
    locked = {wheel.name: wheel.version for wheel in lock.wheels}
    told = {name: f"{name} {version} added" for name, version in found.items() if name not in locked}
    for name, version in locked.items():
        if name not in found:
            told[name] = f"{name} {version} missing"
        elif not same_version(found[name], version):
            told[name] = f"{name} {version} -> {found[name]}"
    return tuple(told[name] for name in sorted(told))


def _digest(lock: Lock, python: str) -> str:
    """What decides an environment: files, not where they were found."""
    wheels = sorted([wheel.filename, str(wheel.sha256)] for wheel in lock.wheels)
    return str(Digest.of(canonical_json({"python": python, "wheels": wheels})))
