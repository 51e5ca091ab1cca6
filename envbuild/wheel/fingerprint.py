"""What a wheel puts where, in few bytes: enough to know which wheels cannot overlap, without reading them again."""

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TypeVar
from zlib import crc32

from envbuild.wheel.install import InstalledFile

_ROW = struct.Struct(">8s4s")
_FOLDER = b"\0dir"

_Wheel = TypeVar("_Wheel")

Fingerprint = Mapping[bytes, bytes]
"""By a hash of each path, of folders too, a hash of what is there."""


def fingerprint(files: Iterable[InstalledFile]) -> Fingerprint:
    """Make the fingerprint of a wheel's installed files."""
    found: dict[bytes, bytes] = {}
    for file in files:
        found[_hashed(file.path, 8)] = _hashed(repr(content_of(file)), 4)
        folder = file.path.rpartition("/")[0]
        while folder and (key := _hashed(folder, 8)) not in found:
            found[key] = _FOLDER
            folder = folder.rpartition("/")[0]
    return found


def content_of(file: InstalledFile) -> tuple[int, int]:
    """CRC and size of what is installed, by which equal files of different wheels are known."""
    source = file.source
    return (crc32(source), len(source)) if isinstance(source, bytes) else (source.crc32, source.size)


def _hashed(text: str, size: int) -> bytes:
    return blake2b(text.encode(), digest_size=size).digest()


def suspects(prints: Mapping[_Wheel, Fingerprint]) -> list[_Wheel]:
    """The wheels that may have different things at one path; those that are not among them have not."""
    contents: dict[bytes, bytes] = {}
    clashing: set[bytes] = set()
    for rows in prints.values():
        clashing |= {path for path, content in rows.items() if contents.setdefault(path, content) != content}
    return [wheel for wheel, rows in prints.items() if not clashing.isdisjoint(rows)]


def to_text(rows: Fingerprint) -> str:
    """Write a fingerprint for a note."""
    return b64encode(b"".join(_ROW.pack(path, rows[path]) for path in sorted(rows))).decode()


def from_text(text: str) -> Fingerprint:
    """Read what `to_text` wrote; ValueError, TypeError or struct.error for anything else."""
    return dict(_ROW.iter_unpack(b64decode(text, validate=True)))
