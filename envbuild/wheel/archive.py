"""A wheel as a zip archive that is not trusted (PKWARE APPNOTE; binary distribution format specification).

The central directory gives the place of each entry's compressed bytes, which are used unchanged. So everything that
could make two readers see different files is refused: names that escape or repeat, links, local headers that differ
from the directory, bytes of no entry or of two, encryption, methods other than stored and deflate. Some readers follow
the directory, others go from entry to entry; some use the first end that they find, others the last. They see the same
files only if every byte belongs to exactly one thing. Names that differ in case or Unicode normal form are different.
"""

import errno
import mmap
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from envbuild.errors import WheelError
from envbuild.oci.deflate import expansion_limit

FULL = 0xFFFFFFFF
"""The value of a 32-bit field whose value is in ZIP64's."""
ZIP64, UNICODE_PATH = 0x0001, 0x7075
"""Kinds of extra fields (APPNOTE 4.5.3, 4.6.9)."""
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_LONGEST_COMMENT = 0xFFFF
_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_UTF8, _DESCRIPTOR, _ENCRYPTED = 0x800, 0x8, 0x1
_HARMLESS = _UTF8 | _DESCRIPTOR | 0x6
"""Flags (APPNOTE 4.4.4); the last two are the compression level."""
_LIMIT = 64 << 30
"""Bytes: no real wheel unpacks to more."""
_LONGEST_NAME, _LONGEST_PATH = 255, 4096 - 512
"""Bytes of a file's name and path: Linux's limits (NAME_MAX, PATH_MAX), less the prefix of engines."""
_PLAIN = re.compile(r"(?:\w[\w.+-]*/)*\w[\w.+-]*/?", re.ASCII)
"""Nearly all paths; these need no further check."""
_RELEASED = 64 << 10
"""Bytes: releasing less is not worth a system call."""
_OF_THE_MACHINE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO)
_SMALL = 64 << 20
"""Bytes: the largest metadata file that is read into memory."""


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


class UnboundedError(Exception):
    """An archive that two readers could read differently."""


class Extent(NamedTuple):
    """The bytes of one entry."""

    name: str
    first: int
    """Where its local header starts."""
    after: int
    """Where its data ends."""
    descriptors: tuple[bytes, ...]
    """Data descriptors that may follow its data (APPNOTE 4.3.9); empty for none."""


class WheelArchive:
    """An open wheel file, memory-mapped."""

    def __init__(self, path: Path, filename: str) -> None:
        self.filename = filename
        with path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.members = _read_members(path, self._map, filename)
            except (ValueError, OSError) as error:
                if getattr(error, "errno", None) in _OF_THE_MACHINE:
                    raise  # not a fault of the wheel
                raise self.refuse(f"is not a readable zip archive: {error}") from error
        self._by_name = {member.name: member for member in self.members}
        self.verify_record = False
        """Whether members are compared with RECORD when they are read."""
        self.verified_members: set[str] = set()
        """Names of the members that match RECORD."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BufferError):  # a view that is still in use keeps the map
            self._map.close()

    def refuse(self, why: str) -> WheelError:
        """Make the error that refuses this wheel."""
        return refusal(self.filename, why)

    def data(self, member: Member) -> memoryview:
        """Return the member's compressed bytes, without copying them."""
        return memoryview(self._map)[member.offset : member.offset + member.length]

    def release(self, member: Member, done: int) -> None:
        """Release the memory of the first `done` bytes of a member's data."""
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
        count, directory = read_end(data)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
        entries = [_entry(info, data, filename) for info in infos]
        check_extents([extent for _, extent in entries], data, count, directory)
    except UnboundedError as error:
        raise refusal(filename, str(error)) from error
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, OverflowError, struct.error) as error:
        raise refusal(filename, f"is not a readable zip archive: {error}") from error
    _check_together([member for member, _ in entries], len(data), filename)
    return tuple(member for member, _ in entries if not member.name.endswith("/"))


def check_name(name: str, filename: str) -> None:
    """Refuse a path that escapes, has a meaning in layers, or is not valid for a file."""
    if len(name) <= _LONGEST_NAME and _PLAIN.fullmatch(name):
        return
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or ":" in parts[0] or not name.isprintable():
        raise refusal(filename, f"path {name[:200]!r} is absolute or has forbidden characters")
    if any(part in ("", ".", "..") for part in parts):
        raise refusal(filename, f"path {name[:200]!r} leaves its folder")
    if any(part.startswith(".wh.") for part in parts):
        raise refusal(filename, f"path {name[:200]!r} means a deletion in an image layer (OCI whiteout)")
    if len(name.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise refusal(filename, f"path {name[:200]!r} is longer than a file system takes")


def _entry(info: zipfile.ZipInfo, data: mmap.mmap, filename: str) -> tuple[Member, Extent]:
    check_name(info.orig_filename, filename)
    executable = _check_kind(info, filename)
    offset, streamed = _check_local_header(info, data, filename)
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    member = Member(info.orig_filename, executable, info.CRC, info.file_size, deflated, offset, info.compress_size)
    after = descriptors(info.CRC, info.compress_size, info.file_size) if streamed else ()
    return member, Extent(member.name, info.header_offset, offset + info.compress_size, after)


def _check_kind(info: zipfile.ZipInfo, filename: str) -> bool:
    """Refuse entries other than plain files and folders; return whether it is executable."""
    name, mode = info.orig_filename, info.external_attr >> 16
    kind, folder = stat.S_IFMT(mode), name.endswith("/")
    if kind not in (0, stat.S_IFDIR if folder else stat.S_IFREG):
        raise refusal(filename, f"{name} is a link or device, not a file")
    if folder and info.file_size:
        raise refusal(filename, f"{name} is a folder with content")
    if info.flag_bits & _ENCRYPTED:
        raise refusal(filename, f"{name} is encrypted")
    if info.flag_bits & ~_HARMLESS:
        raise refusal(filename, f"{name} uses features that few readers support (flags {info.flag_bits:#x})")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        what = f"{name} uses compression method {info.compress_type}; only stored and deflate are allowed"
        raise refusal(filename, what)
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise refusal(filename, f"{name} is stored, but its two sizes differ")
    return kind == stat.S_IFREG and bool(mode & 0o111)


def _check_local_header(info: zipfile.ZipInfo, data: mmap.mmap, filename: str) -> tuple[int, bool]:
    """Compare a local header with the directory; return the start of the data, and whether a descriptor follows."""
    name, start = info.orig_filename, info.header_offset
    raw = data[start : start + _LOCAL_HEADER.size]
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != _LOCAL_SIGNATURE:
        raise refusal(filename, f"{name} has no local header where the directory points")
    fields: tuple[int, ...] = _LOCAL_HEADER.unpack(raw)[2:]
    flags, method, _, _, crc32, packed, size, name_length, extra_length = fields
    names_at = start + _LOCAL_HEADER.size
    extra = data[names_at + name_length : names_at + name_length + extra_length]
    same_name = _same_name(data[names_at : names_at + name_length], flags, info, extra)
    if not same_name or method != info.compress_type or (flags ^ info.flag_bits) & ~_HARMLESS:
        raise refusal(filename, f"{name}: local header and directory disagree on name or method")
    stated = {(crc32, *sizes) for sizes in _sizes(packed, size, extra)}
    streamed = bool(flags & _DESCRIPTOR)
    follow = streamed and stated == {(0, 0, 0)}  # the data
    if not follow and stated != {(info.CRC, info.compress_size, info.file_size)}:
        raise refusal(filename, f"{name}: local header and directory disagree on size or CRC")
    return names_at + name_length + extra_length, streamed


def _same_name(local: bytes, flags: int, info: zipfile.ZipInfo, extra: bytes) -> bool:
    """Whether all four places for the name of an entry have the same one."""
    name = info.orig_filename
    if (flags ^ info.flag_bits) & _UTF8 and not name.isascii():
        return False
    try:
        encoded = name.encode("utf-8" if flags & _UTF8 or name.isascii() else "cp437")
    except UnicodeEncodeError:
        return False
    if not extra and not info.extra:
        return local == encoded
    fields = (field for place in (extra, info.extra) for field in extra_fields(place))
    others = [content[5:] for kind, content in fields if kind == UNICODE_PATH]  # behind a version and the name's CRC
    return local == encoded and all(other == name.encode() for other in others)


def _sizes(packed: int, size: int, extra: bytes) -> set[tuple[int, int]]:
    """Return all sizes in a local header: in its two fields, and in ZIP64's (APPNOTE 4.5.3)."""
    if not extra:
        return {(packed, size)}
    fields = [content for kind, content in extra_fields(extra) if kind == ZIP64 and len(content) >= 16]
    wide = [struct.unpack_from("<QQ", content)[::-1] for content in fields]
    # One of the two fields may be narrow beside a ZIP64 field, which then must repeat it.
    mixed = {(packed if packed != FULL else big, size if size != FULL else bigger) for big, bigger in wide}
    return {*wide, *mixed} or {(packed, size)}


def _check_together(members: list[Member], length: int, filename: str) -> None:
    names = sorted(member.name for member in members if not member.name.endswith("/"))
    if twice := [name for name, following in pairwise(names) if name == following]:
        raise refusal(filename, f"{twice[0]} is in the archive twice")
    if both := sorted(folders(member.name for member in members).intersection(names)):
        raise refusal(filename, f"{both[0]} is a file and a folder")
    size = sum(member.size for member in members)
    if size > min(_LIMIT, expansion_limit(length)):
        raise refusal(filename, f"is a bomb: {length} bytes would unpack to {size}")


def folders(names: Iterable[str]) -> set[str]:
    """Return all folders above some paths."""
    return {folder for name in {name.rpartition("/")[0] for name in names} for folder in parents(f"{name}/")} - {""}


def parents(name: str) -> list[str]:
    """List the folders above a path; that of a folder, `a/b/`, is one of them."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: index + 1]) for index in range(len(parts))]


def check_locked(path: Path, filename: str, size: int) -> None:
    """Refuse a file whose size differs from the lock's, before it is read."""
    if (found := os.stat(path).st_size) != size:  # noqa: PTH116 - one call
        raise refusal(filename, f"has {found} bytes where the lock says {size}")


def read_end(data: mmap.mmap) -> tuple[int, int]:
    """Return the number of entries and the start of the directory, which the archive's end must follow."""
    at = data.rfind(b"PK\x05\x06", max(0, len(data) - _END.size - _LONGEST_COMMENT))
    if at < 0 or at + _END.size > len(data):
        raise UnboundedError("is not a readable zip archive: it has no end of a directory")
    _, *disks, here, entries, size, start, comment = _END.unpack_from(data, at)
    if at + _END.size + comment != len(data):
        raise UnboundedError("has other bytes behind the end that it states")
    if at >= _LOCATOR.size and data[at - _LOCATOR.size : at - _LOCATOR.size + 4] == b"PK\x06\x07":
        at, found = _end64(data, at)
        narrow = (*disks, here, entries, size, start)
        if any(one not in (wide, 0xFFFF, FULL) for one, wide in zip(narrow, found, strict=True)):
            raise UnboundedError("has two ends that disagree")
        *disks, here, entries, size, start = found
    if any(disks) or here != entries:
        raise UnboundedError("is one part of an archive of several")
    if start + size != at:
        raise UnboundedError("has no directory where its end says")
    return entries, start


def _end64(data: mmap.mmap, at: int) -> tuple[int, tuple[int, ...]]:
    """Read the ZIP64 end before the end at `at`: where it starts, and its disks, counts, size and start."""
    place = at - _LOCATOR.size - _END64.size
    _, disk, stated, disks = _LOCATOR.unpack_from(data, at - _LOCATOR.size)
    if place < 0 or (disk, stated, disks) != (0, place, 1):
        raise UnboundedError("has no ZIP64 end where it says")
    signature, length, _, _, *found = _END64.unpack_from(data, place)
    if signature != b"PK\x06\x06" or length != _END64.size - 12:
        raise UnboundedError("has no ZIP64 end where it says")
    return place, tuple(found)


def check_extents(extents: Sequence[Extent], data: mmap.mmap, entries: int, directory: int) -> None:
    """Refuse entries that overlap or are not counted, and bytes outside entries."""
    if len(extents) != entries:
        raise UnboundedError(f"has {len(extents)} entries where its end says {entries}")
    before: Extent | None = None
    for extent in sorted(extents, key=lambda extent: extent.first):
        _check_between(before, extent.first, data)
        before = extent
    _check_between(before, directory, data)


def _check_between(before: Extent | None, first: int, data: mmap.mmap) -> None:
    if before is None:
        if first:
            raise UnboundedError(f"has {first} bytes before its first entry")
        return
    if first < before.after:
        raise UnboundedError(f"{before.name} overlaps what comes behind it")
    between = data[before.after : min(first, before.after + 32)]
    if before.descriptors and between not in before.descriptors:
        raise UnboundedError(f"{before.name}: data descriptor and directory disagree on size or CRC")
    if between and not before.descriptors:
        raise UnboundedError(f"has bytes behind {before.name} that belong to no entry")


def descriptors(crc32: int, packed: int, size: int) -> tuple[bytes, ...]:
    """Return all forms of an entry's data descriptor: with and without a signature, narrow and wide."""
    wide = struct.pack("<L2Q", crc32, packed, size)
    found = [wide] if max(packed, size) > FULL else [wide, struct.pack("<3L", crc32, packed, size)]
    return (*found, *(_DESCRIPTOR_SIGNATURE + one for one in found))


def extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each extra field; UnboundedError if one is cut off."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        position += 4 + length
        if position > len(extra):
            raise UnboundedError("has an extra field that is cut off")
        yield kind, extra[position - length : position]
