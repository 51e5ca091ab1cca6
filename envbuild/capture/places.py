"""The place of a model: its files, listed and read in pieces, in a folder or in Cloud Storage."""

from __future__ import annotations

import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterator, List, Mapping, Optional, Pattern
from urllib.parse import unquote

from envbuild.capture.files import Facts, file_sha256
from envbuild.capture.gcs import CloudStorage, Unread, split_uri
from envbuild.capture.redact import scrub_line

BUDGET = 16 << 20
"""Bytes that are read of one file, in all."""
LONGEST_PIECE = 2 << 20
"""Bytes that are read of it at once."""
LONGEST_TEXT = 200
"""Characters that are kept of a text in a file."""
DEEPEST = 100
"""Folders in folders are read."""
MOST_FILES = 10000
"""As many files are listed."""
MOST_COUNTED = 100000
HASHING = 60.0
"""Seconds for the digests of all files; those that are left have none."""
HASHERS = 4
LOOKUPS = 8
"""Objects are looked up at once."""
LOOKING_UP = 60.0
"""Seconds for all of them."""
URI_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
STAMP_FOLDER = "envbuild/"
"""The stamp's files beside a model do not belong to the model."""
NO_FILE, NO_OBJECT = "there is no such file or folder", "there is no such object or folder in Cloud Storage"
LOCAL_CHUNK, REMOTE_CHUNK = 16 << 10, 256 << 10


class RangeReader:
    """A file of `size` bytes that `fetch(start, length)` reads, at most BUDGET bytes of it, in chunks of `chunk`."""

    def __init__(self, name: str, size: int, fetch: Callable[[int, int], bytes], chunk: int) -> None:
        self.name, self.size, self.chunk, self.budget = name, size, chunk, BUDGET
        self._fetch, self._start, self._data = fetch, 0, b""

    def at(self, start: int, length: int) -> bytes:
        """Return exactly these bytes; Unread where the file ends before, or where the limits do not allow it."""
        if start < 0 or length < 0 or start + length > self.size:
            raise Unread("it is cut short or damaged: it points beyond its end")
        if length > LONGEST_PIECE:
            raise Unread("a part of %d bytes is longer than what is read at once" % length)
        if start < self._start or start + length > self._start + len(self._data):
            fetched = max(length, self.chunk)
            # Each fetch costs time, however little it brings.
            self.budget -= fetched
            if self.budget < 0:
                raise Unread("what it says lies behind more than %d MiB" % (BUDGET >> 20))
            self._start, self._data = start, self._fetch(start, min(fetched, self.size - start))
        data = self._data[start - self._start :][:length]
        if len(data) < length:
            raise Unread("it became shorter while it was read")
        return data

    def head(self, length: int) -> bytes:
        """Return its first bytes, fewer where it is shorter."""
        return self.at(0, min(length, self.size))

    def windows(self, start: int, end: int, backwards: bool = False) -> Iterator[bytes]:
        """Yield a range piece by piece; each overlaps its neighbours by LONGEST_TEXT bytes."""
        steps = range(start, end, self.chunk)
        for offset in reversed(steps) if backwards else steps:
            yield self.at(offset, min(self.chunk + LONGEST_TEXT, end - offset))


def search(pieces: Iterator[bytes], pattern: Pattern[bytes]) -> Optional[str]:
    """Return the first group of the first match; None where nothing matches."""
    found = next(filter(None, map(pattern.search, pieces)), None)
    return short_text(found.group(1)) if found else None


def short_text(value: object) -> Optional[str]:
    """Return a text from a file as one short line without secrets; None if it is empty."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    # JSON can escape a lone surrogate, which UTF-8 cannot hold.
    text = text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode("utf-8")
    return re.sub(r"\s+", " ", scrub_line(text)).strip() or None


class ModelPlace:
    """The files of a model: `path` and `size`, and what tells their content.

    `recorded` holds the sizes of the files that a record says the model has, by path. They are listed and hashed before
    all others, and looked up by name where the listing was cut: no number of other files hides one of them.
    """

    def __init__(self, recorded: Optional[Mapping[str, int]] = None) -> None:
        self.recorded = recorded or {}
        self.files: List[Facts] = []
        self.faults: List[str] = []
        """Why parts of it could not be read, each in a sentence."""
        self.whole = True
        """Whether the listing came to its end."""

    def open(self, path: str) -> RangeReader:
        """Open one of its files; Unread."""
        raise NotImplementedError

    def has(self, path: str) -> bool:
        """Tell whether it has such a file."""
        return any(file["path"] == path for file in self.files)

    def _take(self, files: Iterator[Facts]) -> None:
        for file in files:
            if len(self.files) == MOST_COUNTED:
                self.whole = False
                self.faults.append("it has more than %d files" % MOST_COUNTED)
                break
            self.files.append(file)

    def _complete(self) -> None:
        """Add the recorded files that a listing which was cut does not have, and sort."""
        if not self.whole:
            left = sorted(self.recorded.keys() - {file["path"] for file in self.files})
            # A record is untrusted: its paths must not lead out of the folder.
            self.files += self._look_up([path for path in left if ".." not in path.split("/") and path[:1] != "/"])
        self.files.sort(key=lambda file: (file["path"] not in self.recorded, str(file["path"])))

    def _look_up(self, paths: List[str]) -> List[Facts]:
        raise NotImplementedError


class LocalPlace(ModelPlace):
    """A folder, or a file. A file that is recorded with its present size has `seconds` to be hashed, others HASHING."""

    def __init__(self, path: str, recorded: Optional[Mapping[str, int]] = None, seconds: float = 0) -> None:
        super().__init__(recorded)
        self.walked = 0
        """Folders, by each way that links make to them."""
        self.folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
        self._take(self._file_facts(name) if name else self._walk("", frozenset()))
        if not self.files and not self.faults:
            self.faults.append("the folder is empty")
        self._complete()
        self._add_digests(max(seconds, HASHING))

    def open(self, path: str) -> RangeReader:
        """Open one of its files; Unread."""
        return local_source(os.path.join(self.folder, path), path)

    def _walk(self, below: str, above: frozenset[tuple[int, int]]) -> Iterator[Facts]:
        """Yield the files below a folder; links are followed, except to a folder around it."""
        folder = os.path.join(self.folder, below)
        self.walked += 1
        if self.walked == MOST_COUNTED + 1:
            self.whole = False
            self.faults.append("it has more than %d folders, or links make as many ways to them" % MOST_COUNTED)
        if self.walked > MOST_COUNTED:
            return
        try:
            status = os.stat(folder)
            names = sorted(os.listdir(folder))
        except OSError as error:
            self.faults.append("%s cannot be read: %s" % (below or "the folder", error.strerror))
            return
        here = (status.st_dev, status.st_ino)
        if len(above) == DEEPEST:
            self.faults.append("%s/... is nested more than %d folders deep" % (below[:100], DEEPEST))
            return
        if here in above:
            self.faults.append("%s links to a folder that it lies in" % below)
            return
        for path in (below + name for name in names):
            if not os.path.isdir(os.path.join(self.folder, path)):
                yield from self._file_facts(path)
            elif path + "/" != STAMP_FOLDER:
                yield from self._walk(path + "/", above | {here})

    def _file_facts(self, path: str) -> Iterator[Facts]:
        try:
            status = os.stat(os.path.join(self.folder, path))
        except OSError as error:
            self.faults.append("%s cannot be read: %s" % (path, error.strerror))
            return
        if stat.S_ISREG(status.st_mode):
            yield {"path": path, "size": status.st_size}
        else:
            self.faults.append("%s is not a regular file" % path)

    def _look_up(self, paths: List[str]) -> List[Facts]:
        return [file for path in paths for file in self._file_facts(path)]

    def _add_digests(self, seconds: float) -> None:
        def add(files: List[Facts], end: float) -> None:
            digests = pool.map(lambda file: _sha256(os.path.join(self.folder, file["path"]), end), files)
            for file, digest in zip(files, digests):  # noqa: B905 - 3.10's
                file["sha256"] = digest

        files = self.files[:MOST_FILES]
        alike = [file for file in files if self.recorded.get(file["path"]) == file["size"]]
        with ThreadPoolExecutor(HASHERS) as pool:
            # In this order, so that a sparse file of terabytes does not delay the files that are compared.
            add(alike, time.monotonic() + seconds)
            add([file for file in files if "sha256" not in file], time.monotonic() + HASHING)
        left = sum(file["sha256"] is None for file in files)
        if left:
            self.faults.append(
                "%d of its files have no digest: they cannot be read, or not within %d s" % (left, HASHING)
            )


class BucketPlace(ModelPlace):
    """An object in Cloud Storage, or all below a folder."""

    def __init__(self, uri: str, recorded: Optional[Mapping[str, int]] = None) -> None:
        super().__init__(recorded)
        self.bucket, name = split_uri(uri)
        self.storage = CloudStorage()
        self.prefix = name.rstrip("/") + "/" if name else ""
        try:
            self._take(self._list(uri, name))
        except Unread as error:
            self.whole = False
            self.faults.append(str(error))
        self._complete()
        if not self.files and not self.faults:
            self.faults.append(NO_OBJECT)

    def open(self, path: str) -> RangeReader:
        """Open one of its objects at the generation that was listed."""
        uri = "gs://%s/%s%s" % (self.bucket, self.prefix, path)
        file = next(file for file in self.files if file["path"] == path)

        def fetch(start: int, length: int) -> bytes:
            return self.storage.read(uri, file["generation"], start, length)

        return RangeReader(path, file["size"], fetch, REMOTE_CHUNK)

    def _look_up(self, paths: List[str]) -> List[Facts]:
        found: List[Facts] = []
        try:
            storage = CloudStorage(LOOKING_UP)
            with ThreadPoolExecutor(LOOKUPS) as pool:
                items = pool.map(lambda path: storage.find(self.bucket, self.prefix + path), paths)
                found.extend(dict(item, path=item.pop("name")[len(self.prefix) :]) for item in items if item)
        except Unread as error:
            self.faults.append(str(error))
        return found

    def _list(self, uri: str, name: str) -> Iterator[Facts]:
        for item in self.storage.objects(uri):
            if item["name"] == name:
                # It is an object itself: its folder is the part up to its last slash.
                self.prefix = name[: name.rfind("/") + 1]
            path = item.pop("name")[len(self.prefix) :]
            if not path.startswith(STAMP_FOLDER):
                yield dict(item, path=path)


def place_of(uri: str, recorded: Optional[Mapping[str, int]] = None, seconds: float = 0) -> ModelPlace:
    """Find the files of a model; Unread where there are none."""
    if uri.startswith("gs://"):
        return BucketPlace(uri, recorded)
    path, scheme = uri, URI_SCHEME.match(uri)
    if scheme:
        # `?` and `#` are characters of the path, as they are where the stamp is looked for (envbuild.stamp.store).
        host, slash, path = uri[scheme.end() :].partition("/")
        if scheme.group(1).lower() != "file" or host not in ("", "localhost"):
            raise Unread("only paths, file:// and gs:// are read")
        path = unquote(slash + path, errors="surrogateescape")
    if "\0" in path or not os.path.lexists(path):
        raise Unread(NO_FILE)
    return LocalPlace(path, recorded, seconds)


def local_source(path: str, name: str) -> RangeReader:
    """Open a regular file, which is opened again for each piece; Unread."""
    handle = _open_regular(path)
    size = os.fstat(handle).st_size
    os.close(handle)

    def fetch(start: int, length: int) -> bytes:
        handle = _open_regular(path)
        try:
            return os.pread(handle, length, start)
        except OSError as error:
            raise Unread("it cannot be read: %s" % (error.strerror or error)) from None
        finally:
            os.close(handle)

    return RangeReader(name, size, fetch, LOCAL_CHUNK)


def _open_regular(path: str) -> int:
    """Open a regular file; Unread for anything else, such as a pipe, which must not block."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unread("it cannot be read: %s" % (error.strerror or error)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Unread("it is not a regular file")
    return handle


def _sha256(path: str, end: float) -> Optional[str]:
    """Hash a file; None if it cannot be read, or not before `end`."""
    try:
        with os.fdopen(_open_regular(path), "rb", buffering=0) as file:
            return file_sha256(file, end)
    except (OSError, Unread):
        return None
