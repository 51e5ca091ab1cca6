"""File formats inside models: protocol buffers, zip archives and HDF5, read in pieces."""

from __future__ import annotations

import json
import re
import struct
import zlib
from typing import Dict, Iterator, NamedTuple, Optional, Pattern, Tuple

from envbuild.capture.files import Facts
from envbuild.capture.gcs import Unread
from envbuild.capture.places import LONGEST_PIECE, LONGEST_TEXT, RangeReader, search

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 50000
Field = Tuple[int, int, int, int]
"""Number, wire type, and where its value lies: start and end; of a varint, the value and 0."""


def wire_fields(source: RangeReader, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message without reading their values; Unread for other data."""
    for _ in range(MOST_FIELDS):
        if start >= end:
            return
        key, start = _varint(source, start, end)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, start = _varint(source, start, end)
            yield number, kind, value, 0
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            length, start = _varint(source, start, end)
        if length is None or number == 0 or start + length > end:
            raise Unread("it is not a protocol buffer, or cut short")
        yield number, kind, start, start + length
        start += length
    raise Unread("its message has more than %d fields" % MOST_FIELDS)


def wire_values(source: RangeReader, start: int, end: int) -> Dict[int, object]:
    """Read a small message: the last value of each field, a number or bytes."""
    return {
        number: source.at(first, last - first) if kind != VARINT else first
        for number, kind, first, last in wire_fields(source, start, end)
    }


def _varint(source: RangeReader, start: int, end: int) -> Tuple[int, int]:
    """Read a number; return it and where it ended."""
    value = 0
    for index, byte in enumerate(source.at(start, min(10, end - start))):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, start + index + 1
    raise Unread("it is not a protocol buffer, or cut short")


MOST_MEMBERS = 50000
ZIP_END = struct.Struct("<4s4H2LH")
ZIP64_LOCATOR = struct.Struct("<4sLQL")
ZIP64_END = struct.Struct("<4sQ2H2L4Q")
ZIP_ENTRY = struct.Struct("<4s6H3L5H2L")
ZIP_LOCAL = struct.Struct("<4s5H3L2H")
STORED, DEFLATED = 0, 8


class Member(NamedTuple):
    """One file of an archive."""

    name: str
    method: int
    packed: int
    size: int
    offset: int


def zip_members(source: RangeReader) -> Iterator[Member]:
    """Yield the members in the order of the directory; Unread for a damaged archive."""
    start, end = _directory(source)
    for _ in range(MOST_MEMBERS):
        if start + ZIP_ENTRY.size > end:
            return
        entry = ZIP_ENTRY.unpack(source.at(start, ZIP_ENTRY.size))
        if entry[0] != b"PK\1\2":
            raise Unread("its zip directory is damaged")
        tail = source.at(start + ZIP_ENTRY.size, entry[10] + entry[11])
        name = tail[: entry[10]].decode("utf-8", "replace")
        size, packed, offset = _wide(tail[entry[10] :], entry[9], entry[8], entry[16])
        yield Member(name, entry[4], packed, size, offset)
        start += ZIP_ENTRY.size + entry[10] + entry[11] + entry[12]
    raise Unread("its zip directory has more than %d members" % MOST_MEMBERS)


def zip_content(source: RangeReader, member: Member) -> bytes:
    """Return the content of a small member; Unread if it is large, damaged or packed in another way."""
    data = source.at(_content_start(source, member), member.packed)
    if member.method == DEFLATED:
        try:
            data = zlib.decompressobj(-15).decompress(data, LONGEST_PIECE + 1)
        except zlib.error:
            raise Unread("%s in it is damaged" % member.name[:LONGEST_TEXT]) from None
    if len(data) > LONGEST_PIECE:
        raise Unread("%s in it unpacks to more than is ever read" % member.name[:LONGEST_TEXT])
    return data


def zip_search(source: RangeReader, member: Member, pattern: Pattern[bytes]) -> Optional[str]:
    """Search a member of any size from its end on, where frameworks write their version."""
    if member.method != STORED:
        return search(iter([zip_content(source, member)]), pattern)
    start = _content_start(source, member)
    return search(source.windows(start, start + member.packed, backwards=True), pattern)


def _directory(source: RangeReader) -> tuple[int, int]:
    """Return where the central directory starts and ends."""
    tail = source.at(max(0, source.size - 0xFFFF - ZIP_END.size), min(source.size, 0xFFFF + ZIP_END.size))
    at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - ZIP_END.size + 4))
    if at < 0:
        raise Unread("it is not a zip archive, or cut short")
    record = ZIP_END.unpack(tail[at : at + ZIP_END.size])
    size, start = record[5], record[6]
    locator = source.size - len(tail) + at - ZIP64_LOCATOR.size
    if 0xFFFFFFFF in (size, start) and locator >= 0:
        found = ZIP64_LOCATOR.unpack(source.at(locator, ZIP64_LOCATOR.size))
        if found[0] == b"PK\6\7":
            wide = ZIP64_END.unpack(source.at(found[2], ZIP64_END.size))
            size, start = wide[8], wide[9]
    if start + size > source.size:
        raise Unread("its zip directory is damaged")
    return start, start + size


def _wide(extra: bytes, *values: int) -> Iterator[int]:
    """Yield sizes and offset; those that need more than 32 bits stand in the extra field 1 (4.5.3)."""
    block = b""
    while len(extra) >= 4:
        kind, length = struct.unpack("<2H", extra[:4])
        if kind == 1:
            block = extra[4 : 4 + length]
        extra = extra[4 + length :]
    for value in values:
        if value == 0xFFFFFFFF and len(block) >= 8:
            yield int.from_bytes(block[:8], "little")
            block = block[8:]
        else:
            yield value


def _content_start(source: RangeReader, member: Member) -> int:
    """Return where the member's packed bytes start."""
    if member.method not in (STORED, DEFLATED):
        raise Unread("%s in it is packed in a way that is not read here" % member.name[:LONGEST_TEXT])
    signature, *_, name, extra = ZIP_LOCAL.unpack(source.at(member.offset, ZIP_LOCAL.size))
    if signature != b"PK\3\4":
        raise Unread("its zip directory is damaged")
    return member.offset + ZIP_LOCAL.size + int(name) + int(extra)


SIGNATURE = b"\x89HDF\r\n\x1a\n"
MOST_MESSAGES = 1000
ATTRIBUTE, CONTINUATION = 0x0C, 0x10
FIXED_STRING, VARIABLE_LENGTH = 3, 9
SHARED = 0x02
DAMAGED = "its HDF5 structure is damaged, or of a kind that is not read here"


class Hdf5:
    """An HDF5 file as h5py writes it by default; Unread for other files.

    That is, by the HDF5 File Format Specification 3.0, superblock 0 with addresses of 8 bytes, and object headers of
    version 1, which hold attributes with strings of fixed or variable length.
    """

    def __init__(self, source: RangeReader) -> None:
        self.source = source
        block = source.head(96)
        if not block.startswith(SIGNATURE):
            raise Unread("it is not an HDF5 file")
        # III.A: version, sizes of offsets and lengths, and the root's object header.
        if len(block) < 72 or block[8] != 0 or block[13:15] != b"\x08\x08":
            raise Unread(DAMAGED)
        self.root = _number(block[64:72])

    def texts(self) -> Dict[str, bytes]:
        """Return the root's attributes that are single strings, without those that are too long."""
        found = {}
        for start, size in self._attributes():
            attribute = self._attribute(self.source.at(start, size))
            if attribute is not None:
                found[attribute[0]] = attribute[1]
        return found

    def _attributes(self) -> Iterator[Tuple[int, int]]:
        """Yield start and size of each attribute message of the root's object header (IV.A.1.a)."""
        head = self.source.at(self.root, 16)
        if head[0] != 1:
            raise Unread(DAMAGED)
        blocks, count = [(self.root + 16, _number(head[8:12]))], 0
        for start, length in blocks:
            at, end = start, start + length
            while at + 8 <= end:
                data = self.source.at(at, 8)
                kind, size, flags = _number(data[:2]), _number(data[2:4]), data[4]
                at, count = at + 8, count + 1
                if count > MOST_MESSAGES or at + size > end:
                    raise Unread(DAMAGED)
                if kind == CONTINUATION:
                    block = self.source.at(at, 16)
                    blocks.append((_number(block[:8]), _number(block[8:])))
                elif kind == ATTRIBUTE and not flags & SHARED:
                    yield at, size
                at += size

    def _attribute(self, data: bytes) -> Optional[Tuple[str, bytes]]:
        """Return name and text of an attribute message (IV.A.2.m); None for any other type."""
        if len(data) < 9:
            return None
        version, name_size, type_size, space_size = data[0], *(_number(data[at : at + 2]) for at in (2, 4, 6))
        at, align = {1: (8, 8), 2: (8, 1), 3: (9, 1)}.get(version, (0, 0))
        if not at or (version > 1 and data[1]):
            return None
        name = data[at : at + name_size].rstrip(b"\0").decode("utf-8", "replace")
        at += _padded(name_size, align)
        kind = data[at : at + type_size]
        at += _padded(type_size, align)
        space = data[at : at + space_size]
        # One element in the dataspace message (IV.A.2.b).
        single = len(space) >= 4 and space[0] in (1, 2) and space[1] == 0 and (space[0] == 1 or space[3] == 0)
        text = self._string(kind, data[at + _padded(space_size, align) :]) if single else None
        return None if text is None else (name, text)

    def _string(self, kind: bytes, value: bytes) -> Optional[bytes]:
        """Return a string by its datatype message (IV.A.2.d)."""
        if len(kind) < 8:
            return None
        if kind[0] & 0x0F == FIXED_STRING:
            return value[: _number(kind[4:8])].rstrip(b"\0")
        if kind[0] & 0x0F == VARIABLE_LENGTH and kind[1] & 0x0F == 1 and len(value) >= 16:
            return self._global_object(_number(value[:4]), _number(value[4:12]), _number(value[12:16]))
        return None

    def _global_object(self, length: int, heap: int, wanted: int) -> Optional[bytes]:
        """Return an object of a global heap collection (III.E)."""
        head = self.source.at(heap, 16)
        if head[:5] != b"GCOL\x01":
            raise Unread(DAMAGED)
        at, end = heap + 16, heap + _number(head[8:])
        for _ in range(MOST_MESSAGES):
            if at + 16 > end:
                break
            item = self.source.at(at, 16)
            if _number(item[:2]) == wanted:
                return self.source.at(at + 16, length) if length <= LONGEST_PIECE else None
            at += 16 + _padded(_number(item[8:]), 8)
        raise Unread(DAMAGED)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _padded(size: int, align: int) -> int:
    return (size + align - 1) // align * align


def json_object(data: bytes) -> Facts:
    """Read a JSON object; Unread for anything else."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unread("its metadata is not a JSON object")
    return value


def add_writer(facts: Facts, name: str, version: str | None, git_version: str | None = None) -> None:
    """Add a library that wrote the model, if its version is known."""
    if version:
        facts["written_by"].append({"name": name, "version": version, "git_version": git_version})


UBJSON_TAIL = 64
"""How many bytes at the end of UBJSON hold the version."""
_UBJSON_VERSION = re.compile(
    rb"version\[#(?:L\x00{7}|[iU])\x03i([\x00-\x7f])i([\x00-\x7f])i([\x00-\x7f])\}*\Z", re.DOTALL
)


def ubjson_version(tail: bytes) -> Optional[str]:
    """Return the version with which XGBoost ends its UBJSON; None where there is none."""
    found = _UBJSON_VERSION.search(tail)
    return ".".join(str(ord(it)) for it in found.groups()) if found else None
