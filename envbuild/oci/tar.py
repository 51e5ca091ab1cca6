"""Tar archives: headers that are the same everywhere, and a reader with limits (POSIX.1-2017, pax and ustar).

Python's `tarfile` writes different PAX headers in different releases, so headers are written here. Mode, owner and time
never come from the machine: owners are 0:0 by default, and the time is the first one that zip tools accept. Of archives
from others `tarfile` reads a long name, a PAX record or a sparse map whole into memory, whatever its size, so that the
reader limits them.
"""

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, Literal

BLOCK = 512
MTIME = 315532800
"""1980-01-01T00:00:00Z: earlier times are refused by Python's `zipfile` when someone packs an installed tree."""
END = bytes(2 * BLOCK)
"""The two zero blocks that end an archive."""
_TIME = b"%011o\0" % MTIME
_USTAR_SIZE_LIMIT = 8 << 30
HEADER_LIMIT = 1 << 20
"""Bytes of an entry's header, with its long names and PAX records."""
ENTRY_LIMIT = 2_000_000
"""Entries of one archive; the largest images have some hundred thousand in all their layers."""
_GLOBAL_LIMIT = 1000
"""Global PAX records, which `tarfile` copies and applies again for each entry."""
_BUFFER = 1 << 15
"""Bytes that `tarfile` buffers of a stream: it copies them at each header."""

Kind = Literal["file", "directory", "symlink"]
_TYPEFLAG: dict[Kind, bytes] = {"file": b"0", "symlink": b"2", "directory": b"5"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One archive member; its content, if any, follows the header."""

    path: str
    """Relative, without leading or trailing slash: `opt/env/bin/pip`."""
    kind: Kind
    mode: int
    size: int = 0
    """Bytes of content; 0 for all but files."""
    target: str = ""
    """Where a symlink points."""
    owner: tuple[int, int] = (0, 0)
    """User and group, by number."""


def padding(size: int) -> int:
    """Return the number of zero bytes that follow `size` bytes of content."""
    return -size % BLOCK


def header(entry: Entry) -> bytes:
    """Encode the header of a member: one block, with a PAX record before it if ustar is not sufficient."""
    name = entry.path.encode() + (b"/" if entry.kind == "directory" else b"")
    target = entry.target.encode()
    split = _split(name)
    records: list[bytes] = []
    if split is None:
        records.append(_pax_record(b"path", name))
    if len(target) > 100 or not target.isascii():
        records.append(_pax_record(b"linkpath", target))
    if entry.size >= _USTAR_SIZE_LIMIT:
        records.append(_pax_record(b"size", str(entry.size).encode()))
    prefix, short = split or (b"", _ascii(name)[:100])
    size = 0 if entry.size >= _USTAR_SIZE_LIMIT else entry.size
    block = _block(prefix, short, entry.mode, size, _TYPEFLAG[entry.kind], _ascii(target)[:100], entry.owner)
    if not records:
        return block
    pax = b"".join(records)
    return _block(b"", b"PaxHeaders/entry", 0o644, len(pax), b"x", b"") + pax + bytes(padding(len(pax))) + block


def pieces(entries: Iterable[tuple[Entry, Iterable[bytes | memoryview]]]) -> Iterator[tuple[bool, bytes | memoryview]]:
    """Yield an archive: True with the padding of the entry before and a header, or the end; False with content."""
    size = 0
    for entry, content in entries:
        yield True, bytes(padding(size)) + header(entry)
        yield from ((False, piece) for piece in content)
        size = entry.size
    yield True, bytes(padding(size)) + END


def _ascii(text: bytes) -> bytes:
    return text if text.isascii() else bytes(byte if byte < 128 else ord("_") for byte in text)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split into ustar's prefix (155 bytes) and name (100 bytes); None if it does not fit or is not ASCII."""
    if not name.isascii():
        return None
    if len(name) <= 100:
        return b"", name
    slash = name.find(b"/", len(name) - 101)
    if 0 < slash <= 155 and 0 < len(name) - slash - 1 <= 100:
        return name[:slash], name[slash + 1 :]
    return None


def _pax_record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    while length != len(body) + len(str(length)):
        length += 1
    return str(length).encode() + body


def _block(
    prefix: bytes, name: bytes, mode: int, size: int, typeflag: bytes, target: bytes, owner: tuple[int, int] = (0, 0)
) -> bytes:
    who, kind, known = _fields(mode, typeflag, target, owner)
    length = b"%011o\0" % size
    checksum = known + sum(name) + sum(length) + sum(prefix)
    return b"".join(
        (name.ljust(100, b"\0"), who, length, _TIME, b"%06o\0 " % checksum, kind, prefix.ljust(155, b"\0"), bytes(12))
    )


@lru_cache(maxsize=1024)
def _fields(mode: int, typeflag: bytes, target: bytes, owner: tuple[int, int]) -> tuple[bytes, bytes, int]:
    """Return the parts that many headers share: mode and owner, the fields after the checksum, and their sum."""
    who = b"".join(b"%07o\0" % number for number in (mode, *owner))
    kind = b"".join(
        (
            typeflag,
            target.ljust(100, b"\0"),
            b"ustar\x0000",
            bytes(64),  # user and group names: numbers decide
            b"0000000\0" * 2,  # device numbers
        )
    )
    return who, kind, sum(who) + sum(kind) + sum(_TIME) + 8 * ord(" ")


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
