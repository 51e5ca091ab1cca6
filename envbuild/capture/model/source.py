"""One file of a model, read in pieces: whatever it claims, only so many bytes of it are ever read."""

from __future__ import annotations

import re
from typing import Callable, Iterator, Optional, Pattern

from envbuild.capture.gcs import Unread
from envbuild.capture.redact import scrub_line

BUDGET = 16 << 20
"""Bytes that are read of one file, in all."""
LONGEST_PIECE = 2 << 20
"""Bytes that are read of it at once."""
LONGEST_TEXT = 200
"""Characters that are kept of what a file says."""


class Source:
    """A file of `size` bytes that `fetch(start, length)` reads; neighbouring reads share fetches of `chunk` bytes."""

    def __init__(self, name: str, size: int, fetch: Callable[[int, int], bytes], chunk: int) -> None:
        self.name, self.size, self.chunk, self.budget = name, size, chunk, BUDGET
        self._fetch, self._start, self._data = fetch, 0, b""

    def at(self, start: int, length: int) -> bytes:
        """Return exactly these bytes; Unread where the file ends before, or where that is more than is ever read."""
        if start < 0 or length < 0 or start + length > self.size:
            raise Unread("it is cut short or damaged: it points beyond its end")
        if length > LONGEST_PIECE:
            raise Unread("a part of %d bytes is longer than what is read at once" % length)
        if start < self._start or start + length > self._start + len(self._data):
            self._fill(start, max(length, self.chunk))
        data = self._data[start - self._start :][:length]
        if len(data) < length:
            raise Unread("it became shorter while it was read")
        return data

    def head(self, length: int) -> bytes:
        """Return its first bytes, fewer where it has no more."""
        return self.at(0, min(length, self.size))

    def windows(self, start: int, end: int, backwards: bool = False) -> Iterator[bytes]:
        """Yield a range piece by piece; each overlaps its neighbours by LONGEST_TEXT bytes."""
        steps = range(start, end, self.chunk)
        for offset in reversed(steps) if backwards else steps:
            yield self.at(offset, min(self.chunk + LONGEST_TEXT, end - offset))

    def _fill(self, start: int, length: int) -> None:
        # A fetch costs something however little it brings.
        self.budget -= max(length, self.chunk)
        if self.budget < 0:
            raise Unread("what it says lies behind more than %d MiB" % (BUDGET >> 20))
        self._start, self._data = start, self._fetch(start, min(length, self.size - start))


def search(pieces: Iterator[bytes], pattern: Pattern[bytes]) -> Optional[str]:
    """Return the first group of the first match; None where nothing matches."""
    for piece in pieces:
        found = pattern.search(piece)
        if found:
            return said(found.group(1))
    return None


def said(value: object) -> Optional[str]:
    """Return what a file says as one short line without secrets; None if it says nothing."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    # A lone surrogate, as JSON can escape one, is no text that could be written.
    text = text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode("utf-8")
    return re.sub(r"\s+", " ", scrub_line(text)).strip() or None
