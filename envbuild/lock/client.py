"""HTTP clients for package indexes: certificates, credentials, retries, and errors that say what to do."""

import netrc
import os
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Self, TypeVar

import httpx

from envbuild.errors import LockError, UsageError
from envbuild.files import home_folder
from envbuild.lock.settings import IndexSettings, bare_url
from envbuild.network import enforce_minimum_rate, trusted_certificates
from envbuild.retry import TRANSIENT_STATUSES, Retry, Transient

Value = TypeVar("Value")
Result = TypeVar("Result")

RETRY = Retry(first=0.5, longest=30.0)
_TIMEOUT = httpx.Timeout(30, connect=15)
_WORKERS = 4
"""Each has its own connection, and so its own name lookup, which takes seconds where a packet is lost."""
_PEM = "give a file of certificates in PEM"


class LateClient:
    """A client that is created by its first request: a lock from the cache reads no certificates."""

    def __init__(self, settings: IndexSettings) -> None:
        self._settings, self._stack, self._lock = settings, ExitStack(), threading.Lock()
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def head(self, url: str) -> httpx.Response:
        """As `httpx.Client.head`."""
        return self._open().head(url)

    def stream(
        self, method: str, url: str, *, headers: dict[str, str] | None = None
    ) -> AbstractContextManager[httpx.Response]:
        """As `httpx.Client.stream`."""
        return self._open().stream(method, url, headers=headers)

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = self._stack.enter_context(make_client(self._settings))
            return self._client


Client = httpx.Client | LateClient


class IndexAuth(httpx.Auth):
    """Sends an index's credentials and query to its own host, and netrc's credentials to the hosts listed there."""

    def __init__(self, settings: IndexSettings) -> None:
        places = []
        for place in (*settings.indexes, *settings.find_links):
            try:
                places.append(httpx.URL(place))
            except httpx.InvalidURL:
                continue
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
        verify=trusted(settings),
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


def retried(action: Callable[[], Result], url: str, pause: Callable[[float], object] = time.sleep) -> Result:
    """Run `action` up to three times, as long as the error may be temporary; then raise LockError."""

    def attempt(_number: int) -> Result:
        try:
            return action()
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in TRANSIENT_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                seconds = error.response.headers.get("Retry-After", "")
                # The date form is ignored, as clocks differ.
                after = float(seconds) if re.fullmatch(r"[0-9]{1,9}", seconds) else None
                raise Transient(explained(error, url), after=after) from error
            raise explained(error, url) from error
        except httpx.UnsupportedProtocol as error:
            raise explained(error, url) from error
        except httpx.TransportError as error:
            raise Transient(explained(error, url)) from error
        except httpx.HTTPError as error:
            raise explained(error, url) from error
        except httpx.InvalidURL as error:
            todo = "correct it; if it is correct, check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
            raise LockError(f"the address is not valid: {error}", where=bare_url(url), todo=todo) from error

    return RETRY.run(attempt, pause=pause)


def explained(error: httpx.HTTPError, url: str) -> LockError:
    """Return the LockError for a failed request: what failed, and what the user can do."""
    where = bare_url(url)
    if not isinstance(error, httpx.HTTPStatusError):
        why = str(error) or type(error).__name__
        todo = "check the network, the proxy and the index settings of pip or uv, then run again"
        return LockError(f"the package index could not be reached: {why}", where=where, todo=todo)
    status = error.response.status_code
    if status in {401, 403, 407}:
        todo = "give user and password in the index URL of pip's or uv's settings, or in ~/.netrc"
        return LockError(f"the package index refused access (HTTP {status})", where=where, todo=todo)
    if status in {404, 410}:
        return LockError(f"the file is not there (HTTP {status})", where=where, todo="lock again")
    return LockError(f"the package index answered HTTP {status}", where=where, todo="run again later")


def check_bundle(path: Path) -> None:
    """Check that the file of `--ca-bundle` holds a certificate; UsageError."""
    where = f"--ca-bundle {path}"
    if not path.is_file():
        raise UsageError("there is no such file of certificates", where=where, todo=_PEM)
    try:
        _bundle_context(str(path))
    except OSError as error:
        raise UsageError(f"the CA bundle cannot be read: {error}", where=where, todo=_PEM) from error


def trusted(settings: IndexSettings) -> ssl.SSLContext:
    """The authorities of `--ca-bundle` alone, as with pip's `--cert`; else this machine's and pip's or certifi's.

    OpenSSL itself reads SSL_CERT_FILE and SSL_CERT_DIR. LockError when a bundle cannot be read.
    """
    if settings.ca_bundle:
        try:
            return _bundle_context(settings.ca_bundle)
        except OSError as error:
            what = f"the CA bundle cannot be read: {error}"
            raise LockError(what, where=f"--ca-bundle {settings.ca_bundle}", todo=_PEM) from error
    try:
        return trusted_certificates(settings.certificates)
    except OSError as error:
        where = os.environ.get("SSL_CERT_FILE") or settings.certificates or ""
        todo = "correct SSL_CERT_FILE, or cert in pip's settings"
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
