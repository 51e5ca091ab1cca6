"""Downloads of locked wheels: verified files in the cache."""

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Self

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import BuildError, LockError
from envbuild.files import is_no_file, settle, written_aside, written_whole
from envbuild.lock.index import LateClient, make_client, run_with_retries
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings, bare_url, local_path
from envbuild.oci.digest import Digest
from envbuild.report import SILENT, Reporter
from envbuild.retry import as_completed

_THREADS = 4
_CHUNK = 1 << 18
_LONGEST = 8 << 30
"""Bytes of a wheel whose size no lock gives."""
_OTHER_BYTES = "the index serves other bytes than were locked: lock again, and find out why before using them"


class _Stopped(Exception):  # noqa: N818 - a signal between our own threads
    """Another download failed, or the caller stopped them all."""


def wheel_path(cache: Path, sha256: Digest) -> Path:
    """The place of a wheel in the cache."""
    return cache / "wheels" / sha256.hex[:2] / f"{sha256.hex}.whl"


def forget_damaged(cache: Path, sha256: Digest) -> bool:
    """Check a cached wheel's hash, and remove it if it is damaged; OSError where it cannot be read now."""
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
    remove(path)  # in a read-only cache it stays, and is not used all the same
    return True


def remembered_digest(path: Path, folder: Path | None) -> Digest:
    """The sha256 of a wheel outside the cache, read again where its path, inode, size or a time is another; OSError.

    It is kept in the cache `folder`. Whoever writes the wheel's bytes compares them with the lock.
    """
    state = path.stat()
    facts = [str(path.absolute()), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    name = f"{Digest.of(json.dumps(facts).encode()).hex}.json"
    if folder and (known := read_entry(folder / "digests", name, Digest.parse)):
        return known
    with path.open("rb") as file:
        found = Digest.of_file(file)[0]
    if folder and path.stat().st_ctime_ns == state.st_ctime_ns:
        with suppress(OSError):  # the cache may only be read
            write_entry(folder / "digests", name, str(found))
    return found


@cache
def _digest(path: Path, _inode: int, _changed: int) -> Digest:
    """Inode and ctime are part of the key, so a changed file is read again."""
    with path.open("rb") as file:
        return Digest.of_file(file)[0]


def fetch(
    wheels: Sequence[LockedWheel],
    cache: Path,
    *,
    reporter: Reporter = SILENT,
    settings: IndexSettings | None = None,
) -> Iterator[tuple[LockedWheel, Path]]:
    """Yield each wheel and its verified file as soon as it is fetched; LockError at the first that fails.

    Files in the cache are verified again and not downloaded. Leaving the loop early, by an error or Ctrl-C too, stops
    the other downloads and leaves no partial file. Several processes may share a cache.
    """
    with Downloads(cache, reporter=reporter, settings=settings) as downloads:
        expected = {future: wheel for wheel, future in downloads.start(wheels).items()}
        for future in as_completed(expected):
            yield expected[future], future.result()


def fetch_unlocked(url: str, cache: Path, settings: IndexSettings) -> Digest:
    """Download a wheel that no lock has into the cache, and return its digest; LockError where that fails."""

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
            run_with_retries(download, url)
            file.flush()
            with temporary.open("rb") as written:
                found = Digest.of_file(written)[0]
            wheel_path(cache, found).parent.mkdir(parents=True, exist_ok=True)
            settle(file, temporary, wheel_path(cache, found))
    except OSError as error:
        raise _unwritable(error, cache) from error
    return found


class Downloads:
    """Downloads of wheels into the cache, several at once; leaving the block stops them, without partial files."""

    def __init__(self, cache: Path, *, reporter: Reporter = SILENT, settings: IndexSettings | None = None) -> None:
        self._cache, self._reporter = cache, reporter
        self.client = LateClient(settings)
        """The client of all threads."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="download")
        self._futures: dict[LockedWheel, Future[Path]] = {}
        self._total = self._done = 0
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._pool.shutdown()
        self.client.__exit__()

    def start(self, wheels: Iterable[LockedWheel]) -> dict[LockedWheel, Future[Path]]:
        """Start the downloads that were not started before, in this order."""
        wheels = tuple(wheels)
        with self._lock:
            for wheel in wheels:
                if wheel not in self._futures:
                    self._total += wheel.size
                    self._futures[wheel] = self._pool.submit(self._fetch, wheel)
            return {wheel: self._futures[wheel] for wheel in wheels}

    def path(self, wheel: LockedWheel) -> Path:
        """Wait for a wheel's verified file; LockError when it cannot be fetched."""
        return self.start([wheel])[wheel].result()

    def stop(self) -> None:
        """End all downloads now; callers that wait for one get an exception."""
        self._stopped.set()
        for connection in tuple(self._sockets):
            _hang_up(connection)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def advance(self, count: int) -> None:
        """Report that bytes came; the threads end here after `stop`."""
        if self._stopped.is_set():
            raise _Stopped
        with self._lock:
            self._done += count
            self._reporter.progress("fetching", self._done, self._total)

    def trace(self, _event: str, info: Mapping[str, Any]) -> None:
        """Collect the sockets that httpx opens (its request extension `trace`): closing one wakes its thread."""
        stream = info.get("return_value")
        if stream is not None and hasattr(stream, "get_extra_info"):
            connection = stream.get_extra_info("socket")
            self._sockets.append(connection)
            # Raising here would leave httpx with an open connection that it does not know of.
            if self._stopped.is_set():
                _hang_up(connection)

    def pause(self, seconds: float) -> None:
        """Wait before another try."""
        if self._stopped.wait(seconds):
            raise _Stopped

    def _fetch(self, wheel: LockedWheel) -> Path:
        """Return the verified file of a wheel, from the cache, a folder of this machine or the index."""
        path = wheel_path(self._cache, wheel.sha256)
        # Hashed again: at 1.5 GB/s that costs less than a wrong byte.
        with suppress(OSError):  # a file that cannot be read now is fetched again
            if forget_damaged(self._cache, wheel.sha256):
                self._reporter.note(f"{wheel.filename} in the cache was damaged and is fetched again: {path}")
            elif path.stat().st_size == wheel.size:
                self.advance(wheel.size)
                return path
        try:
            with written_whole(path) as file:
                transfer = _Transfer(self, wheel, file)
                source = local_path(wheel.url)
                if source is None:
                    run_with_retries(transfer.download, wheel.url, self.pause)
                else:
                    transfer.copy(source)
                transfer.verify()
        except OSError as error:
            raise _unwritable(error, path) from error
        return path


def _hang_up(connection: socket.socket) -> None:
    """Wake the thread that waits for this connection."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _unwritable(error: OSError, place: Path) -> BuildError:
    todo = "free space there, or set ENVBUILD_CACHE to a folder that can be written"
    return BuildError(f"the cache cannot be written: {error}", where=str(place), todo=todo)


class _Transfer:
    """The transfer of one wheel into one file; an interrupted download goes on where it was."""

    def __init__(self, downloads: Downloads, wheel: LockedWheel, file: BinaryIO) -> None:
        self._downloads, self._wheel, self._file = downloads, wheel, file
        self._hasher, self._size = hashlib.sha256(), 0

    def copy(self, source: Path) -> None:
        """Copy from a folder of this machine."""
        try:
            opened = source.open("rb")
        except OSError as error:
            raise LockError("the wheel cannot be read", where=str(source), todo="put it back, or lock again") from error
        with opened as file:
            for chunk in iter(partial(file.read, _CHUNK), b""):
                self._write(chunk)

    def download(self) -> None:
        """Get what is missing from the index; httpx.HTTPError when that is interrupted."""
        if self._size == self._wheel.size:
            return
        headers = {"Range": f"bytes={self._size}-"} if self._size else {}
        downloads, extensions = self._downloads, {"trace": self._downloads.trace}
        with downloads.client.stream("GET", self._wheel.url, headers=headers, extensions=extensions) as answer:
            answer.raise_for_status()
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                downloads.advance(-self._size)
                self._file.seek(0)
                self._file.truncate()
                self._hasher, self._size = hashlib.sha256(), 0
            for chunk in answer.iter_raw(_CHUNK):
                self._write(chunk)

    def verify(self) -> None:
        """Compare digest and size with the lock."""
        found = Digest(self._hasher.hexdigest())
        if (found, self._size) != (self._wheel.sha256, self._wheel.size):
            raise self._mismatch(f"it is {found} of {self._size} bytes")

    def _write(self, chunk: bytes) -> None:
        self._downloads.advance(len(chunk))
        self._size += len(chunk)
        if self._size > self._wheel.size:
            raise self._mismatch(f"it is longer than {self._wheel.size} bytes")
        self._hasher.update(chunk)
        self._file.write(chunk)

    def _mismatch(self, found: str) -> LockError:
        wheel = self._wheel
        what = f"the hash of {wheel.filename} does not match: locked is {wheel.sha256} of {wheel.size} bytes, {found}"
        return LockError(what, where=bare_url(wheel.url), todo=_OTHER_BYTES)
