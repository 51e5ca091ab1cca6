"""A model in a folder of this machine: its metadata is in `envbuild/pointer.json`, as files have none."""

import errno
import fcntl
import json
import os
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.capture.files import file_sha256
from envbuild.errors import StampError
from envbuild.files import target_outside, write_whole
from envbuild.oci.image import canonical_json
from envbuild.stamp.record import FOLDER, RECORD_PREFIX
from envbuild.stamp.store import MOST_NAMES, SAVED_MODEL, Changed, State, Unreachable

POINTER = f"{FOLDER}/pointer.json"
LOCK = f"{FOLDER}/.lock"
_LOCK_SECONDS = 60.0
_LOCK_PAUSE = 0.01
_POINTER_LIMIT = 16 * 1024 * 1024
_NO_FILE = "not a regular file"
_UNUSABLE = {errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL}
"""What is never a record, whoever reads it; any other error may hide one."""


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """The folder of a model, as `Store` describes it; safe under many processes, on file systems that have flock."""

    folder: str
    """Absolute."""

    def names(self, *, deep: bool) -> Mapping[str, str]:
        with file_errors(Path(self.folder)):
            found = sorted(path.relative_to(self.folder).as_posix() for path in self._files(deep=deep))
        pointers = self._pointers()
        entries = {name: pointers.get(name) or {"metadata": {}} for name in found[:MOST_NAMES]}
        return {name: str(entry["metadata"].get("envbuild-record", "")) for name, entry in entries.items()}

    def records(self) -> list[str]:
        folder = self._path(FOLDER)
        with file_errors(folder):
            names = (f"{FOLDER}/{path.name}" for path in folder.iterdir()) if folder.is_dir() else ()
            return sorted(name for name in names if name.startswith(RECORD_PREFIX))

    def state(self, name: str) -> State | None:
        """The file's state; its metadata counts only as long as the file is the one that it was written for."""
        with file_errors(self._path(name)):
            generation = _generation(self._path(name))
        if generation is None:
            return None
        kept = self._pointers().get(name)
        if kept is None or kept["generation"] != generation:
            return State(generation=generation, metageneration="1", metadata={})
        return State(generation=generation, metageneration=kept["metageneration"], metadata=kept["metadata"])

    def read(self, name: str, *, limit: int) -> bytes | None:
        path = self._path(name)
        with file_errors(path):
            try:
                with _regular(path, os.O_RDONLY) as file:
                    data = file.read(limit + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno in _UNUSABLE:
                    raise
                what, todo = f"the file cannot be read: {error.strerror}", "check its permissions and the disk"
                raise Unreachable(what, where=str(path), todo=todo) from error  # it may be the newest record
        if len(data) > limit:
            what = f"the file has more than {limit} bytes"
            raise StampError(what, where=str(path), todo="check that it is the right file")
        return data

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with file_errors(path):
            if path.exists():
                return False
            write_whole(path, data)
        return True

    def patch(self, name: str, values: Mapping[str, str | None], state: State) -> None:
        self._check_links()
        pointer, lock = self._path(POINTER), self._path(LOCK)
        with file_errors(pointer):
            lock.parent.mkdir(exist_ok=True)
            with _regular(lock, os.O_RDWR | os.O_CREAT) as file:
                _lock(file.fileno(), lock)
                now = self.state(name)
                if now is None or (now.generation, now.metageneration) != (state.generation, state.metageneration):
                    raise Changed
                entry = {
                    "generation": now.generation,
                    "metageneration": str(int(now.metageneration) + 1),
                    "metadata": {key: value for key, value in {**now.metadata, **values}.items() if value is not None},
                }
                objects = self._pointers() | {name: entry}
                write_whole(pointer, canonical_json({"schema_version": "1.0", "objects": objects}))

    def check(self, name: str) -> None:  # noqa: ARG002 - the folder decides
        """StampError when nothing can be written into the folder."""
        self._check_links()
        place, lock = self._path(FOLDER), self._path(LOCK)
        if os.path.lexists(place) and not place.is_dir():
            what = "the stamp's folder cannot be created: a file has its name"
            raise StampError(what, where=str(place), todo="move the file away")
        if lock.exists() and not lock.is_file():
            raise StampError(_NO_FILE, where=str(lock), todo="remove it")
        held = place if place.is_dir() else Path(self.folder)
        if not os.access(held, os.W_OK | os.X_OK):
            todo = "stamp as a user who may write there"
            raise StampError("the model's folder cannot be written", where=str(held), todo=todo)

    def unpointing(self, name: str) -> str:  # noqa: ARG002 - one file has them all
        """Return the command that removes the pointers of all models in the folder; their records stay."""
        return f"rm {shlex.quote(str(self._path(POINTER)))}"

    def _path(self, name: str) -> Path:
        """The path of a file; in the stamp's own folder StampError where a link leads out of the model's folder."""
        path = Path(self.folder) / name
        return self._inside(path) if name.partition("/")[0] == FOLDER else path

    def _check_links(self) -> None:
        for parent, folders, files in os.walk(self.folder):
            if Path(parent) == Path(self.folder) / FOLDER:  # `_path` guards what is in it
                folders.clear()
                continue
            for path in (Path(parent, name) for name in (*folders, *files)):
                if path.is_symlink():
                    self._inside(path)

    def _inside(self, path: Path) -> Path:
        """The path itself; StampError where a link leads out of the model's folder."""
        if target := target_outside(Path(self.folder), path):
            todo = "copy the model with its files in place of the links, and stamp that: cp -rL MODEL COPY"
            raise StampError(f"a link leads out of the model's folder, to {target}", where=str(path), todo=todo)
        return path

    def _files(self, *, deep: bool) -> Iterator[Path]:
        root = Path(self.folder)
        for path in root.rglob("*") if deep else root.glob("*"):
            if path.is_file():
                yield path
            elif path.name == SAVED_MODEL and not (deep and path.is_dir()):
                raise StampError(_NO_FILE, where=str(path), todo="give the folder that has the model's files")

    def _pointers(self) -> dict[str, Any]:
        """Read the metadata of all files, by name; a reader needs no lock, because the file is replaced whole."""
        data = self.read(POINTER, limit=_POINTER_LIMIT)
        if data is None:
            return {}
        try:
            return {
                name: {
                    "generation": str(entry["generation"]),
                    "metageneration": str(int(entry["metageneration"])),
                    "metadata": {str(key): str(value) for key, value in entry["metadata"].items()},
                }
                for name, entry in json.loads(data)["objects"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            what, todo = "the metadata of the model cannot be read", "remove the file and stamp again; the records stay"
            raise StampError(what, where=str(self._path(POINTER)), todo=todo) from error


def _generation(path: Path) -> str | None:
    """Name a file's content: a folder that is copied elsewhere keeps its stamp, a replaced model does not."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with _regular(path, os.O_RDONLY) as file:
            return f"sha256:{file_sha256(file)}"
    except (FileNotFoundError, NotADirectoryError):
        return None


def _lock(handle: int, path: Path) -> None:
    """Lock a file until it is closed; StampError when another process holds it for a minute."""
    for _ in range(int(_LOCK_SECONDS / _LOCK_PAUSE)):
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
    todo = "find the process with lsof"
    raise StampError("another process keeps the model's metadata locked", where=str(path), todo=todo)


def _regular(path: Path, flags: int) -> BinaryIO:
    """Open a regular file; waiting for a pipe without a writer would not end."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StampError(_NO_FILE, where=str(path), todo="remove it, or put the file back that belongs there")
    return os.fdopen(handle, "rb")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise StampError for OSError in the block."""
    try:
        yield
    except OSError as error:
        long = error.errno == errno.ENAMETOOLONG
        todo = "give a shorter path" if long else "check the permissions and the free space there"
        raise StampError(f"the file system refused: {error.strerror}", where=str(path), todo=todo) from error
