"""Connections: how many are open, how long a client may take to send a request, and how it may cut up a body."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.settings import Settings

MOST_CHUNKS = 10_000
"""Chunks of one body. Each costs as much as a large one, so that a body of chunks of one byte would cost seconds."""


SPARE = 16
"""Connections that requests for the model leave to others; a quarter of them where only a few may be open."""


def connection_limit(wanted: int) -> int:
    """Return how many connections may be open: half of the files that this process may have, at most."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files // 2))


def leave_room(settings: Settings) -> Settings:
    """Let fewer requests wait than connections may be open, so that there is one left for health.

    A connection is never closed while its request waits or runs.
    """
    limit = connection_limit(settings.most_connections)
    most = max(1, limit - min(SPARE, limit // 4))
    return replace(settings, most_waiting=min(settings.most_waiting, most))


def protocol(settings: Settings) -> Callable[..., Connection]:
    """Return what uvicorn makes each connection with."""
    limit = connection_limit(settings.most_connections)
    return partial(Connection, limit=limit, seconds=settings.request_seconds)


class Connection(H11Protocol):
    """A connection of which at any moment either the client or this server is expected to do something.

    uvicorn has no deadline for requests. This class keeps the time since the client has been expected to send the
    rest of its request, or to take the response. It is cut off when that takes too long. When too many connections
    are open, the one that has kept the server waiting for the longest time is cut off, so that a new one finds room.
    """

    def __init__(self, *args: Any, limit: int, seconds: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = CountingConnection(h11.SERVER, self.config.h11_max_incomplete_event_size or 65536)
        self.limit, self.seconds = limit, seconds
        self.since = 0.0
        """When the client was first expected to act, or when the connection became idle."""
        self.idle = False
        """Whether the last response was taken and no request has begun."""

    @property
    def busy(self) -> bool:
        """Whether a whole request is here, and its response is not finished for a reason other than the client."""
        cycle = self.cycle
        return bool(cycle and not cycle.more_body and not cycle.response_complete and not self.flow.write_paused)

    def connection_made(self, transport: Any) -> None:
        """Take a connection; close another one where there are too many."""
        super().connection_made(transport)
        self._expect_client()
        if len(self.connections) > self.limit:
            others = [it for it in self.connections if it is not self and not it.busy]
            # One that has sent part of a request goes before one that waits for its next request.
            min(others, key=lambda it: (it.idle, it.since), default=self).cut_off(b"503 Service Unavailable")

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first ones of a request start its time."""
        if self.idle:
            self._expect_client()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request, or first for the client to take what the transport could not send yet."""
        self._expect_client()
        self.idle = not self.flow.write_paused
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Go on: the client has taken what was sent."""
        super().resume_writing()
        self._expect_client()
        self.idle = bool(self.cycle and self.cycle.response_complete)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; only close the connection where a response was sent before."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def check_time(self, now: float) -> None:
        """Cut off a client that takes too long."""
        if not self.idle and not self.busy and now - self.since > self.seconds:
            self.cut_off(b"408 Request Timeout")

    def cut_off(self, status: bytes) -> None:
        """Close the connection at once, with a status where the client still waits for one."""
        self.connections.discard(self)
        answered = self.cycle is not None and self.cycle.response_started and self.cycle.more_body
        if not self.idle and not self.flow.write_paused and not answered:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.abort()

    def _expect_client(self) -> None:
        self.idle, self.since = False, time.monotonic()


class CountingConnection(h11.Connection):
    """h11's reader of requests, which refuses a body of very many chunks."""

    chunks = 0

    def next_event(self) -> Any:
        """Return what was read next; RemoteProtocolError for what is not HTTP, or has too many chunks."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            if self.chunks > MOST_CHUNKS:
                raise h11.RemoteProtocolError(f"more than {MOST_CHUNKS} chunks in one body")
        return event
