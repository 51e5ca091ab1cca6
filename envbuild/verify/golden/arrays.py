"""Arrays as manifests keep them, held against each other without NumPy."""

import base64
import binascii
import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.manifest.artifact import Array

Number = int | float | complex

_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
_COMPLEX = {"complex64": "f", "complex128": "d"}
_UPPER_HALF = 16
"""A bfloat16 is the upper half of a float32."""


class DamagedError(Exception):
    """An array that contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far one array is from another of its shape."""

    count: int
    """How many elements there are."""
    beyond: int
    """How many of them are further off than the tolerance allows."""
    largest: float
    """The largest |a - b|, of those beyond where there are any; infinite where one is no number, or infinite."""
    place: tuple[int, ...]
    """Its index; empty too where there is no element at all."""
    wanted: str
    """What was recorded there."""
    found: str
    """What came."""


def content(array: Array) -> bytes:
    """The elements' bytes; DamagedError where they are not those of its digest, or not as many as its shape says."""
    try:
        data = base64.b64decode(array.data, validate=True)
    except binascii.Error as error:
        raise DamagedError("its data is no base64") from error
    if array.sha256 and hashlib.sha256(data).hexdigest() != array.sha256:
        raise DamagedError("its data is not what its digest says")
    width = width_of(array.dtype)
    if width and len(data) != math.prod(array.shape) * width:
        raise DamagedError(f"its data has {len(data)} bytes, and its shape asks for {math.prod(array.shape) * width}")
    return data


def width_of(dtype: str) -> int | None:
    """Bytes of an element; None for types whose numbers cannot be read here, such as float8_e5m2."""
    if dtype == "bfloat16":
        return 2
    if code := _COMPLEX.get(dtype):
        return 2 * struct.calcsize(f"<{code}")
    return struct.calcsize(f"<{_CODES[dtype]}") if dtype in _CODES else None


def numbers(dtype: str, data: bytes) -> Sequence[Number]:
    """The elements, of a type that has a width here."""
    if dtype == "bfloat16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        whole = struct.pack(f"<{len(halves)}I", *(half << _UPPER_HALF for half in halves))
        return struct.unpack(f"<{len(halves)}f", whole)
    if code := _COMPLEX.get(dtype):
        parts = struct.iter_unpack(f"<2{code}", data)
        return [complex(*pair) for pair in parts]
    code = _CODES[dtype]
    return struct.unpack(f"<{len(data) // struct.calcsize(f'<{code}')}{code}", data)


def deviation(wanted: Array, found: Array, *, rtol: float, atol: float) -> Deviation:
    """How far two arrays of one shape are apart, where |found - wanted| <= atol + rtol * |wanted| is allowed.

    NaN is equal to NaN, and an infinity to itself only. DamagedError as `content`, and for types that have no width.
    """
    worst: tuple[tuple[bool, float], int, Number, Number] = ((False, -1.0), 0, 0, 0)
    beyond, count = 0, 0
    for index, (a, b) in enumerate(_pairs(wanted, found)):
        count += 1
        distance = apart(a, b)
        far = distance > atol + rtol * abs(b) or distance == math.inf
        beyond += far
        if (far, distance) > worst[0]:
            worst = ((far, distance), index, a, b)
    (_, largest), index, a, b = worst
    place = _place(index, found.shape) if count else ()
    return Deviation(count=count, beyond=beyond, largest=max(largest, 0.0), place=place, wanted=str(b), found=str(a))


def apart(a: Number, b: Number) -> float:
    """|a - b|; 0 for two that are no numbers, infinite for one that is none, and for infinities that differ."""
    if a == b:
        return 0.0
    nothing = [value != value for value in (a, b)]  # noqa: PLR0124 - so is NaN, of complex numbers too
    if all(nothing):
        return 0.0
    distance = abs(a - b)
    return math.inf if any(nothing) or distance != distance else float(distance)  # noqa: PLR0124


def _pairs(wanted: Array, found: Array) -> Iterator[tuple[Number, Number]]:
    for array in (wanted, found):
        if width_of(array.dtype) is None:
            raise DamagedError(f"numbers of type {array.dtype} cannot be read here")
    return zip(numbers(found.dtype, content(found)), numbers(wanted.dtype, content(wanted)), strict=True)


def _place(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of an element in C order."""
    place: list[int] = []
    for length in reversed(shape):
        index, rest = divmod(index, length)
        place.insert(0, rest)
    return tuple(place)
