"""The wire format of protocol buffers (protobuf.dev/programming-guides/encoding), as far as finding a field takes."""

from __future__ import annotations

from typing import Dict, Iterator, Tuple

from envbuild.capture.gcs import Unread
from envbuild.capture.model.source import Source

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 50000
Field = Tuple[int, int, int, int]
"""Number, wire type, and where its value lies: start and end; of a varint, the value and 0."""


def wire_fields(source: Source, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message without reading their values; Unread where it is none."""
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
            raise Unread("it is no protocol buffer, or cut short")
        yield number, kind, start, start + length
        start += length
    raise Unread("its message has more than %d fields" % MOST_FIELDS)


def wire_values(source: Source, start: int, end: int) -> Dict[int, object]:
    """Read a small message: the last value of each field, a number or bytes."""
    return {
        number: source.at(first, last - first) if kind != VARINT else first
        for number, kind, first, last in wire_fields(source, start, end)
    }


def _varint(source: Source, start: int, end: int) -> Tuple[int, int]:
    """Read a number; return it and where it ended."""
    data = source.at(start, min(10, end - start))
    value = 0
    for index in range(len(data)):
        value |= (data[index] & 0x7F) << (7 * index)
        if data[index] < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, start + index + 1
    raise Unread("it is no protocol buffer, or cut short")
