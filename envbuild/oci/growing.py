"""A blob that somebody writes into a file, and that others read as far as it is there."""

import os
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor

_CHUNK = 1 << 18
_SECONDS = 0.02
"""How long one who has read all that there is waits for more."""


class AbandonedError(Exception):
    """The file will not be the blob that was read so far."""


class GrowingBlob:
    """A layer's file and, from its end on, what it is; leaving the block before it is finished abandons it."""

    def __init__(self, path: Path, key: Digest, label: str, expected: int) -> None:
        self.path, self.key, self.label, self.expected = path, key, label, expected
        self.descriptor: Descriptor | None = None
        """None while it grows, and when it was abandoned."""
        self.diff_id: Digest | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def finish(self, descriptor: Descriptor, diff_id: Digest) -> None:
        """Say that all bytes are in the file, unless it was abandoned before."""
        if not self._ended.is_set():
            self.descriptor, self.diff_id = descriptor, diff_id
            self._ended.set()

    def abandon(self) -> None:
        """Say that nothing more will come, unless it is finished."""
        self._ended.set()

    def pieces(self, file: FileIO, check: Callable[[], None]) -> Iterator[bytes]:
        """Yield the bytes of the file, opened before it was finished, from the first on as they come.

        `check` is called again and again, and may raise to stop; AbandonedError where they will not be the blob's.
        """
        position, ended = 0, False
        while not ended:
            ended = self._ended.wait(_SECONDS)
            while piece := os.pread(file.fileno(), _CHUNK, position):
                check()
                if self._ended.is_set():
                    self.finished()
                position += len(piece)
                yield piece
            check()
        if self.finished().size != position:
            raise AbandonedError(self.label)

    def finished(self) -> Descriptor:
        """What it is, once all of it was read; AbandonedError where it is nothing."""
        if self.descriptor is None:
            raise AbandonedError(self.label)
        return self.descriptor
