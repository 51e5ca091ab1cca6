"""Package indexes and folders of wheels: the files of a project (simple repository API, HTML), and files in place."""

import io
from dataclasses import dataclass
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx
from packaging.utils import InvalidSdistFilename, NormalizedName, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import LockError
from envbuild.lock.client import Client, retried
from envbuild.lock.settings import IndexSettings, asked_url, bare_url, local_path
from envbuild.lock.tags import parsed_wheel
from envbuild.network import read_document
from envbuild.oci.digest import Digest

PAGE_LIMIT = 64 << 20
"""Bytes of a project's page; the largest of the public index has some MiB."""
_TAIL = 128 << 10
"""Bytes of the end that come with the first answer: most wheels' directory and metadata are there."""
_STEP = 16 << 10
_LIMIT = 64 << 20
"""Bytes that one request may ask for, and that a server without ranges may send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file that an index or a folder offers."""

    name: NormalizedName
    version: Version
    filename: str
    url: str
    """Without credentials, query and fragment."""
    sha256: Digest | None = None
    """As the index gives it; None where it gives none."""
    requires_python: str | None = None
    yanked: str | None = None
    """Why it was withdrawn (PEP 592), which may be empty; None when it was not."""

    @property
    def is_wheel(self) -> bool:
        """False for source distributions."""
        return self.filename.endswith(".whl")


def files_of(client: Client, settings: IndexSettings, project: str) -> tuple[IndexFile, ...]:
    """Every file of a project in all places; LockError when a place cannot be read."""
    name = canonicalize_name(project)
    found: list[IndexFile] = []
    for index in settings.indexes:
        found += _page(client, asked_url(index, name))
    for place in settings.find_links:
        found += _page(client, asked_url(place)) if "://" in place else _folder(Path(place))
    return tuple(file for file in found if file.name == name)


def size_of(client: Client, url: str) -> int:
    """The size of a file in bytes, without downloading it."""
    path = local_path(url)
    if path is not None:
        try:
            return path.stat().st_size
        except OSError as error:
            raise LockError("the wheel cannot be read", where=str(path), todo="check the find-links folder") from error
    size = retried(lambda: _content_length(client, url), url)
    if size is None:
        raise LockError("the index does not give the size of the file", where=bare_url(url), todo="use another index")
    return size


def index_file(url: str, *, requires_python: str | None = None, yanked: str | None = None) -> IndexFile | None:
    """Read a link; None when it leads to neither a wheel nor a source distribution."""
    parts = urlsplit(url)
    filename = unquote(parts.path.rpartition("/")[2])
    wheel = parsed_wheel(filename)
    try:
        name, version = wheel[:2] if wheel else parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidVersion):
        return None
    algorithm, _, value = parts.fragment.partition("=")
    try:
        sha256 = Digest(value.lower()) if algorithm == "sha256" else None
    except ValueError:
        sha256 = None
    return IndexFile(
        name=name,
        version=version,
        filename=filename,
        url=bare_url(url),
        sha256=sha256,
        requires_python=requires_python,
        yanked=yanked,
    )


def parse_page(text: str, url: str) -> tuple[IndexFile, ...]:
    """Read a page of links."""
    parser = _Links()
    parser.feed(text)
    base = urljoin(url, parser.base)
    links = (index_file(urljoin(base, href), requires_python=it, yanked=why) for href, it, why in parser.links)
    return tuple(link for link in links if link is not None)


class _Links(HTMLParser):
    """Collects the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[tuple[str, str | None, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        href = values.get("href")
        if tag == "base" and href:
            self.base = href
        if tag == "a" and href:
            yanked = values["data-yanked"] or "" if "data-yanked" in values else None
            self.links.append((href, values.get("data-requires-python"), yanked))


def _page(client: Client, url: str) -> tuple[IndexFile, ...]:
    """The links of a page; none when there is no such page."""

    def ask() -> tuple[bytes, str, str] | None:
        with client.stream("GET", url, headers={"Accept": "text/html"}) as answer:
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return None
            answer.raise_for_status()
            data = read_document(answer.iter_bytes(), PAGE_LIMIT)
            return data, answer.encoding or "utf-8", str(answer.url)

    found = retried(ask, url)
    if found and len(found[0]) > PAGE_LIMIT:
        what = f"the page of an index has more than {PAGE_LIMIT >> 20} MiB"
        raise LockError(what, where=bare_url(url), todo="check the index and the proxy")
    return parse_page(found[0].decode(found[1], "replace"), found[2]) if found else ()


def _folder(path: Path) -> tuple[IndexFile, ...]:
    """The files in a folder, or the one file."""
    try:
        paths = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise LockError("the find-links folder cannot be read", where=str(path), todo=str(error)) from error
    files = [index_file(file.absolute().as_uri()) for file in paths]
    return tuple(file for file in files if file is not None)


def _content_length(client: Client, url: str) -> int | None:
    """Content-Length of HEAD, else the total in Content-Range of a first byte, for servers that refuse HEAD."""
    answer = client.head(url)
    if answer.is_success and answer.headers.get("Content-Length", "").isdigit():
        return int(answer.headers["Content-Length"])
    with client.stream("GET", url, headers={"Range": "bytes=0-0"}) as part:
        part.raise_for_status()
        total = part.headers.get("Content-Range", "").rpartition("/")[2] or part.headers.get("Content-Length", "")
    return int(total) if total.isdigit() else None


class UnreadableError(Exception):
    """The server sends no ranges, or not the bytes that it was asked for."""


class RemoteFile(io.RawIOBase):
    """A file on an index that is read by range requests, so that `zipfile` fetches only what it reads.

    What was fetched is kept.
    """

    def __init__(self, client: Client, url: str) -> None:
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
        """Move to a place in the file; ValueError before its start, as for other files."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if place < 0:
            raise ValueError(f"negative position {place}")
        self._at = place
        return place

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        available = max(0, self.size - self._at)
        length = available if size < 0 else min(size, available)
        data = self._cached(self._at, length)
        if data is None:
            self.prefetch(self._at, max(length, _STEP))
            data = self._cached(self._at, length)
        assert data is not None, "it was fetched just now"
        self._at += length
        return data

    def prefetch(self, start: int, length: int) -> None:
        """Fetch this part in one request, unless it is cached."""
        length = min(length, self.size - start)
        if length > _LIMIT:
            raise UnreadableError(f"a part of {length} bytes")
        if self._cached(start, length) is None:
            retried(lambda: self._fetch(start, length), self._url)

    def _cached(self, start: int, length: int) -> bytes | None:
        for first, data in self._spans:
            if first <= start and start + length <= first + len(data):
                return data[start - first : start - first + length]
        return b"" if length == 0 else None

    def _fetch(self, start: int, length: int) -> None:
        with self._client.stream("GET", self._url, headers={"Range": f"bytes={start}-{start + length - 1}"}) as answer:
            answer.raise_for_status()
            # A server may answer with the whole file when the range is the whole file.
            usable = answer.status_code == HTTPStatus.PARTIAL_CONTENT or length == self.size
            data = _body(answer, length) if usable else b""
        if len(data) != length:
            raise UnreadableError(f"the server sent {len(data)} of {length} bytes")
        self._spans.append((start, data))

    def _fetch_tail(self) -> None:
        """Get the size and the end in one answer (RFC 9110, section 14.1.2: a suffix range)."""
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


def _body(answer: httpx.Response, limit: int) -> bytes:
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > limit:
            raise UnreadableError(f"the server sent more than {limit} bytes")
    return bytes(data)
