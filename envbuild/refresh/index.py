"""A package index as this stage needs it: the files of a project's simple page (PEP 503), and byte ranges of a file."""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Self

import httpx

from envbuild.errors import LockError
from envbuild.lock.settings import IndexSettings, bare_url
from envbuild.oci.digest import Digest

_ATTEMPTS = 4
_LONGEST_WAIT = 30.0
"""Seconds, where an index asks for patience."""
_PAGE_LIMIT = 64 << 20
_TODO = "check the index settings of pip or uv, and the network"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file of a project's page that was not yanked (PEP 592)."""

    name: str
    url: str
    """May hold the index's credentials."""
    sha256: Digest


class Index:
    """One package index over HTTP; every method may be called from several threads."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url, self._client = httpx.URL(url.rstrip("/") + "/"), client
        self._lock, self._received = threading.Lock(), 0

    @property
    def received(self) -> int:
        """Bytes of content that were read so far, of pages and files."""
        return self._received

    @classmethod
    @contextmanager
    def open(cls, settings: IndexSettings) -> Iterator[Self]:
        """Connect to the default index of pip or uv; LockError when the settings name none."""
        if not settings.default:
            raise LockError("no package index is set", where="the settings of pip and uv", todo=_TODO)
        limits = httpx.Limits(max_connections=32)
        with httpx.Client(verify=_verify(settings), timeout=60, follow_redirects=True, limits=limits) as client:
            yield cls(settings.default, client)

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """The files of a project; none when the index does not have it."""
        url = self._url.join(f"{project}/")
        status, body, _ = self._get(url, {}, _PAGE_LIMIT)
        if status == httpx.codes.NOT_FOUND:
            return ()
        page = _Page()
        page.feed(body.decode("utf-8", "replace"))
        return tuple(found for anchor in page.anchors if (found := self._file(url, anchor)) is not None)

    def size(self, url: str) -> int:
        """The length of a file; LockError where the server does not serve ranges."""
        content_range = self._range(url, 0, 1)[1]
        try:
            return int(content_range.rpartition("/")[2])
        except ValueError:
            raise _failed(httpx.URL(url), f"the length is missing in {content_range!r}") from None

    def read(self, url: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes of a file from `start`."""
        return self._range(url, start, length)[0]

    def _range(self, url: str, start: int, length: int) -> tuple[bytes, str]:
        wanted = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        status, body, headers = self._get(httpx.URL(url), wanted, length)
        if len(body) != length:
            why = f"a range of {length} bytes was asked for, {len(body)} came with status {status}"
            without = ": it does not serve parts of files (range requests)" if status == httpx.codes.OK else ""
            raise _failed(httpx.URL(url), why + without)
        return body, headers.get("content-range", "")

    def _file(self, page: httpx.URL, anchor: dict[str, str | None]) -> IndexFile | None:
        """One anchor of a page; nothing where it was yanked or has no sha256, which no row could name as its source."""
        url = page.join(anchor.get("href") or "")
        algorithm, _, digest = url.fragment.partition("=")
        if "data-yanked" in anchor or algorithm != "sha256":
            return None
        if page.userinfo and url.host == page.host and not url.userinfo:
            url = url.copy_with(userinfo=page.userinfo)
        name = url.path.rpartition("/")[2]
        try:
            return IndexFile(name=name, url=str(url.copy_with(fragment=None)), sha256=Digest.parse(f"sha256:{digest}"))
        except ValueError as error:
            raise _failed(page, f"the digest of {name} cannot be read: {error}") from error

    def _get(self, url: httpx.URL, headers: dict[str, str], limit: int) -> tuple[int, bytes, httpx.Headers]:
        """Status, at most `limit` bytes of content, and headers; short faults of network and server are retried."""
        for attempt in range(_ATTEMPTS):
            asked = httpx.Headers()
            try:
                status, body, found = self._once(url, headers, limit)
            except httpx.HTTPError as error:
                if attempt == _ATTEMPTS - 1:
                    raise _failed(url, str(error) or type(error).__name__) from error
            else:
                if status < httpx.codes.BAD_REQUEST or status == httpx.codes.NOT_FOUND:
                    return status, body, found
                busy = status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS
                if not busy or attempt == _ATTEMPTS - 1:
                    raise _failed(url, f"the server answered {status}")
                asked = found
            time.sleep(_pause(attempt, asked))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, url: httpx.URL, headers: dict[str, str], limit: int) -> tuple[int, bytes, httpx.Headers]:
        body = bytearray()
        with self._client.stream("GET", url, headers=headers) as response:
            # A server that ignores the range would send a whole wheel, of which nothing is read; a whole file of just
            # the length that was asked for is the range.
            partial = response.status_code == httpx.codes.PARTIAL_CONTENT
            if partial or "Range" not in headers or response.headers.get("content-length") == str(limit):
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > limit:
                        raise _failed(url, f"the answer is longer than {limit} bytes")
            with self._lock:
                self._received += len(body)
            return response.status_code, bytes(body), response.headers


class _Page(HTMLParser):
    """The attributes of every anchor of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.anchors.append(dict(attrs))


def _verify(settings: IndexSettings) -> Any:
    """The certificates that pip is set to, else the system's, else the ones that httpx brings."""
    if settings.certificates or ssl.get_default_verify_paths().cafile:
        return ssl.create_default_context(cafile=settings.certificates)
    return True


def _pause(attempt: int, headers: httpx.Headers) -> float:
    """Seconds before the next attempt: rising, and not less than Retry-After (RFC 9110, section 10.2.3) asks for."""
    asked = headers.get("retry-after", "")
    patience = min(float(asked), _LONGEST_WAIT) if asked.isascii() and asked.isdigit() else 0.0
    return float(max(0.2 * 2**attempt, patience))


def _failed(url: httpx.URL, why: str) -> LockError:
    return LockError(f"the package index cannot be read: {why}", where=bare_url(str(url)), todo=_TODO)
