"""What is used of a client to ask indexes; the client itself is imported when one is asked, as few warm locks do."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from envbuild.lock.settings import IndexSettings

if TYPE_CHECKING:
    import httpx

Given = TypeVar("Given")
Result = TypeVar("Result")
Pause = Callable[[float], object]

_WORKERS = 4
"""Each has a connection of its own, and so a name lookup, which costs seconds where one is lost."""


class Web(Protocol):
    """What of a client is used to ask indexes."""

    def head(self, url: str) -> "httpx.Response": ...
    def stream(
        self, method: str, url: str, *, headers: dict[str, str] | None = None
    ) -> "AbstractContextManager[httpx.Response]": ...


class LateClient:
    """A client that is made at its first request: where all is known already, nobody waits for certificates."""

    def __init__(self, settings: IndexSettings) -> None:
        self._settings, self._made, self._lock = settings, ExitStack(), threading.Lock()
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def head(self, url: str) -> "httpx.Response":
        """As `httpx.Client.head`."""
        return self._ready().head(url)

    def stream(
        self, method: str, url: str, *, headers: dict[str, str] | None = None
    ) -> "AbstractContextManager[httpx.Response]":
        """As `httpx.Client.stream`."""
        return self._ready().stream(method, url, headers=headers)

    def _ready(self) -> "httpx.Client":
        with self._lock:
            if self._client is None:
                self._client = self._made.enter_context(make_client(self._settings))
            return self._client


def make_client(settings: IndexSettings) -> "httpx.Client":
    """A client with the certificates, proxies and credentials that pip and uv would use."""
    from envbuild.lock import client  # noqa: PLC0415 - slow, and only needed where something is asked

    return client.make_client(settings)


def retried(action: Callable[[], Result], url: str, pause: Pause = time.sleep) -> Result:
    """Run `action`; after a fault that may pass, run it again, three times in all; then LockError."""
    from envbuild.lock import client  # noqa: PLC0415 - slow, and only needed where something is asked

    return client.retried(action, url, pause)


def in_parallel(function: Callable[[Given], Result], values: Iterable[Given]) -> list[Result]:
    """Apply a function in a few threads; the first error ends it, and what has not begun is dropped."""
    pool = ThreadPoolExecutor(_WORKERS)
    try:
        return list(pool.map(function, values))
    finally:
        pool.shutdown(cancel_futures=True)
