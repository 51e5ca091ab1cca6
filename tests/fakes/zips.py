"""Zip archives written field by field, so that each field can lie (PKWARE APPNOTE 4.3)."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FULL = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Part:
    """One entry, true in all that it says but for what is overridden."""

    name: bytes
    data: bytes = b""
    method: int = 8
    mode: int = 0o100644
    packed: bytes | None = None
    """The bytes that are stored; None for what the method makes of the data."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """What the local header says instead: `signature`, `flags`, `method`, `crc`, `packed`, `size`, `name`, `extra`."""
    central: Mapping[str, Any] = field(default_factory=dict)
    """What the directory says instead: the same, and `mode`, `offset`, `comment`, `disk`."""
    zip64: bool = False
    """Whether the sizes stand in ZIP64 fields."""
    streamed: bool = False
    """Whether the sizes follow behind the data, in a descriptor."""
    descriptor: bytes | None = None
    """The descriptor; None for the true one."""
    behind: bytes = b""
    """Bytes that belong to nothing."""

    @property
    def stored(self) -> bytes:
        """The bytes that are in the archive."""
        if self.packed is not None:
            return self.packed
        if self.method != 8:
            return self.data
        return deflated(self.data)


def deflated(data: bytes, level: int = 6) -> bytes:
    """A raw deflate stream."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def extra_field(kind: int, content: bytes) -> bytes:
    return struct.pack("<HH", kind, len(content)) + content


def _fields(part: Part) -> dict[str, Any]:
    flags = (8 if part.streamed else 0) | (0 if part.name.isascii() else 0x800)
    return {
        "flags": flags, "method": part.method, "crc": zlib.crc32(part.data), "packed": len(part.stored),
        "size": len(part.data), "name": part.name, "extra": b"",
    }  # fmt: skip


def local(part: Part) -> bytes:
    """The local header and all that follows it."""
    true = _fields(part)
    it = dict(true)
    if part.streamed:
        it |= {"crc": 0, "packed": 0, "size": 0}
    if part.zip64:
        it |= {"extra": extra_field(1, struct.pack("<QQ", it["size"], it["packed"])), "size": FULL, "packed": FULL}
    it = {"signature": b"PK\x03\x04"} | it | dict(part.local)
    header = struct.pack(
        "<4s5H3L2H", it["signature"], 45 if part.zip64 else 20, it["flags"], it["method"], 0, 0x5042,
        it["crc"], it["packed"], it["size"], len(it["name"]), len(it["extra"]),
    )  # fmt: skip
    after = part.descriptor
    if after is None:
        after = b"PK\x07\x08" + struct.pack("<3L", *(true[key] for key in ("crc", "packed", "size")))
        after = after if part.streamed else b""
    return header + it["name"] + it["extra"] + part.stored + after + part.behind


def central(part: Part, offset: int) -> bytes:
    """The entry of the directory."""
    it = _fields(part) | {"mode": part.mode, "offset": offset, "comment": b"", "disk": 0}
    if part.zip64:
        it |= {"extra": extra_field(1, struct.pack("<3Q", it["size"], it["packed"], offset))}
        it |= {"size": FULL, "packed": FULL, "offset": FULL}
    it |= dict(part.central)
    header = struct.pack(
        "<4s6H3L5H2L", b"PK\x01\x02", 3 << 8 | 20, 45 if part.zip64 else 20, it["flags"], it["method"], 0, 0x5042,
        it["crc"], it["packed"], it["size"], len(it["name"]), len(it["extra"]), len(it["comment"]), it["disk"], 0,
        it["mode"] << 16, it["offset"],
    )  # fmt: skip
    return header + it["name"] + it["extra"] + it["comment"]


def end(entries: int, start: int, size: int, /, *, comment: bytes = b"", **lies: int) -> bytes:
    """The end of the directory; `lies` are `disk`, `first_disk`, `here`, `entries`, `size`, `start`, `comment_length`."""
    it = {
        "disk": 0, "first_disk": 0, "here": entries, "entries": entries, "size": size, "start": start,
        "comment_length": len(comment),
    } | lies  # fmt: skip
    return struct.pack("<4s4H2LH", b"PK\x05\x06", *it.values()) + comment


def end64(entries: int, start: int, size: int, at: int, /, **lies: int) -> bytes:
    """The ZIP64 end and its locator; `lies` are `record`, `entries`, `size`, `start`, `place`, `disks`."""
    it = {"record": 44, "entries": entries, "size": size, "start": start, "place": at, "disks": 1} | lies
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", it["record"], 45, 45, 0, 0, it["entries"], it["entries"], it["size"], it["start"]
    )
    return record + struct.pack("<4sLQL", b"PK\x06\x07", 0, it["place"], it["disks"])


def archive(
    parts: Sequence[Part],
    *,
    before: bytes = b"",
    between: bytes = b"",
    behind: bytes = b"",
    comment: bytes = b"",
    zip64: Mapping[str, int] | None = None,
    **lies: int,
) -> bytes:
    """An archive of these parts, with bytes where none belong: `before` all, `between` entries and directory, `behind`.

    `zip64` writes a ZIP64 end with these lies; `lies` are those of the end.
    """
    body, directory = bytearray(before), bytearray()
    for part in parts:
        directory += central(part, len(body))
        body += local(part)
    body += between
    start = len(body)
    body += directory
    if zip64 is not None:
        body += end64(len(parts), start, len(directory), len(body), **zip64)
        lies = {"here": 0xFFFF, "entries": 0xFFFF, "size": FULL, "start": FULL} | lies
    return bytes(body) + end(len(parts), start, len(directory), comment=comment, **lies) + behind
