"""A file of a wheel that can be read anywhere, though it is a deflate stream: what lies before is inflated again."""

from collections.abc import Iterator

from envbuild.oci.deflate import DamagedStreamError, inflate
from envbuild.wheel.archive import Member, WheelArchive

_HEAD = 1 << 20
"""Bytes of the begin that are kept: most libraries have their names there and their dynamic section at the end."""
_KEPT = 256 << 10
"""Bytes before the newest piece that are kept, as names lie close together."""


class MemberReader:
    """Reads a member in bounded memory; fastest in rising order."""

    def __init__(self, archive: WheelArchive, member: Member) -> None:
        self._archive, self._member = archive, member
        self._head = b""
        self._pieces: Iterator[bytes] = iter(())
        self._window, self._start = b"", member.size + 1

    def read_at(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`, fewer only at the end; WheelError where the stream is damaged."""
        size = max(0, min(size, self._member.size - offset))
        if not size or not self._member.deflated:
            return bytes(self._archive.data(self._member)[offset : offset + size])
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        try:
            return self._inflated(offset, size)
        except DamagedStreamError as error:
            raise self._archive.refuse(f"{self._member.name} {error}") from error

    def _inflated(self, offset: int, size: int) -> bytes:
        if offset < self._start:
            self._pieces = (piece for _, piece in inflate(self._archive.data(self._member)))
            self._window, self._start = b"", 0
        while self._start + len(self._window) < offset + size:
            self._next()
        return self._window[offset - self._start : offset - self._start + size]

    def _next(self) -> None:
        piece, end = next(self._pieces, None), self._start + len(self._window)
        if piece is None:
            raise DamagedStreamError("ends before the archive says")
        if end == len(self._head) < _HEAD:
            self._head += piece
        self._window = self._window[-_KEPT:] + piece
        self._start = end + len(piece) - len(self._window)
