"""HTTP clients: trusted certificates, a lowest transfer rate, and limits for what a server sends.

httpx's timeouts count from the last byte, so a server that sends one byte now and then holds its client for ever.
"""

import ipaddress
import itertools
import math
import os
import ssl
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

import certifi
import httpcore
import httpx

from envbuild import report

LOWEST_RATE = 1000
"""Bytes a second. Below it a transfer ends, whatever its size; above it one may take as long as it needs."""
RATE_SECONDS = 30.0
"""Seconds of waiting over which the rate is measured."""
DOCUMENT_SECONDS = 300.0
"""Seconds in which a manifest, a list of tags or a page of an index must come."""
_PIECE = 1 << 16
_Options = Iterable[httpcore.SOCKET_OPTION] | None


def trusted_certificates(bundle: str | None = None) -> ssl.SSLContext:
    """Trust this machine's authorities and those of SSL_CERT_FILE, else of `bundle`, else certifi's.

    OpenSSL reads SSL_CERT_FILE and SSL_CERT_DIR itself. OSError for a bundle that cannot be read.
    """
    return _context(os.environ.get("SSL_CERT_FILE") or bundle or certifi.where(), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=8)
def _context(bundle: str, _folder: str | None) -> ssl.SSLContext:
    """Read the bundle once for the whole process, as that takes 40 ms."""
    context = ssl.create_default_context()
    context.load_verify_locations(bundle)
    return context


def enforce_minimum_rate(client: httpx.Client) -> httpx.Client:
    """End all connections of a client that are slower than LOWEST_RATE with httpx.ReadError or WriteTimeout.

    A line reports the request that a silent server does not answer.
    """
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - httpx has no public way
        if isinstance(transport, httpx.HTTPTransport):
            pool = transport._pool  # noqa: SLF001
            pool._network_backend = _Backend(pool._network_backend)  # noqa: SLF001
    return client


def read_document(chunks: Iterator[bytes], limit: int) -> bytes:
    """Read at most `limit` bytes of a body, and one more if there are more.

    httpx.ReadTimeout when they take longer than DOCUMENT_SECONDS.
    """
    data, end = bytearray(), time.monotonic() + DOCUMENT_SECONDS
    for chunk in chunks:
        data += chunk
        if len(data) > limit:
            break
        if time.monotonic() > end:
            raise httpx.ReadTimeout(f"the answer was not whole after {DOCUMENT_SECONDS:.0f} s")
    return bytes(data[: limit + 1])


def is_loopback(host: str) -> bool:
    """True for localhost, 127.0.0.0/8 and ::1; `host` has no port and no brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Backend(httpcore.NetworkBackend):
    """Opens connections that measure their rate."""

    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner
        self._last = dict[str, float]()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _Options = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options), host, self._last)


class _Stream(httpcore.NetworkStream):
    """A connection with a lowest rate. Only waiting counts, and not before the first byte of an answer.

    The caller's timeout limits that: a registry moves a large blob before it answers.
    """

    def __init__(self, inner: httpcore.NetworkStream, host: str, last: dict[str, float]) -> None:
        self._last = last
        """When a line about a host was last reported, for all connections of a client."""
        self._inner, self._host, self._request, self._asking = inner, host, "", False
        self._bytes, self._seconds = 0, 0.0
        self.close, self.get_extra_info = inner.close, inner.get_extra_info  # type: ignore[method-assign]

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(inner, server_hostname or self._host, self._last)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        started = time.monotonic()
        data = self._read(max_bytes, started, timeout)
        if not self._asking:
            self._measure(len(data), started, httpcore.ReadError)
        self._asking = False
        return data

    def _read(self, max_bytes: int, started: float, timeout: float | None) -> bytes:
        end = math.inf if timeout is None else timeout
        # Lines come after 10, 30, 60, 120 and each 120 more seconds of silence.
        lines = (number * report.SILENCE for number in itertools.chain((1, 3, 6), itertools.count(12, 12)))
        while True:
            line = next(lines)
            left = min(line, end) - (time.monotonic() - started)
            try:
                return self._inner.read(max_bytes, max(left, 0.001))
            except httpcore.ReadTimeout:
                if line >= end:
                    raise
                now = time.monotonic()
                if now - self._last.get(self._host, -math.inf) >= report.SILENCE:
                    self._last[self._host] = now
                    report.announce(f"waiting for {self._host}: {self._request} ({now - started:.0f} s)")

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not self._asking:
            self._asking, self._bytes, self._seconds = True, 0, 0.0
            line = buffer[:300].split(b"\r\n")[0].split(b"?")[0].decode("ascii", "replace")
            self._request = line.removesuffix(" HTTP/1.1")
        whole = memoryview(buffer)
        for place in range(0, len(whole), _PIECE):
            started, piece = time.monotonic(), whole[place : place + _PIECE]
            self._inner.write(piece, timeout)  # type: ignore[arg-type]  # sockets take any buffer
            # httpx ignores a WriteError, as an answer may be there.
            self._measure(len(piece), started, httpcore.WriteTimeout)

    def _measure(self, count: int, started: float, error: type[Exception]) -> None:
        """Count bytes and the time that they took; raise `error` where that is too slow."""
        self._bytes, self._seconds = self._bytes + count, self._seconds + time.monotonic() - started
        if self._seconds < RATE_SECONDS:
            return
        if self._bytes < LOWEST_RATE * self._seconds:
            raise error(f"{self._bytes} bytes in {self._seconds:.0f} s is slower than {LOWEST_RATE} bytes a second")
        self._bytes, self._seconds = 0, 0.0
