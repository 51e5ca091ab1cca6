"""That an archive is its entries, its directory and its end, and nothing beside them (PKWARE APPNOTE 4.3).

Some readers follow the directory, others go from entry to entry; some take the first end that they find, others the
last. All of them see the same files only where every byte belongs to exactly one thing.
"""

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FULL = 0xFFFFFFFF
"""What a 32-bit field holds when ZIP64 has its value."""
ZIP64, UNICODE_PATH = 0x0001, 0x7075
"""Kinds of extra fields (APPNOTE 4.5.3, 4.6.9)."""
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_LONGEST_COMMENT = 0xFFFF
_DESCRIPTOR = b"PK\x07\x08"


class UnboundedError(Exception):
    """An archive of which two readers could see different things."""


@dataclass(frozen=True, slots=True)
class End:
    """What the end of an archive says."""

    entries: int
    directory: int
    """Where the directory starts."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of one entry."""

    name: str
    first: int
    """Where its local header starts."""
    after: int
    """Where its data ends."""
    descriptors: tuple[bytes, ...]
    """What may follow its data (APPNOTE 4.3.9); nothing does where this is empty."""


def read_end(data: mmap.mmap) -> End:
    """Read the end of an archive; the directory must lie right before it, and nothing behind it."""
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
    return End(entries, start)


def _end64(data: mmap.mmap, at: int) -> tuple[int, tuple[int, ...]]:
    """Read the ZIP64 end before the end at `at`: where it starts, and its disks, counts, size and start."""
    place = at - _LOCATOR.size - _END64.size
    _, disk, said, disks = _LOCATOR.unpack_from(data, at - _LOCATOR.size)
    if place < 0 or (disk, said, disks) != (0, place, 1):
        raise UnboundedError("has no ZIP64 end where it says")
    signature, length, _, _, *found = _END64.unpack_from(data, place)
    if signature != b"PK\x06\x06" or length != _END64.size - 12:
        raise UnboundedError("has no ZIP64 end where it says")
    return place, tuple(found)


def check_extents(extents: Sequence[Extent], data: mmap.mmap, end: End) -> None:
    """Refuse entries that overlap or that the end does not count, and bytes that belong to none."""
    if len(extents) != end.entries:
        raise UnboundedError(f"has {len(extents)} entries where its end says {end.entries}")
    before: Extent | None = None
    for extent in sorted(extents, key=lambda extent: extent.first):
        _check_between(before, extent.first, data)
        before = extent
    _check_between(before, end.directory, data)


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
    """All ways to write the data descriptor of an entry: with and without a signature, narrow and wide."""
    wide = struct.pack("<L2Q", crc32, packed, size)
    found = [wide] if max(packed, size) > FULL else [wide, struct.pack("<3L", crc32, packed, size)]
    return (*found, *(_DESCRIPTOR + one for one in found))


def extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each extra field; UnboundedError where one goes on behind the end."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        position += 4 + length
        if position > len(extra):
            raise UnboundedError("has an extra field that is cut off")
        yield kind, extra[position - length : position]
