"""The recorded arrays of a golden sample: their elements, and how far two arrays are apart."""

import base64
import binascii
import hashlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from envbuild.capture.golden import NUMERIC, PLAIN
from envbuild.manifest.model import Array

Number = int | float | complex
Element = Number | str | None
"""Text is not a number; None is a missing value."""
CODES = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
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
    """The largest |a - b|, of those beyond where there are any; infinite where one is NaN or infinite."""
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
        raise DamagedError("its data is not base64") from error
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
    return struct.calcsize(f"<{CODES[dtype]}") if dtype in CODES else None


def numbers(dtype: str, data: bytes) -> Sequence[Number]:
    """The elements, of a type that has a width here."""
    if dtype == "bfloat16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        whole = struct.pack(f"<{len(halves)}I", *(half << _UPPER_HALF for half in halves))
        return struct.unpack(f"<{len(halves)}f", whole)
    if code := _COMPLEX.get(dtype):
        parts = struct.iter_unpack(f"<2{code}", data)
        return [complex(*pair) for pair in parts]
    code = CODES[dtype]
    return struct.unpack(f"<{len(data) // struct.calcsize(f'<{code}')}{code}", data)


def elements(array: Array) -> Sequence[Element]:
    """The elements of any type; DamagedError as `content`, for data of another kind, and for unknown numbers."""
    if NUMERIC.fullmatch(array.dtype):
        if width_of(array.dtype) is None:
            raise DamagedError(f"numbers of type {array.dtype} cannot be read here")
        return numbers(array.dtype, content(array))
    found = _listed(content(array))
    if len(found) != math.prod(array.shape):
        raise DamagedError(f"its data has {len(found)} values, and its shape asks for {math.prod(array.shape)}")
    return found


def categories(array: Array) -> Sequence[Element]:
    """The categories of a column; none where it is of another type. DamagedError."""
    return _listed(content(replace(array, data=array.categories, sha256=None))) if array.categories else ()


def _listed(data: bytes) -> Sequence[Element]:
    try:
        found: Sequence[Element] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError("its data is not JSON") from error
    known = isinstance(found, list) and all(it is None or isinstance(it, PLAIN) for it in found)
    if not known or any(isinstance(it, int) and it.bit_length() > 64 for it in found):
        raise DamagedError("its data is not a list of texts and numbers of 64 bits")
    return found


def deviation(wanted: Array, found: Array, *, rtol: float, atol: float) -> Deviation:
    """How far two arrays of one shape are apart, where |found - wanted| <= atol + rtol * |wanted| is allowed.

    NaN is equal to NaN, an infinity to itself only, and so is text. DamagedError as `elements`.
    """
    pairs = zip(elements(found), elements(wanted), strict=True)
    worst: tuple[tuple[bool, float], int, Element, Element] = ((False, -1.0), 0, 0, 0)
    beyond, count = 0, 0
    for index, (a, b) in enumerate(pairs):
        count += 1
        distance = apart(a, b)
        far = distance == math.inf or (distance > 0 and distance > atol + rtol * abs(b))  # type: ignore[arg-type] # text is 0 or inf apart
        beyond += far
        if (far, distance) > worst[0]:
            worst = ((far, distance), index, a, b)
    (_, largest), index, a, b = worst
    place: list[int] = []
    for length in reversed(found.shape if count else ()):  # the index of an element in C order
        index, last = divmod(index, length)
        place.insert(0, last)
    return Deviation(
        count=count, beyond=beyond, largest=max(largest, 0.0), place=tuple(place), wanted=str(b), found=str(a)
    )


def apart(a: Element, b: Element) -> float:
    """|a - b|; 0 for two NaN, infinite for one NaN, for infinities that differ, and for text that differs."""
    if a == b:
        return 0.0
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return math.inf
    nan = [value != value for value in (a, b)]  # noqa: PLR0124 - so is NaN, of complex numbers too
    if all(nan):
        return 0.0
    distance = abs(a - b)
    return math.inf if any(nan) or distance != distance else float(distance)  # noqa: PLR0124
