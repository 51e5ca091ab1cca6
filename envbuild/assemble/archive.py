"""A wheel as a zip archive that is not trusted (PKWARE APPNOTE; binary distribution format specification).

The central directory says where each entry's own compressed bytes lie. Those bytes are used as they are, so everything
that could make two readers see two different files is refused: names that escape or repeat, links, local headers that
disagree with the directory, overlapping entries, encryption and methods other than stored and deflate.
"""

import mmap
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from envbuild.errors import WheelError

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_ZIP64_EXTRA = 1
_FULL = 0xFFFFFFFF
_UTF8, _DESCRIPTOR, _ENCRYPTED = 0x800, 0x8, 0x1
_LIMIT = 64 << 30
"""More than any real wheel unpacks to; deflate itself cannot expand more than 1032 times."""
_RELEASED = 64 << 10
"""Bytes: less is not worth a system call."""
_SMALL = 64 << 20
"""Metadata that is read into memory may be this large."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the archive."""

    name: str
    executable: bool
    crc32: int
    size: int
    """Bytes, uncompressed."""
    deflated: bool
    """Whether `data` is a deflate stream; stored otherwise."""
    offset: int
    """Where the compressed bytes start in the archive."""
    length: int
    """How many there are."""


class WheelArchive:
    """An open wheel file, memory-mapped."""

    def __init__(self, path: Path, filename: str) -> None:
        self.filename = filename
        self._file = path.open("rb")
        try:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self.members = _read_members(path, self._map, filename)
        except (ValueError, OSError) as error:
            self._file.close()
            raise self.refuse(f"is not a readable zip archive: {error}") from error
        except BaseException:
            self._file.close()
            raise
        self._by_name = {member.name: member for member in self.members}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()  # the map goes with its last view

    def refuse(self, why: str) -> WheelError:
        """Make the error that refuses this wheel."""
        return refusal(self.filename, why)

    def data(self, member: Member) -> memoryview:
        """Return the member's compressed bytes, without copying them."""
        return memoryview(self._map)[member.offset : member.offset + member.length]

    def release(self, member: Member, done: int) -> None:
        """Give back the memory of the first `done` bytes of a member's data; read again, they come from the file."""
        first = member.offset // mmap.PAGESIZE * mmap.PAGESIZE
        if done >= _RELEASED:
            self._map.madvise(mmap.MADV_DONTNEED, first, member.offset + done - first)

    def find(self, name: str) -> Member | None:
        """Return the member of this name."""
        return self._by_name.get(name)

    def read(self, member: Member) -> bytes:
        """Return the member's content, checked; for small files only."""
        if member.size > _SMALL:
            raise self.refuse(f"{member.name} has {member.size} bytes, too many for a metadata file or script")
        data = bytes(self.data(member))
        if member.deflated:
            inflater = zlib.decompressobj(-15)
            try:
                data = inflater.decompress(data, member.size + 1)
            except zlib.error as error:
                raise self.refuse(f"{member.name} is damaged: {error}") from error
            if not inflater.eof or inflater.unused_data or inflater.unconsumed_tail:
                raise self.refuse(f"{member.name} does not end where the archive says")
        if len(data) != member.size or zlib.crc32(data) != member.crc32:
            raise self.refuse(f"{member.name} has another size or CRC than the archive says")
        return data


def refusal(filename: str, why: str) -> WheelError:
    """Make the error that refuses a wheel."""
    todo = "use another build of this release, or report the broken wheel to its project"
    return WheelError(f"wheel refused: {why}", where=filename, todo=todo)


def _read_members(path: Path, data: mmap.mmap, filename: str) -> tuple[Member, ...]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, OverflowError, struct.error) as error:
        raise refusal(filename, f"is not a readable zip archive: {error}") from error
    members = tuple(_member(info, data, filename) for info in infos if _checked_name(info, filename))
    _check_together(members, filename)
    return members


def _checked_name(info: zipfile.ZipInfo, filename: str) -> bool:
    """Refuse names that escape; False for directories, which carry nothing."""
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or ":" in parts[0] or not all(char.isprintable() for char in name):
        raise refusal(filename, f"path {name[:200]!r} is absolute or has forbidden characters")
    if any(part in ("", ".", "..") for part in parts):
        raise refusal(filename, f"path {name[:200]!r} leaves its folder")
    if any(part.startswith(".wh.") for part in parts):
        raise refusal(filename, f"path {name[:200]!r} means a deletion in an image layer (OCI whiteout)")
    return not name.endswith("/")


def _member(info: zipfile.ZipInfo, data: mmap.mmap, filename: str) -> Member:
    name, mode = info.orig_filename, info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFREG):
        raise refusal(filename, f"{name} is a link or device, not a file")
    if info.flag_bits & _ENCRYPTED:
        raise refusal(filename, f"{name} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise refusal(
            filename, f"{name} uses compression method {info.compress_type}; only stored and deflate are allowed"
        )
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and info.compress_size != info.file_size:
        raise refusal(filename, f"{name} is stored, but its two sizes differ")
    offset = _check_local_header(info, data, filename)
    executable = kind == stat.S_IFREG and bool(mode & 0o111)
    return Member(name, executable, info.CRC, info.file_size, deflated, offset, info.compress_size)


def _check_local_header(info: zipfile.ZipInfo, data: mmap.mmap, filename: str) -> int:
    """Compare an entry's local header with the directory and return where its data starts."""
    name, start = info.orig_filename, info.header_offset
    raw = data[start : start + _LOCAL_HEADER.size]
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != _LOCAL_SIGNATURE:
        raise refusal(filename, f"{name} has no local header where the directory points")
    fields: tuple[int, ...] = _LOCAL_HEADER.unpack(raw)[2:]
    flags, method, _, _, crc32, packed, size, name_length, extra_length = fields
    names_at = start + _LOCAL_HEADER.size
    encoding = "utf-8" if flags & _UTF8 else "cp437"
    local_name = data[names_at : names_at + name_length].decode(encoding, "replace")
    extra = data[names_at + name_length : names_at + name_length + extra_length]
    if local_name != name or method != info.compress_type or (flags ^ info.flag_bits) & ~_UTF8 & 0x2041:
        raise refusal(filename, f"{name}: local header and directory disagree on name or method")
    if _FULL in (packed, size):
        packed, size = _zip64_sizes(extra, packed, size)
    streamed = bool(flags & _DESCRIPTOR) and (crc32, packed, size) == (0, 0, 0)
    if not streamed and (crc32, packed, size) != (info.CRC, info.compress_size, info.file_size):
        raise refusal(filename, f"{name}: local header and directory disagree on size or CRC")
    return names_at + name_length + extra_length


def _zip64_sizes(extra: bytes, packed: int, size: int) -> tuple[int, int]:
    """Read the two sizes of a ZIP64 extra field (APPNOTE 4.5.3); unchanged where there is none."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == _ZIP64_EXTRA and length >= 16 and position + 20 <= len(extra):
            size64, packed64 = struct.unpack_from("<QQ", extra, position + 4)
            return packed64, size64
        position += 4 + length
    return packed, size


def _check_together(members: tuple[Member, ...], filename: str) -> None:
    names: set[str] = set()
    for member in members:
        if member.name in names:
            raise refusal(filename, f"{member.name} is in the archive twice")
        names.add(member.name)
    folders = {parent for name in names for parent in _parents(name)}
    if both := sorted(names & folders):
        raise refusal(filename, f"{both[0]} is a file and a folder")
    position = 0
    for member in sorted(members, key=lambda member: member.offset):
        if member.offset < position:
            raise refusal(filename, f"{member.name} overlaps another entry")
        position = member.offset + member.length
    if sum(member.size for member in members) > _LIMIT:
        raise refusal(filename, f"would unpack to more than {_LIMIT} bytes")


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: index + 1]) for index in range(len(parts))]


def check_locked(path: Path, filename: str, size: int) -> None:
    """Refuse a file that is not as long as the lock says, before anything in it is read."""
    if (found := os.stat(path).st_size) != size:  # noqa: PTH116 - one call
        raise refusal(filename, f"has {found} bytes where the lock says {size}")
