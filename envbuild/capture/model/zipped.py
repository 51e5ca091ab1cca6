"""Zip archives (PKWARE APPNOTE 6.3.10) by ranges, and never more of them than is asked for.

`zipfile` would hold the whole directory in memory, and inflate what a member's header claims.
"""

from __future__ import annotations

import struct
import zlib
from typing import Iterator, NamedTuple, Optional, Pattern

from envbuild.capture.gcs import Unread
from envbuild.capture.model.source import LONGEST_PIECE, LONGEST_TEXT, Source, search

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


def zip_members(source: Source) -> Iterator[Member]:
    """Yield the members in the order of the directory; Unread where it is no sound archive."""
    start, end = _directory(source)
    for _ in range(MOST_MEMBERS):
        if start + ZIP_ENTRY.size > end:
            return
        entry = ZIP_ENTRY.unpack(source.at(start, ZIP_ENTRY.size))
        if entry[0] != b"PK\1\2":
            raise Unread("its zip directory is damaged")
        rest = source.at(start + ZIP_ENTRY.size, entry[10] + entry[11])
        name = rest[: entry[10]].decode("utf-8", "replace")
        size, packed, offset = _wide(rest[entry[10] :], entry[9], entry[8], entry[16])
        yield Member(name, entry[4], packed, size, offset)
        start += ZIP_ENTRY.size + entry[10] + entry[11] + entry[12]
    raise Unread("its zip directory has more than %d members" % MOST_MEMBERS)


def zip_content(source: Source, member: Member) -> bytes:
    """Return the content of a small member; Unread if it is none, or packed in a way that is not read here."""
    start = _content(source, member)
    data = source.at(start, member.packed)
    if member.method == DEFLATED:
        try:
            data = zlib.decompressobj(-15).decompress(data, LONGEST_PIECE + 1)
        except zlib.error:
            raise Unread("%s in it is damaged" % member.name[:LONGEST_TEXT]) from None
    if len(data) > LONGEST_PIECE:
        raise Unread("%s in it unpacks to more than is ever read" % member.name[:LONGEST_TEXT])
    return data


def zip_search(source: Source, member: Member, pattern: Pattern[bytes]) -> Optional[str]:
    """Search a member of any size from its end on, where frameworks write their version."""
    if member.method != STORED:
        return search(iter([zip_content(source, member)]), pattern)
    start = _content(source, member)
    return search(source.windows(start, start + member.packed, backwards=True), pattern)


def _directory(source: Source) -> tuple[int, int]:
    """Return where the central directory starts and ends."""
    tail = source.at(max(0, source.size - 0xFFFF - ZIP_END.size), min(source.size, 0xFFFF + ZIP_END.size))
    at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - ZIP_END.size + 4))
    if at < 0:
        raise Unread("it is no zip archive, or cut short")
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


def _content(source: Source, member: Member) -> int:
    """Return where the member's packed bytes start."""
    if member.method not in (STORED, DEFLATED):
        raise Unread("%s in it is packed in a way that is not read here" % member.name[:LONGEST_TEXT])
    signature, *_, name, extra = ZIP_LOCAL.unpack(source.at(member.offset, ZIP_LOCAL.size))
    if signature != b"PK\3\4":
        raise Unread("its zip directory is damaged")
    return member.offset + ZIP_LOCAL.size + int(name) + int(extra)
