"""Talking to indexes: certificates, credentials, retries, and errors that say what to do."""

import email.utils
import netrc
import os
import subprocess
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeVar

import httpx

from envbuild import report
from envbuild.errors import LockError
from envbuild.files import home_folder
from envbuild.lock.certificates import trusted
from envbuild.lock.settings import IndexSettings, bare_url
from envbuild.network import enforce_minimum_rate

Result = TypeVar("Result")
Pause = Callable[[float], object]

_DELAYS = (0.5, 1.5)
"""Seconds before the second and the third try."""
_LONGEST_DELAY = 30.0
"""Seconds that a server may ask us to wait."""
_TEMPORARY = frozenset({408, 425, 429})
_TIMEOUT = httpx.Timeout(30, connect=15)


class IndexAuth(httpx.Auth):
    """Sends credentials and query of an index to the index's own host, and netrc's credentials to the hosts in it."""

    def __init__(self, settings: IndexSettings) -> None:
        places = [_parsed(place) for place in (*settings.indexes, *settings.find_links)]
        self._known = {(place.scheme, place.host, place.port): place for place in places if place.username}
        self._queries = {(place.scheme, place.host, place.port): place.query for place in places if place.query}
        self._netrc = _read_netrc()
        self._keyring = lru_cache(_from_keyring) if settings.keyring else None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add basic authentication where there are credentials for the request's host, and a query that it lacks."""
        url = request.url
        origin = url.scheme, url.host, url.port
        # Locked addresses have no query, as one may hold a token.
        if origin in self._queries and not url.query:
            request.url = url.copy_with(query=self._queries[origin])
        place = self._known.get(origin)
        found = self._from_address(place) if place else self._from_netrc(url.host)
        yield from (httpx.BasicAuth(*found) if found else httpx.Auth()).auth_flow(request)

    def _from_address(self, place: httpx.URL) -> tuple[str, str]:
        """User and password of an index; a password that its address lacks from netrc, then from the keyring."""
        if place.password:
            return place.username, place.password
        entry = self._from_netrc(place.host)
        if entry and entry[0] == place.username:
            return entry
        return place.username, (self._keyring(place) if self._keyring else None) or ""

    def _from_netrc(self, host: str) -> tuple[str, str] | None:
        entry = self._netrc.authenticators(host) if self._netrc else None
        return (entry[0], entry[2] or "") if entry else None


def make_client(settings: IndexSettings) -> httpx.Client:
    """A client with the certificates, proxies and credentials that pip and uv would use."""
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


def retried(action: Callable[[], Result], url: str, pause: Pause = time.sleep) -> Result:
    """Run `action`; after a fault that may pass, run it again, three times in all; then LockError."""
    for delay in (*_DELAYS, None):
        try:
            return action()
        except httpx.HTTPError as error:
            if delay is None or not _may_pass(error):
                raise explained(error, url) from error
            seconds = _asked_delay(error) or delay
            if seconds >= report.SILENCE:
                report.announce(f"waiting {seconds:.0f} s before the next try: {bare_url(url)}")
            pause(seconds)
        except httpx.InvalidURL as error:
            todo = "correct it, or, if it is right, what HTTP_PROXY, HTTPS_PROXY and ALL_PROXY say"
            raise LockError(f"the address is not valid: {error}", where=bare_url(url), todo=todo) from error
    raise AssertionError


def explained(error: httpx.HTTPError, url: str) -> LockError:
    """What a failed request means for the reader."""
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


def _from_keyring(place: httpx.URL) -> str | None:
    """Ask the program `keyring`, by address and then by host, as pip and uv do."""
    address = bare_url(str(place))
    for service in (address, place.host):
        try:
            done = subprocess.run(
                ["keyring", "get", service, place.username], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        if not done.returncode and done.stdout.strip():
            return done.stdout.strip()
    return None


def _parsed(place: str) -> httpx.URL:
    try:
        return httpx.URL(place)
    except httpx.InvalidURL:
        return httpx.URL()


def _may_pass(error: httpx.HTTPError) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in _TEMPORARY
    return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)


def _asked_delay(error: httpx.HTTPError) -> float | None:
    """The Retry-After of the answer in seconds (RFC 9110, section 10.2.3), within reason."""
    text = error.response.headers.get("Retry-After", "") if isinstance(error, httpx.HTTPStatusError) else ""
    if text.isdigit():
        return min(float(text), _LONGEST_DELAY)
    try:
        until = email.utils.parsedate_to_datetime(text) - datetime.now(UTC)
    except (ValueError, TypeError):
        return None
    return min(max(until.total_seconds(), 0.0), _LONGEST_DELAY)


def _read_netrc() -> netrc.netrc | None:
    """The user's netrc file; None when there is none or it cannot be read, as in curl and pip."""
    try:
        return netrc.netrc(os.environ.get("NETRC") or str(home_folder(os.environ) / ".netrc"))
    except (OSError, netrc.NetrcParseError):
        return None
