"""A wheel on the index as a file that can be read anywhere, so that `zipfile` fetches only what it looks at."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from envbuild.errors import LockError
from envbuild.lock.settings import bare_url
from envbuild.refresh.index import Index, IndexFile

_TAIL = 64 << 10
"""Length of the first request: the end of the directory, or all of it."""
_STEP = 16 << 10
"""Lowest length of the others: a member comes with its header in one answer."""
_MEMBER_LIMIT = 4 << 20


class RemoteFile(io.RawIOBase):
    """A seekable file over range requests; what was fetched is kept."""

    def __init__(self, index: Index, url: str) -> None:
        super().__init__()
        self._index, self._url, self._size, self._at = index, url, index.size(url), 0
        self._spans: list[tuple[int, bytes]] = []
        self._fetch(max(0, self._size - _TAIL), min(_TAIL, self._size))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the file; ValueError before its begin, as files have it."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if place < 0:
            raise ValueError(f"negative position {place}")
        self._at = place
        return place

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        length = max(0, min(self._size - self._at, size if size >= 0 else self._size))
        data = self._known(self._at, length)
        if data is None:
            data = self._fetch(self._at, min(max(length, _STEP), self._size - self._at))[:length]
        self._at += length
        return data

    def _known(self, start: int, length: int) -> bytes | None:
        for first, data in self._spans:
            if first <= start and start + length <= first + len(data):
                return data[start - first : start - first + length]
        return b"" if length == 0 else None

    def _fetch(self, start: int, length: int) -> bytes:
        data = self._index.read(self._url, start, length) if length else b""
        self._spans.append((start, data))
        return data


@contextmanager
def remote_wheel(index: Index, file: IndexFile) -> Iterator[zipfile.ZipFile]:
    """Open a wheel on the index; LockError when it is not a zip or a member is damaged."""
    try:
        with RemoteFile(index, file.url) as remote, zipfile.ZipFile(remote) as archive:
            yield archive
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
        where = bare_url(file.url)
        raise LockError(f"{file.name} cannot be read: {error}", where=where, todo="report it to the index") from error


def member(archive: zipfile.ZipFile, name: str) -> str:
    """The text of a small member; BadZipFile where it is not small or not text."""
    with archive.open(name) as file:
        data = file.read(_MEMBER_LIMIT + 1)
    if len(data) > _MEMBER_LIMIT:
        raise zipfile.BadZipFile(f"{name} is longer than {_MEMBER_LIMIT} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise zipfile.BadZipFile(f"{name} is not UTF-8") from error
