"""A wheel on an index as a file that can be read anywhere, so that `zipfile` fetches only what it looks at."""

import io
from http import HTTPStatus
from typing import TYPE_CHECKING

from envbuild.errors import LockError
from envbuild.lock.settings import bare_url
from envbuild.lock.web import Web, retried

if TYPE_CHECKING:
    import httpx

_TAIL = 128 << 10
"""Bytes of the end that come with the first answer: most wheels' directory and metadata lie there."""
_STEP = 16 << 10
_LIMIT = 64 << 20
"""Bytes that one request may ask for, and that a server without ranges may send."""


class UnreadableError(Exception):
    """The server sends no ranges, or not the bytes that it was asked for."""


class RemoteFile(io.RawIOBase):
    """A seekable file over range requests; what was fetched is kept."""

    def __init__(self, client: Web, url: str) -> None:
        super().__init__()
        self._client, self._url, self._at = client, url, 0
        self._spans: list[tuple[int, bytes]] = []
        self.size = 0
        retried(self._fetch_tail, url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the file; ValueError before its begin, as files have it."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if place < 0:
            raise ValueError(f"negative position {place}")
        self._at = place
        return place

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        rest = max(0, self.size - self._at)
        length = rest if size < 0 else min(size, rest)
        data = self._known(self._at, length)
        if data is None:
            self.prefetch(self._at, max(length, _STEP))
            data = self._known(self._at, length)
        assert data is not None, "what was fetched just now is known"
        self._at += length
        return data

    def prefetch(self, start: int, length: int) -> None:
        """Fetch this part in one request, unless it is there."""
        length = min(length, self.size - start)
        if length > _LIMIT:
            raise UnreadableError(f"a part of {length} bytes")
        if self._known(start, length) is None:
            retried(lambda: self._fetch(start, length), self._url)

    def _known(self, start: int, length: int) -> bytes | None:
        for first, data in self._spans:
            if first <= start and start + length <= first + len(data):
                return data[start - first : start - first + length]
        return b"" if length == 0 else None

    def _fetch(self, start: int, length: int) -> None:
        asked = {"Range": f"bytes={start}-{start + length - 1}"}
        with self._client.stream("GET", self._url, headers=asked) as answer:
            answer.raise_for_status()
            # Servers may answer with the whole file where the whole file is what was asked for.
            asked_for = answer.status_code == HTTPStatus.PARTIAL_CONTENT or length == self.size
            data = _body(answer, length) if asked_for else b""
        if len(data) != length:
            raise UnreadableError(f"{len(data)} bytes came where {length} were asked for")
        self._spans.append((start, data))

    def _fetch_tail(self) -> None:
        """Learn the size and get the end in one answer (RFC 9110, section 14.1.2: a suffix range)."""
        with self._client.stream("GET", self._url, headers={"Range": f"bytes=-{_TAIL}"}) as answer:
            answer.raise_for_status()
            length = answer.headers.get("Content-Length", "")
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT and int(length or _LIMIT) > _TAIL:
                raise UnreadableError("the server sends no ranges")
            data = _body(answer, _TAIL)
        total = answer.headers.get("Content-Range", "").rpartition("/")[2] or str(len(data))
        if not total.isdigit() or int(total) < len(data):
            raise UnreadableError(f"the size is missing in {total!r}")
        self.size = int(total)
        self._spans.append((self.size - len(data), data))


def damaged(name: str, url: str, why: object) -> LockError:
    """The error for a wheel that cannot be read as one."""
    todo = "lock another version, and report it to the index"
    if url.startswith("file:"):
        todo = "give the folder that has this wheel: --find-links DIR"
    return LockError(f"{name} is no readable wheel: {why}", where=bare_url(url), todo=todo)


def _body(answer: "httpx.Response", limit: int) -> bytes:
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > limit:
            raise UnreadableError(f"more than {limit} bytes came")
    return bytes(data)
