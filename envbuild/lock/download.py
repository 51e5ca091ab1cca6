"""Locked wheels to verified files in the cache."""

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import httpx

from envbuild.cache import remove
from envbuild.errors import BuildError, LockError
from envbuild.files import is_no_file, settle, written_aside, written_whole
from envbuild.lock.client import make_client, retried
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings, bare_url, local_path, read_settings
from envbuild.oci.digest import Digest
from envbuild.retry import as_completed

Report = Callable[[int, int, str], None]
"""Called with bytes done, bytes of all wheels, and the name of the file at hand; by one thread at a time."""

_THREADS = 4
_CHUNK = 1 << 18
_LONGEST = 8 << 30
"""Bytes of a wheel whose size no lock says."""
_OTHER_BYTES = "the index serves other bytes than were locked: lock again, and find out why before using them"


def _say_nothing(*_: object) -> None:
    """Report to nobody."""


class _Stopped(Exception):  # noqa: N818 - a signal between our own threads
    """Another download failed, or the user does not want this one any more."""


def wheel_path(cache: Path, sha256: Digest) -> Path:
    """Where a wheel with this digest lies in the cache."""
    return cache / "wheels" / sha256.hex[:2] / f"{sha256.hex}.whl"


def forget_damaged(cache: Path, sha256: Digest) -> bool:
    """Check a cached wheel's hash; remove it and return True if it is damaged.

    OSError where it cannot be read now: then it stays.
    """
    path = wheel_path(cache, sha256)
    try:
        state = path.stat()
        if _digest(path, state.st_ino, state.st_ctime_ns) == sha256:
            return False
    except OSError as error:
        if not os.path.lexists(path):  # it was never there, or another run removed it
            return False
        if not is_no_file(error):
            raise
    _digest.cache_clear()
    remove(path)  # in a cache that may only be read it stays, and is not used all the same
    return True


@cache
def _digest(path: Path, _inode: int, _changed: int) -> Digest:
    """Inode and ctime are part of the key, so a changed file is read again."""
    with path.open("rb") as file:
        return Digest.of_file(file)[0]


def fetch(
    wheels: Sequence[LockedWheel],
    cache: Path,
    *,
    report: Report = _say_nothing,
    settings: IndexSettings | None = None,
) -> Iterator[tuple[LockedWheel, Path]]:
    """Yield each wheel and its verified file as soon as it is there; LockError at the first that cannot be had.

    What is in the cache is verified again and not downloaded. Leaving the loop early, by an error or Ctrl-C too, stops
    the other downloads and leaves no partial file. Several processes may share a cache.
    """
    with Arrivals(cache, report=report, settings=settings) as arrivals:
        expected = {future: wheel for wheel, future in arrivals.start(wheels).items()}
        for future in as_completed(expected):
            yield expected[future], future.result()


def fetch_unlocked(url: str, cache: Path, settings: IndexSettings) -> Digest:
    """Download a wheel that no lock has into the cache, and return its digest; LockError where it cannot be had."""

    def download() -> None:
        file.seek(0)
        file.truncate()
        with client.stream("GET", url) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_raw(_CHUNK):
                file.write(chunk)
                if file.tell() > _LONGEST:
                    what = f"the wheel is longer than {_LONGEST >> 30} GiB"
                    raise LockError(what, where=bare_url(url), todo="check the address")

    try:
        with make_client(settings) as client, written_aside(cache / "wheels") as (file, temporary):
            retried(download, url)
            file.flush()
            with temporary.open("rb") as written:
                found = Digest.of_file(written)[0]
            wheel_path(cache, found).parent.mkdir(parents=True, exist_ok=True)
            settle(file, temporary, wheel_path(cache, found))
    except OSError as error:
        raise _unwritable(error, cache) from error
    return found


class Arrivals:
    """Wheels on their way into the cache, several at once: whoever needs one waits for that one only.

    Leaving the block stops what is still on its way, and leaves no partial file.
    """

    def __init__(
        self,
        cache: Path,
        *,
        report: Report = _say_nothing,
        settings: IndexSettings | None = None,
        note: Callable[[str], object] = _say_nothing,
    ) -> None:
        self._job = _Job(cache=cache, report=report, settings=settings, note=note)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="download")
        self._futures: dict[LockedWheel, Future[Path]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._pool.shutdown()
        self._job.close()

    def start(self, wheels: Iterable[LockedWheel]) -> dict[LockedWheel, Future[Path]]:
        """Begin to fetch what was not begun before, in this order."""
        with self._lock:
            return {wheel: self._begun(wheel) for wheel in wheels}

    def path(self, wheel: LockedWheel) -> Path:
        """Wait for a wheel's verified file; LockError when it cannot be had."""
        return self.start([wheel])[wheel].result()

    def stop(self) -> None:
        """Let all downloads end now; who waits for one gets an exception."""
        self._job.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begun(self, wheel: LockedWheel) -> Future[Path]:
        if wheel not in self._futures:
            self._job.expect(wheel)
            self._futures[wheel] = self._pool.submit(_one, self._job, wheel)
        return self._futures[wheel]


@dataclass(slots=True, kw_only=True)
class _Job:
    """What the threads share."""

    cache: Path
    report: Report
    settings: IndexSettings | None
    note: Callable[[str], object]
    total: int = 0
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    sockets: list[socket.socket] = field(default_factory=list)
    _client: httpx.Client | None = None

    def client(self) -> httpx.Client:
        """The client of all threads, made when something has to be downloaded."""
        with self.lock:
            if self._client is None:
                self._client = make_client(self.settings or read_settings())
            return self._client

    def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            self._client.close()

    def expect(self, wheel: LockedWheel) -> None:
        """Count a wheel among those that are to come."""
        with self.lock:
            self.total += wheel.size

    def advance(self, count: int, text: str) -> None:
        """Say that bytes came; a stopped job stops its threads here."""
        if self.stopped.is_set():
            raise _Stopped
        with self.lock:
            self.done += count
            self.report(self.done, self.total, text)

    def stop(self) -> None:
        """Let all threads end now: a closed socket wakes the one that waits on it."""
        self.stopped.set()
        for connection in tuple(self.sockets):
            _hang_up(connection)

    def trace(self, _event: str, info: Mapping[str, Any]) -> None:
        """Note the sockets that httpx opens (its request extension `trace`), so that they can be hung up."""
        stream = info.get("return_value")
        if stream is not None and hasattr(stream, "get_extra_info"):
            connection = stream.get_extra_info("socket")
            self.sockets.append(connection)
            # Raising here would leave httpx with an open connection that it does not know of.
            if self.stopped.is_set():
                _hang_up(connection)

    def pause(self, seconds: float) -> None:
        """Wait before another try."""
        if self.stopped.wait(seconds):
            raise _Stopped


def _one(job: _Job, wheel: LockedWheel) -> Path:
    """Return the verified file of a wheel, from the cache, a folder of this machine or the index."""
    path = wheel_path(job.cache, wheel.sha256)
    # Hashed again: at 1.5 GB/s that costs less than a wrong byte.
    with suppress(OSError):  # what cannot be read now is fetched again
        if forget_damaged(job.cache, wheel.sha256):
            job.note(f"{wheel.filename} in the cache was damaged and is fetched again: {path}")
        elif path.stat().st_size == wheel.size:
            job.advance(wheel.size, wheel.filename)
            return path
    try:
        with written_whole(path) as file:
            transfer = _Transfer(job, wheel, file)
            source = local_path(wheel.url)
            if source is None:
                retried(transfer.download, wheel.url, job.pause)
            else:
                transfer.copy(source)
            transfer.verify()
    except OSError as error:
        raise _unwritable(error, path) from error
    return path


def _unwritable(error: OSError, place: Path) -> BuildError:
    todo = "free space there, or set ENVBUILD_CACHE to a folder that can be written"
    return BuildError(f"the cache cannot be written: {error}", where=str(place), todo=todo)


class _Transfer:
    """One wheel on its way into one file; a download that breaks off goes on where it was."""

    def __init__(self, job: _Job, wheel: LockedWheel, file: BinaryIO) -> None:
        self._job, self._wheel, self._file = job, wheel, file
        self._hasher, self._size = hashlib.sha256(), 0

    def copy(self, source: Path) -> None:
        """Copy from a folder of this machine."""
        try:
            opened = source.open("rb")
        except OSError as error:
            raise LockError("the wheel cannot be read", where=str(source), todo="put it back, or lock again") from error
        with opened as file:
            while chunk := file.read(_CHUNK):
                self._write(chunk)

    def download(self) -> None:
        """Get what is missing from the index; httpx.HTTPError when it breaks off."""
        if self._size == self._wheel.size:
            return
        asked = {"Range": f"bytes={self._size}-"} if self._size else {}
        job, url = self._job, self._wheel.url
        with job.client().stream("GET", url, headers=asked, extensions={"trace": job.trace}) as answer:
            answer.raise_for_status()
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                self._restart()
            for chunk in answer.iter_raw(_CHUNK):
                self._write(chunk)

    def verify(self) -> None:
        """Compare digest and size with the lock."""
        found = Digest(self._hasher.hexdigest())
        if (found, self._size) != (self._wheel.sha256, self._wheel.size):
            raise self._mismatch(f"it is {found} of {self._size} bytes")

    def _write(self, chunk: bytes) -> None:
        self._job.advance(len(chunk), self._wheel.filename)
        self._size += len(chunk)
        if self._size > self._wheel.size:
            raise self._mismatch(f"it is longer than {self._wheel.size} bytes")
        self._hasher.update(chunk)
        self._file.write(chunk)

    def _restart(self) -> None:
        self._job.advance(-self._size, self._wheel.filename)
        self._file.seek(0)
        self._file.truncate()
        self._hasher, self._size = hashlib.sha256(), 0

    def _mismatch(self, found: str) -> LockError:
        wheel = self._wheel
        what = f"the hash of {wheel.filename} does not match: locked is {wheel.sha256} of {wheel.size} bytes, {found}"
        return LockError(what, where=bare_url(wheel.url), todo=_OTHER_BYTES)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
