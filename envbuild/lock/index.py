"""Package indexes and folders of wheels: HTTP clients with credentials and retries, projects' files, files in place."""

import io
import netrc
import os
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import httpx
from packaging.utils import InvalidSdistFilename, NormalizedName, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import LockError, UsageError
from envbuild.files import home_folder
from envbuild.lock.settings import IndexSettings, bare_url, local_path, page_url, read_settings
from envbuild.network import enforce_minimum_rate, read_document, trusted_certificates
from envbuild.oci.digest import Digest
from envbuild.retry import TRANSIENT_STATUSES, Retry, Transient
from envbuild.wheel.name import parsed_wheel

Value = TypeVar("Value")
Result = TypeVar("Result")

RETRY = Retry(first=0.5, longest=30.0)
_TIMEOUT = httpx.Timeout(30, connect=15)
_WORKERS = 4
"""Each has its own connection, and so its own name lookup, which takes seconds where a packet is lost."""
_PEM = "give a file of certificates in PEM"
_CORRECT_ADDRESS = "correct it; if it is correct, check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
_CHECK_NETWORK = "check the network, the proxy and the index settings of pip or uv, then run again"
_GIVE_LOGIN = "give user and password in the index URL of pip's or uv's settings, or in ~/.netrc"
PAGE_LIMIT = 64 << 20
"""Bytes of a project's page; the largest of the public index has some MiB."""
_TAIL = 128 << 10
"""Bytes of the end that come with the first answer: most wheels' directory and metadata are there."""
_STEP = 16 << 10
_LIMIT = 64 << 20
"""Bytes that one request may ask for, and that a server without ranges may send."""


class LateClient:
    """A client that is created by its first request: a lock from the cache reads no certificates."""

    def __init__(self, settings: IndexSettings | None) -> None:
        self._settings, self._lock = settings, threading.Lock()
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def stream(self, method: str, url: str, **options: Any) -> AbstractContextManager[httpx.Response]:
        """As `httpx.Client.stream`."""
        with self._lock:
            self._client = self._client or make_client(self._settings or read_settings())
        return self._client.stream(method, url, **options)


Client = httpx.Client | LateClient


class IndexAuth(httpx.Auth):
    """Sends an index's credentials and query to its own host, and netrc's credentials to the hosts listed there."""

    def __init__(self, settings: IndexSettings) -> None:
        places: list[httpx.URL] = []
        for place in (*settings.indexes, *settings.find_links):
            with suppress(httpx.InvalidURL):
                places.append(httpx.URL(place))
        self._known = {(place.scheme, place.host, place.port): place for place in places if place.username}
        self._queries = {(place.scheme, place.host, place.port): place.query for place in places if place.query}
        self._netrc: netrc.netrc | None = None
        with suppress(OSError, netrc.NetrcParseError):  # curl and pip ignore such a file too
            self._netrc = netrc.netrc(os.environ.get("NETRC") or str(home_folder(os.environ) / ".netrc"))
        self._keyring = lru_cache(_from_keyring) if settings.keyring else None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the query that the index needs, and basic authentication where there are credentials for the host."""
        url = request.url
        origin = url.scheme, url.host, url.port
        # Locked addresses have no query, as one may hold a token.
        if origin in self._queries and not url.query:
            request.url = url.copy_with(query=self._queries[origin])
        place = self._known.get(origin)
        login = self._from_address(place) if place else self._from_netrc(url.host)
        yield from (httpx.BasicAuth(*login) if login else httpx.Auth()).auth_flow(request)

    def _from_address(self, place: httpx.URL) -> tuple[str, str]:
        """User and password of an index; a password that its address lacks from netrc, then from the keyring."""
        if place.password:
            return place.username, place.password
        entry = self._from_netrc(place.host)
        if entry and entry[0] == place.username:
            return entry
        return place.username, (self._keyring(place) if self._keyring else None) or ""

    def _from_netrc(self, host: str) -> tuple[str, str] | None:
        entry = self._netrc.authenticators(host) if self._netrc is not None else None
        return (entry[0], entry[2] or "") if entry else None


def make_client(settings: IndexSettings) -> httpx.Client:
    """Create a client with the certificates, proxies and credentials that pip and uv would use."""
    lax = {f"https://{host}": httpx.HTTPTransport(verify=False) for host in settings.trusted_hosts}
    client = httpx.Client(
        verify=trust_context(settings),
        mounts=lax,
        auth=IndexAuth(settings),
        timeout=_TIMEOUT,
        follow_redirects=True,
        headers={"User-Agent": "envbuild", "Accept-Encoding": "identity"},
    )
    return enforce_minimum_rate(client)


def in_parallel(function: Callable[[Value], Result], values: Iterable[Value]) -> list[Result]:
    """Apply a function in a few threads; the first error ends it, and drops the calls that have not started."""
    pool = ThreadPoolExecutor(_WORKERS)
    try:
        return list(pool.map(function, values))
    finally:
        pool.shutdown(cancel_futures=True)


def run_with_retries(action: Callable[[], Result], url: str, pause: Callable[[float], object] = time.sleep) -> Result:
    """Run `action`, which asks for `url`, by RETRY as long as its error may be temporary; then raise LockError."""

    def attempt(_number: int) -> Result:
        try:
            return action()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            answer = error.response if isinstance(error, httpx.HTTPStatusError) else None
            may_pass = isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)
            if not (answer.status_code in TRANSIENT_STATUSES if answer is not None else may_pass):
                raise explain_error(error, url) from error
            seconds = answer.headers.get("Retry-After", "") if answer is not None else ""
            # The date form is ignored, as clocks differ.
            after = float(seconds) if re.fullmatch(r"[0-9]{1,9}", seconds) else None
            raise Transient(explain_error(error, url), after=after) from error

    return RETRY.run(attempt, pause=pause)


def explain_error(error: httpx.HTTPError | httpx.InvalidURL, url: str) -> LockError:
    """Return the LockError for a failed request: what failed, and what the user can do."""
    what, todo = f"the package index could not be reached: {str(error) or type(error).__name__}", _CHECK_NETWORK
    if isinstance(error, httpx.InvalidURL):
        what, todo = f"the address is not valid: {error}", _CORRECT_ADDRESS
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        what, todo = f"the package index answered HTTP {status}", "run again later"
        if status in {401, 403, 407}:
            what, todo = f"the package index refused access (HTTP {status})", _GIVE_LOGIN
        if status in {404, 410}:
            what, todo = f"the file is not there (HTTP {status})", "lock again"
    return LockError(what, where=bare_url(url), todo=todo)


def check_bundle(path: Path) -> None:
    """Check that the file of `--ca-bundle` holds a certificate; UsageError."""
    where = f"--ca-bundle {path}"
    if not path.is_file():
        raise UsageError("there is no such file of certificates", where=where, todo=_PEM)
    try:
        _bundle_context(str(path))
    except OSError as error:
        raise UsageError(f"the CA bundle cannot be read: {error}", where=where, todo=_PEM) from error


def trust_context(settings: IndexSettings) -> ssl.SSLContext:
    """The authorities of `--ca-bundle` alone, as with pip's `--cert`; else this machine's and pip's or certifi's.

    OpenSSL itself reads SSL_CERT_FILE and SSL_CERT_DIR. LockError when a bundle cannot be read.
    """
    where = os.environ.get("SSL_CERT_FILE") or settings.certificates or ""
    todo = "correct SSL_CERT_FILE, or cert in pip's settings"
    try:
        if settings.ca_bundle:
            where, todo = f"--ca-bundle {settings.ca_bundle}", _PEM
            return _bundle_context(settings.ca_bundle)
        return trusted_certificates(settings.certificates)
    except OSError as error:
        raise LockError(f"the CA bundle cannot be read: {error}", where=where, todo=todo) from error


@lru_cache(maxsize=4)
def _bundle_context(bundle: str) -> ssl.SSLContext:
    """A context with these authorities alone; OSError, of which ssl.SSLError is one, when there are none."""
    context = ssl.create_default_context(cafile=bundle)
    if not context.cert_store_stats()["x509"]:
        raise ssl.SSLError("no certificate found")
    return context


def _from_keyring(place: httpx.URL) -> str | None:
    """Ask the program `keyring`, by address and then by host, as pip and uv do."""
    for service in (bare_url(str(place)), place.host):
        command = ["keyring", "get", service, place.username]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return None
        if not done.returncode and done.stdout.strip():
            return done.stdout.strip()
    return None


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
        found += _fetch_page(client, page_url(index, name))
    for place in settings.find_links:
        found += _fetch_page(client, page_url(place)) if "://" in place else _list_folder(Path(place))
    return tuple(file for file in found if file.name == name)


def size_of(client: Client, url: str) -> int:
    """The size of a file in bytes, without downloading it."""
    path = local_path(url)
    if path is not None:
        try:
            return path.stat().st_size
        except OSError as error:
            raise LockError("the wheel cannot be read", where=str(path), todo="check the find-links folder") from error

    def ask() -> str:
        with client.stream("GET", url, headers={"Range": "bytes=0-0"}) as part:
            part.raise_for_status()
            ranges = str(part.headers.get("Content-Range", ""))
            return ranges.rpartition("/")[2] or str(part.headers.get("Content-Length", ""))

    if not (size := run_with_retries(ask, url)).isdigit():
        raise LockError("the index does not give the size of the file", where=bare_url(url), todo="use another index")
    return int(size)


def index_file(url: str, *, requires_python: str | None = None, yanked: str | None = None) -> IndexFile | None:
    """Read a link; None when it leads to neither a wheel nor a source distribution."""
    parts = urlsplit(url)
    filename = unquote(parts.path.rpartition("/")[2])
    wheel = parsed_wheel(filename)
    try:
        name, version = (wheel.name, wheel.version) if wheel else parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidVersion):
        return None
    digest = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", parts.fragment)
    sha256 = Digest(digest[1].lower()) if digest else None
    return IndexFile(
        name=name, version=version, filename=filename, url=bare_url(url), sha256=sha256,
        requires_python=requires_python, yanked=yanked,
    )  # fmt: skip


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


def _fetch_page(client: Client, url: str) -> tuple[IndexFile, ...]:
    """The links of a page; none when there is no such page."""

    def ask() -> tuple[bytes, str, str] | None:
        with client.stream("GET", url, headers={"Accept": "text/html"}) as answer:
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return None
            answer.raise_for_status()
            data = read_document(answer.iter_bytes(), PAGE_LIMIT)
            return data, answer.encoding or "utf-8", str(answer.url)

    found = run_with_retries(ask, url)
    if found and len(found[0]) > PAGE_LIMIT:
        what = f"the page of an index has more than {PAGE_LIMIT >> 20} MiB"
        raise LockError(what, where=bare_url(url), todo="check the index and the proxy")
    return parse_page(found[0].decode(found[1], "replace"), found[2]) if found else ()


def _list_folder(path: Path) -> tuple[IndexFile, ...]:
    """The files in a folder, or the one file."""
    try:
        paths = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise LockError("the find-links folder cannot be read", where=str(path), todo=str(error)) from error
    files = [index_file(file.absolute().as_uri()) for file in paths]
    return tuple(file for file in files if file is not None)


class UnreadableError(Exception):
    """The server sends no ranges, or not the bytes that it was asked for."""


class RemoteFile(io.RawIOBase):
    """A file on an index, read by range requests as `zipfile` asks for it, and kept."""

    def __init__(self, client: Client, url: str) -> None:
        super().__init__()
        self._client, self._url, self._at = client, url, 0
        self._spans: list[tuple[int, bytes]] = []
        self.size = 0
        run_with_retries(self._fetch_tail, url)

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
            run_with_retries(lambda: self._fetch(start, length), self._url)

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
