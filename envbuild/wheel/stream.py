"""A stream of bytes that is hashed, and written where it is wanted, in a thread of its own."""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, Self

from envbuild.oci.digest import Digest

_BUFFER = 1 << 20
"""Bytes: smaller pieces are collected, so that the thread sees large ones and leaves the others alone."""
_BEHIND = 2
"""Pieces that wait for the thread at most."""


class HashedStream:
    """Takes pieces from one thread; an error of writing comes out of a later call, or at the end."""

    def __init__(self, sink: BinaryIO | None = None) -> None:
        self._sink, self._sha256, self._buffer = sink, hashlib.sha256(), bytearray()
        self._thread, self._waiting = ThreadPoolExecutor(1), deque[Future[None]]()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def write(self, data: bytes | memoryview) -> None:
        """Take a piece, which must not change any more."""
        self.size += len(data)
        if len(data) < _BUFFER:
            self._buffer += data
            if len(self._buffer) >= _BUFFER:
                self._flush()
        else:
            self._flush()
            self._pass(data)

    def digest(self) -> Digest:
        """Wait for the thread; the digest of everything so far."""
        self._flush()
        while self._waiting:
            self._waiting.popleft().result()
        return Digest(self._sha256.hexdigest())

    def _flush(self) -> None:
        if self._buffer:
            self._pass(self._buffer)
            self._buffer = bytearray()

    def _pass(self, data: bytes | bytearray | memoryview) -> None:
        if len(self._waiting) >= _BEHIND:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._take, data))

    def _take(self, data: bytes | bytearray | memoryview) -> None:
        self._sha256.update(data)
        if self._sink is not None:
            self._sink.write(data)
