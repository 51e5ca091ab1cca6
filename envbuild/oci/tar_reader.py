"""Reading tar archives that others wrote, in bounded memory and time.

Python's `tarfile` reads a long name, a PAX record or a sparse map whole into memory, whatever size it claims.
"""

import tarfile
from typing import IO, Any, Literal

HEADER_LIMIT = 1 << 20
"""Bytes of an entry's header, with its long names and PAX records."""
ENTRY_LIMIT = 2_000_000
"""Entries of one archive; the largest images have some hundred thousand in all their layers."""
_GLOBAL_LIMIT = 1000
"""Global PAX records, which `tarfile` copies and applies again for each entry."""

_BUFFER = 1 << 15
"""Bytes that `tarfile` buffers of a stream: it copies the rest of its buffer at each header."""


class TarReader(tarfile.TarFile):
    """A tar archive whose headers and number of entries are limited; tarfile.ReadError beyond that."""

    def __init__(self, name: str | None, mode: Literal["r"], fileobj: IO[bytes], **options: Any) -> None:
        self._file, self._entries = _HeaderFile(fileobj), -1  # the first is read twice
        super().__init__(name, mode, self._file, **options)  # type: ignore[arg-type]  # it needs no more of a file

    def next(self) -> tarfile.TarInfo | None:
        """Read the next header; None at the end."""
        self._file.allowance = HEADER_LIMIT
        try:
            member = super().next()
        except RecursionError as error:
            raise tarfile.ReadError("an entry has too many headers") from error
        finally:
            self._file.allowance = None
        if member is None:
            return None
        self._entries += 1
        if self._entries > ENTRY_LIMIT:
            raise tarfile.ReadError(f"the archive has more than {ENTRY_LIMIT} entries")
        if len(self.pax_headers) > _GLOBAL_LIMIT:
            raise tarfile.ReadError(f"the archive has more than {_GLOBAL_LIMIT} global PAX records")
        return member


class _HeaderFile:
    """A file of which only `allowance` more bytes may be read, unless that is None; seeking is free."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.allowance: int | None = None
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int = -1) -> bytes:
        if self.allowance is not None:
            self.allowance -= size
            if self.allowance < 0:
                raise tarfile.ReadError(f"the header of an entry has more than {HEADER_LIMIT} bytes")
        return self._file.read(size)


def open_tar(file: IO[bytes], *, stream: bool = False) -> TarReader:
    """Open an archive that is not compressed; as a `stream` it is read once, from its beginning to its end."""
    return TarReader.open(fileobj=file, mode="r|" if stream else "r:", bufsize=_BUFFER)
