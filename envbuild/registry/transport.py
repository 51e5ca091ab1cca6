"""HTTP to a registry: connections, timeouts, cancellation, redirects, and the bodies of blobs."""

import hashlib
import io
import ipaddress
import logging
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import httpx

from envbuild.errors import RegistryError
from envbuild.network import enforce_minimum_rate, is_loopback, trusted_certificates
from envbuild.oci.blobs import read_blob
from envbuild.oci.image import Descriptor, Opener
from envbuild.oci.reference import DOCKER_HUB
from envbuild.registry.faults import CHECK_REGISTRY, is_tls_error, redacted, unreachable_error
from envbuild.retry import Retry, Transient

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT = 10.0
ANSWER = 60.0
LONG_ANSWER = 900.0
"""Seconds to wait for the answer to a blob's PUT: registries hash and move it before they answer (moby #53700)."""

_CHUNK = 1 << 20

# Both log URLs and response headers, where upload and storage locations carry signatures.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


def api_root(host: str) -> httpx.URL:
    """Return the root of a registry's API: HTTP on loopback, HTTPS elsewhere; RegistryError for an invalid host."""
    try:
        url = _check_port(httpx.URL(f"https://{'registry-1.docker.io' if host == DOCKER_HUB else host}"))
    except httpx.InvalidURL as error:
        raise RegistryError(f"not a registry host: {error}", where=host) from error
    return url.copy_with(scheme="http") if is_loopback(url.host) else url


@lru_cache(maxsize=256)
def _internal_level(host: str) -> int:
    """How internal a host is: 0 public or unknown, 1 private network, 2 this machine or its link."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return 0
    plain = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
    addresses = [getattr(it, "ipv4_mapped", None) or it for it in plain]
    if any(it.is_loopback or it.is_link_local or it.is_unspecified for it in addresses):
        return 2
    return 0 if all(it.is_global for it in addresses) else 1


def same_origin(one: httpx.URL, other: httpx.URL) -> bool:
    """True when scheme, host and port are equal, so that credentials may go along."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def _check_port(url: httpx.URL) -> httpx.URL:
    """Refuse a port that httpx accepts and that makes sockets raise OverflowError."""
    if (url.port or 0) > 65535:
        raise httpx.InvalidURL(f"port {url.port}")
    return url


def resolve_location(origin: httpx.URL, base: httpx.URL, location: str) -> httpx.URL:
    """Resolve a Location or realm against `base`; RegistryError when a registry at `origin` may not send us there.

    A registry must not be able to make this machine talk to hosts that only this machine can see (the metadata
    server, services on loopback), nor to lower HTTPS to HTTP.
    """
    try:
        target = _check_port(base.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise _redirect_error("the registry sent an invalid address", base) from error
    if same_origin(origin, target) and not target.userinfo:
        return target
    if target.userinfo or not target.host or target.scheme not in ("https", "http"):
        raise _redirect_error("the registry sent an address that cannot be used", target)
    if target.scheme == "http" and not is_loopback(target.host):
        raise _redirect_error(f"{origin.host} sends its clients to plain HTTP", target)
    if target.host != origin.host and _internal_level(target.host) > _internal_level(origin.host):
        raise _redirect_error(f"{origin.host} sends its clients to an internal address", target)
    return target


def _redirect_error(what: str, url: httpx.URL) -> RegistryError:
    return RegistryError(what, where=redacted(url), todo=CHECK_REGISTRY)


@contextmanager
def translated_errors(url: httpx.URL) -> Iterator[None]:
    """Raise Transient for httpx's errors, or RegistryError if another try cannot help."""
    try:
        yield
    except httpx.TransportError as error:
        final = is_tls_error(error) or isinstance(error, httpx.UnsupportedProtocol)
        raise (unreachable_error(error, url) if final else Transient(unreachable_error(error, url))) from error
    except (httpx.InvalidURL, httpx.StreamError, httpx.DecodingError) as error:
        raise unreachable_error(error, url) from error


class Transport:
    """A pool of connections that another thread can cut."""

    def __init__(self, root: httpx.URL, *, keep_alive: bool = True) -> None:
        self._root, self._keep_alive = root, keep_alive
        self._clients: dict[str, httpx.Client] = {}
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def send(
        self,
        method: str,
        url: httpx.URL,
        *,
        headers: Mapping[str, str],
        content: bytes | Iterable[bytes] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Send one request and return its answer with the body unread; the caller closes it.

        Raises Transient or RegistryError when there is no answer.
        """
        self.check()
        with self._lock:
            # At the first request of its scheme: plain HTTP needs no certificates.
            client = self._clients.get(url.scheme) or self._new_client(url.scheme)
            self._clients[url.scheme] = client
        request = client.build_request(
            method,
            url,
            headers=headers,
            content=content,
            timeout=httpx.Timeout(connect=CONNECT, read=timeout or ANSWER, write=ANSWER, pool=None),
            extensions={"trace": self._trace},
        )
        with translated_errors(url):
            return client.send(request, stream=True, follow_redirects=False)

    def _new_client(self, scheme: str) -> httpx.Client:
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody
        if scheme == "https":
            try:
                trust = trusted_certificates()
            except OSError as error:
                what, todo = f"the CA bundle cannot be read: {error}", "correct SSL_CERT_FILE"
                raise RegistryError(what, where=os.environ.get("SSL_CERT_FILE", ""), todo=todo) from error
        client = httpx.Client(
            http2=False,
            verify=trust,
            # A proxy's loopback is another machine's.
            trust_env=not is_loopback(self._root.host),
            # Without keep-alive nothing stays open between requests, and the pool need not be closed.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None if self._keep_alive else 0),
            # Blobs and manifests are hashed as sent, so nothing may compress them.
            headers={"User-Agent": "envbuild", "Accept-Encoding": "identity"},
        )
        return enforce_minimum_rate(client)

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep each socket that httpcore opens, as its pool cannot cut a request in progress."""
        if not event.endswith(("connect_tcp.complete", "start_tls.complete")):
            return
        opened = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets.add(opened)
            if self._stopped.is_set():
                _shut_down(opened)

    def check(self) -> None:
        """RegistryError when `stop` was called."""
        if self._stopped.is_set():
            raise RegistryError("stopped")

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until `stop`."""
        self._stopped.wait(seconds)
        self.check()

    def stop(self) -> None:
        """End all requests now, from any thread, including those that wait for an answer."""
        self._stopped.set()
        with self._lock:
            for opened in list(self._sockets):
                _shut_down(opened)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for client in self._clients.values():
                client.close()


def _shut_down(opened: socket.socket) -> None:
    """Wake the threads that read from or write to the socket; closing it would not."""
    with suppress(OSError):
        # Not SSLSocket.shutdown: it drops the TLS state first, and a write in between would go out plain.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


Progress = Callable[[int], None]
"""Gets the number of bytes of a blob that were sent, from 0 again for each try."""


def verified_chunks(
    opener: Opener, descriptor: Descriptor, progress: Progress, check: Callable[[], None]
) -> Iterator[bytes]:
    """Yield a blob's bytes; BuildError before its last chunk when they are not the descriptor's.

    So no registry gets a complete wrong blob. `check` is called before each chunk and may raise to stop.
    """
    sent = 0
    for chunk in read_blob(opener, descriptor, where=str(descriptor.digest)):
        check()
        yield chunk
        sent += len(chunk)
        progress(sent)


class WrongBlobError(RegistryError):
    """A blob with other bytes than its descriptor says."""


OpenAt = Callable[[int], httpx.Response]
"""Requests a blob from this byte on."""


def blob_reader(open_at: OpenAt, descriptor: Descriptor, retry: Retry) -> BinaryIO:
    """Read a blob as a file that resumes after a broken connection, and checks size and digest at its end."""
    # BufferedReader is a BinaryIO in all but name.
    return cast("BinaryIO", io.BufferedReader(_BlobBody(open_at, descriptor, retry), _CHUNK))


class _BlobBody(io.RawIOBase):
    """The bodies of one or, after breaks, several responses as raw input."""

    def __init__(self, open_at: OpenAt, descriptor: Descriptor, retry: Retry) -> None:
        super().__init__()
        self._open_at, self._descriptor = open_at, descriptor
        self._breaks = retry.tries
        """How often the connection may still break."""
        self._hasher, self._size, self._pending = hashlib.sha256(), 0, memoryview(b"")
        self._response = open_at(0)
        self._chunks = self._response.iter_raw()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        if not self._pending:
            self._pending = memoryview(self._verified(self._next()))
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._pending))
        view[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count

    def _next(self) -> bytes:
        while True:
            try:
                with translated_errors(self._response.request.url):
                    return next((piece for piece in self._chunks if piece), b"")
            except Transient as transient:
                self._breaks -= 1
                self._response.close()
                if self._breaks <= 0:
                    raise transient.error from transient
            self._response = self._open_at(self._size)
            if self._size and self._response.status_code != HTTPStatus.PARTIAL_CONTENT:
                raise RegistryError("the registry cannot resume a blob (no range requests)", where=self._where)
            self._chunks = self._response.iter_raw()

    def _verified(self, chunk: bytes) -> bytes:
        self._hasher.update(chunk)
        self._size += len(chunk)
        whole = self._size == self._descriptor.size and self._hasher.hexdigest() == self._descriptor.digest.hex
        if self._size > self._descriptor.size or not (chunk or whole):
            what = f"blob {self._descriptor.digest} has another digest ({self._size} bytes read)"
            todo = "push the image again from another copy, and check the registry's storage"
            raise WrongBlobError(what, where=self._where, todo=todo)
        return chunk

    @property
    def _where(self) -> str:
        return redacted(self._response.request.url)

    def close(self) -> None:
        if hasattr(self, "_response"):  # __init__ may have failed
            self._response.close()
        super().close()
