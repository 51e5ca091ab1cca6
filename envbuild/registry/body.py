"""Blob bytes on their way out and in, hashed as they pass."""

import hashlib
import io
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, cast

import httpx

from envbuild.errors import RegistryError
from envbuild.oci.blobs import read_blob
from envbuild.oci.image import Descriptor, Opener
from envbuild.registry.faults import redacted
from envbuild.registry.retry import Retry, Transient
from envbuild.registry.transport import explained

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 1 << 20

Progress = Callable[[int], None]
"""Is told how many bytes of a blob have gone out, counted from 0 again for each try."""


def outgoing(opener: Opener, descriptor: Descriptor, progress: Progress, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield a blob's bytes; BuildError before its last chunk when they are not the descriptor's.

    So no registry ever gets a whole wrong blob. `check` is called before each chunk and may raise to stop.
    """
    sent = 0
    for chunk in read_blob(opener, descriptor, where=str(descriptor.digest)):
        check()
        yield chunk
        sent += len(chunk)
        progress(sent)


Opened = Callable[[int], httpx.Response]
"""Asks for a blob from this byte on."""


def blob_reader(opened: Opened, descriptor: Descriptor, retry: Retry) -> BinaryIO:
    """Read a blob as a file that goes on after a break, and that checks size and digest at its end."""
    # BufferedReader is a BinaryIO in all but name.
    return cast("BinaryIO", io.BufferedReader(_Body(opened, descriptor, retry), _CHUNK))


class _Body(io.RawIOBase):
    """The bodies of one or, after breaks, several responses as raw input."""

    def __init__(self, opened: Opened, descriptor: Descriptor, retry: Retry) -> None:
        super().__init__()
        self._opened, self._descriptor = opened, descriptor
        self._breaks = retry.tries
        """How often the connection may still break."""
        self._hasher, self._size, self._rest = hashlib.sha256(), 0, memoryview(b"")
        self._response = opened(0)
        self._chunks = self._response.iter_raw()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        if not self._rest:
            self._rest = memoryview(self._checked(self._next()))
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _next(self) -> bytes:
        while True:
            try:
                with explained(self._response.request.url):
                    return next((piece for piece in self._chunks if piece), b"")
            except Transient as transient:
                self._breaks -= 1
                self._response.close()
                if self._breaks <= 0:
                    raise transient.error from transient
            self._response = self._opened(self._size)
            if self._size and self._response.status_code != HTTPStatus.PARTIAL_CONTENT:
                raise RegistryError("the registry cannot go on in the middle of a blob", where=self._where)
            self._chunks = self._response.iter_raw()

    def _checked(self, chunk: bytes) -> bytes:
        self._hasher.update(chunk)
        self._size += len(chunk)
        whole = self._size == self._descriptor.size and self._hasher.hexdigest() == self._descriptor.digest.hex
        if self._size > self._descriptor.size or not (chunk or whole):
            what = f"blob {self._descriptor.digest} is not what its digest says ({self._size} bytes read)"
            todo = "push the image again from where it still is, and see whether the registry's storage is damaged"
            raise RegistryError(what, where=self._where, todo=todo)
        return chunk

    @property
    def _where(self) -> str:
        return redacted(self._response.request.url)

    def close(self) -> None:
        # Also called for an object whose __init__ failed.
        if hasattr(self, "_response"):
            self._response.close()
        super().close()
