"""The texts among the attributes of an HDF5 file's root group (HDF5 File Format Specification, version 3.0).

Of the format only what h5py writes by default and with `libver="latest"`: superblocks 0, 2 and 3, object headers 1 and
2 with their attributes inside, and strings of fixed or variable length.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Tuple

from envbuild.capture.gcs import Unread
from envbuild.capture.model.source import LONGEST_PIECE, Source

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MOST_MESSAGES = 1000
ATTRIBUTE, CONTINUATION = 0x0C, 0x10
FIXED_STRING, VARIABLE_LENGTH = 3, 9
SHARED = 0x02
DAMAGED = "its HDF5 structure is damaged, or of a kind that is not read here"


class Hdf5:
    """An HDF5 file with addresses of 8 bytes, which all that frameworks write has; Unread if it is none."""

    def __init__(self, source: Source) -> None:
        self.source = source
        block = source.head(96)
        if not block.startswith(SIGNATURE):
            raise Unread("it is no HDF5 file")
        version = block[8] if len(block) > 8 else 255
        # III.A: sizes of offsets and lengths, and the root's object header, in each version of the superblock.
        sizes, root = (block[13:15], 64) if version == 0 else (block[9:11], 36)
        if version not in (0, 2, 3) or sizes != b"\x08\x08" or len(block) < root + 8:
            raise Unread(DAMAGED)
        self.root = _number(block[root : root + 8])

    def texts(self) -> Dict[str, bytes]:
        """Return the root's attributes that are single strings; of one longer than is ever read, nothing."""
        found = {}
        for kind, start, end in self._messages():
            named = self._attribute(self.source.at(start, end - start)) if kind == ATTRIBUTE else None
            if named is not None:
                found[named[0]] = named[1]
        return found

    def _messages(self) -> Iterator[Tuple[int, int, int]]:
        """Yield kind, start and end of each message of the root's object header (IV.A.1)."""
        blocks, count = self._first_block(), 0
        for start, end, head, order in blocks:
            at = start
            while at + head <= end:
                kind, size, flags = self._message_head(at, head)
                at, count = at + head + order, count + 1
                if count > MOST_MESSAGES or at + size > end:
                    raise Unread(DAMAGED)
                if kind == CONTINUATION:
                    blocks.append(self._continuation(at, head, order))
                elif not flags & SHARED:
                    yield kind, at, at + size
                at += size

    def _first_block(self) -> List[Tuple[int, int, int, int]]:
        """Return start and end of the header's messages, and the bytes of each one's head and of its order."""
        block = self.source.at(self.root, 16)
        if block[0] == 1:
            return [(self.root + 16, self.root + 16 + _number(block[8:12]), 8, 0)]
        if block[:5] != b"OHDR\x02":
            raise Unread(DAMAGED)
        flags, width = block[5], 1 << (block[5] & 3)
        start = self.root + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        end = start + width + _number(self.source.at(start, width))
        return [(start + width, end, 4, 2 if flags & 0x04 else 0)]

    def _message_head(self, start: int, head: int) -> Tuple[int, int, int]:
        data = self.source.at(start, head)
        if head == 8:
            return _number(data[:2]), _number(data[2:4]), data[4]
        return data[0], _number(data[1:3]), data[3]

    def _continuation(self, start: int, head: int, order: int) -> Tuple[int, int, int, int]:
        data = self.source.at(start, 16)
        first, length = _number(data[:8]), _number(data[8:])
        if head == 8:
            return first, first + length, head, order
        # Version 2 has a signature before and a checksum behind (IV.A.1.b).
        if self.source.at(first, 4) != b"OCHK":
            raise Unread(DAMAGED)
        return first + 4, first + length - 4, head, order

    def _attribute(self, data: bytes) -> Optional[Tuple[str, bytes]]:
        """Return name and text of an attribute message (IV.A.2.m); None if it is no single string."""
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
        text = self._string(kind, data[at + _padded(space_size, align) :]) if _is_single(space) else None
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


def _is_single(space: bytes) -> bool:
    """Tell whether a dataspace message (IV.A.2.b) has one element."""
    return len(space) >= 4 and space[0] in (1, 2) and space[1] == 0 and (space[0] == 1 or space[3] == 0)
