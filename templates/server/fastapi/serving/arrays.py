"""NumPy's arrays, and the numbers and strings of JSON."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

BYTES = "bytes"
"""The type of strings, which JSON has as text, or as {"b64": "..."} what is no text."""


class Special(float):
    """What was sent as no number or as infinite; an infinity of another type is a number that was too large."""


SPECIAL = {word: Special(word) for word in ("NaN", "Infinity", "-Infinity")}
"""What JSON has no number for, by the words that the JSON form of Protocol Buffers has for it."""
LONGEST = 20
"""Characters of the longest integer that a type of 64 bits holds, -2**63 or 2**64 - 1."""
LONG = re.compile("(?<![0-9.])[0-9]{19}")
"""The beginning of an integer that 64 bits may not hold; to read one of a million digits takes Python minutes."""
MOST_DIMENSIONS = 32
"""What NumPy 1 has; NumPy 2 has 64."""
MOST_TENSORS = 1024
"""Inputs of a request to a model that does not say what it takes."""
LISTS = 10_000
"""Lists and objects of a body that are never too many; of more, each is to be worth what it costs to read."""
PART = 65536
"""Values that are written at a time, so that a response that becomes too large is given up early."""
LEAST = {"f": 4, "b": 5}
"""Bytes of the shortest value with its comma, by the kind of an array: `0.0,` and `true,`; else two, as in `0,`."""
WHOLE = 2**53
"""From here on not each whole number has a float64."""


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """Why a request is not answered, in words for whoever sent it."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model."""

    name: str
    dtype: str | None = None
    """As NumPy names it, or `bytes`; None where the model does not say."""
    shape: tuple[int | None, ...] | None = None
    """None for a dimension that may vary, and for a shape that the model does not say."""
    text: bool = False
    """Whether it may be text as well where no type is said; its numbers then keep all their digits."""

    @property
    def column(self) -> bool:
        """Whether it is a column of a table: null is a missing value, and numbers of any type are converted."""
        return self.text and self.shape == (None,)


def parsed(body: bytes) -> dict[str, Any]:
    """Read a body that is to be a JSON object."""
    lists = body.count(b"[") + body.count(b"{")
    if lists > max(LISTS, len(body) // 8):
        raise Refused(f"the body has {lists} lists and objects, more than one for every 8 bytes")
    try:
        value = _loaded(body)
    except (ValueError, RecursionError):
        raise Refused("the body is no JSON") from None
    if not isinstance(value, dict):
        raise Refused("the body is no JSON object")
    return value


def parameters_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request or tensor; null, as Google's client sends to private endpoints, is none."""
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise Refused('"parameters" is to be an object')
    return parameters


def written(value: Any) -> bytes:
    """Write JSON that every reader takes: no bare NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def check_size(arrays: Iterable[np.ndarray], most: int) -> None:
    """Refuse, before anything is written, what cannot be written in `most` bytes."""
    least = 0
    for array in arrays:
        least += array.size * LEAST.get(array.dtype.kind, 2)
        if least <= most and array.dtype.kind == "O":
            least += sum(map(len, array.ravel().tolist()))
        if least > most:
            raise _too_large(most)


def joined(parts: Iterable[bytes], most: int) -> bytes:
    """Join the parts of a response; Refused as soon as they have more than `most` bytes."""
    found, size = [], 0
    for part in parts:
        size += len(part)
        if size > most:
            raise _too_large(most)
        found.append(part)
    return b"".join(found)


def _too_large(most: int) -> Refused:
    limit = f"more than {most} bytes, the most that is sent (ENVBUILD_MAX_RESPONSE_BYTES)"
    return Refused(f"the response would have {limit}: ask for fewer rows, or by protocol v2 for fewer outputs")


def column_of(value: Any, dtype: str | None, name: str) -> np.ndarray:
    """Make a column of a table: as `array_of`, and of one dimension; null is NaN among floats, else None."""
    if not isinstance(value, list):
        raise Refused(f"input {name!r} is to be a list")
    there = [it is not None for it in value]
    rest = [it for it in value if it is not None]
    if dtype not in (None, BYTES, "bool") and set(map(type, rest)) == {bool}:
        rest = list(map(int, rest))  # a library that has numbers alone takes a column of booleans as 0 and 1
    found = array_of(rest, dtype, name, text=True) if rest else np.empty(0, object if dtype == BYTES else dtype)
    if found.shape[1:] == (1,):  # as KServe's clients send a column
        found = found.reshape(-1)
    if all(there) or found.ndim != 1:
        return found
    if dtype is None and found.dtype.kind in "iu":
        found = found.astype("float64")
    floats = found.dtype.kind == "f"
    column = np.full(len(value), np.nan if floats else None, found.dtype if floats else object)
    column[there] = found
    return column


def array_of(value: Any, dtype: str | None, name: str, *, text: bool = False) -> np.ndarray:
    """Make an array of numbers or strings, exactly of this type; Refused where that would change a value."""
    if dtype == BYTES or (text and dtype is None and _has_text(value)):
        return _strings(value, name)
    found, values = _numbers(value, name)
    if dtype is None and text:
        return found
    if dtype is None:
        return _float(found, np.dtype("float32"), name) if found.dtype.kind == "f" else found
    wanted = np.dtype(dtype)
    if wanted.kind == "b" or found.dtype.kind == "b":
        if wanted.kind != found.dtype.kind:
            raise Refused(f"input {name!r} takes {dtype}: true and false are no numbers")
        return found
    return _whole(found, values, wanted, name) if wanted.kind in "iu" else _float(found, wanted, name)


def _has_text(value: Any) -> bool:
    """Whether the first value that is no list is text, and no word for a number."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, dict) or (isinstance(value, str) and value not in SPECIAL)


def check_shape(array: np.ndarray, tensor: Tensor) -> None:
    """Refuse an array that the model does not take."""
    if tensor.shape is None:
        return
    fits = len(array.shape) == len(tensor.shape)
    if not fits or any(want not in (None, have) for want, have in zip(tensor.shape, array.shape)):  # noqa: B905
        wanted = ", ".join("any" if it is None else str(it) for it in tensor.shape)
        raise Refused(f"input {tensor.name!r} has shape {list(array.shape)}, and the model takes [{wanted}]")


def plain(array: np.ndarray) -> Any:
    """Return lists of what JSON knows: each float as the shortest decimal that is its float64."""
    kind = array.dtype.kind
    if kind in "OSU":
        return _mapped(array.tolist(), _text)
    if kind in "biu":
        return array.tolist()
    if kind == "c":
        raise Refused("the model answers with complex numbers, which JSON has not", 500)
    # bfloat16 is of no kind that NumPy knows; each of its values, and of float16's, is a float32.
    floats = array if array.dtype in (np.float32, np.float64) else array.astype("float32")
    values = floats.tolist()
    return values if np.isfinite(floats).all() else _mapped(values, _special)


def _loaded(body: bytes) -> Any:
    text = body.decode("utf-8-sig")
    return json.loads(text, parse_constant=SPECIAL.__getitem__, parse_int=_integer if LONG.search(text) else None)


def _integer(digits: str) -> float:
    """Read an integer, as a float where no type of integers holds it: inputs of floats take it."""
    if len(digits) <= LONGEST and -(2**63) <= (value := int(digits)) < 2**64:
        return value
    return float(digits)


def _numbers(value: Any, name: str) -> tuple[np.ndarray, list[Any]]:
    """Return an array of numbers, and the same numbers in a row as JSON had them.

    NumPy first gets them as objects. For a list with one long string it would reserve that length for each value.
    """
    try:
        objects = np.array(value, dtype=object)
        values = objects.ravel().tolist()
        kinds = set(map(type, values))
        if str in kinds:
            values = [SPECIAL[it] if type(it) is str else it for it in values]
    except (ValueError, KeyError):
        raise _no_numbers(name) from None
    if not kinds <= {bool, int, float, str, Special}:
        raise _no_numbers(name)
    if bool in kinds and len(kinds) > 1:
        raise Refused(f"input {name!r} has both numbers and true or false")
    check_rank(objects.ndim, name)
    found = np.array(values).reshape(objects.shape)
    if found.dtype.kind not in "biuf":
        raise _no_numbers(name)
    if not all(isinstance(values[at], Special) for at in np.flatnonzero(np.isinf(found))):
        raise Refused(f'input {name!r} has a number too large for any type; an infinity is the word "Infinity"')
    return found, values


def check_rank(rank: int, name: str) -> None:
    """Refuse more dimensions than every release of NumPy has."""
    if rank > MOST_DIMENSIONS:
        raise Refused(f"input {name!r} has {rank} dimensions, and a tensor may have {MOST_DIMENSIONS}")


def _no_numbers(name: str) -> Refused:
    return Refused(f"input {name!r} must be numbers, in rows of equal length")


def _whole(found: np.ndarray, values: list[Any], wanted: np.dtype, name: str) -> np.ndarray:
    limits = np.iinfo(wanted)
    refused = Refused(f"input {name!r} takes {wanted.name}: whole numbers from {limits.min} to {limits.max}")
    if found.dtype.kind == "f":  # so are numbers below zero and above 2**63 together, whose last digits are lost then
        if not all(map(_is_whole, values)):
            raise refused
        found = np.array(values, dtype=object).reshape(found.shape)
    if found.size and not (limits.min <= int(found.min()) and int(found.max()) <= limits.max):
        raise refused
    return found.astype(wanted)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < WHOLE)


def _float(found: np.ndarray, wanted: np.dtype, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = found.astype(wanted)
    if (np.isinf(cast) & np.isfinite(found)).any():
        raise Refused(f"input {name!r} takes {wanted.name}, which has no number as large as one of these")
    return cast


def _strings(value: Any, name: str) -> np.ndarray:
    shape, level = [], [value]
    while level and isinstance(level[0], list):
        lengths = {len(it) if isinstance(it, list) else -1 for it in level}
        if len(lengths) > 1:
            raise Refused(f"input {name!r} has rows of different lengths")
        shape.append(lengths.pop())
        check_rank(len(shape), name)
        level = [it for row in level for it in row]
    array = np.empty(len(level), dtype=object)
    array[:] = [_bytes(it, name) for it in level]
    return array.reshape(shape)


def _bytes(value: Any, name: str) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (TypeError, KeyError, ValueError, binascii.Error):
        raise Refused(f'input {name!r} is to be strings, or {{"b64": "..."}} for bytes') from None


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def _special(value: float) -> Any:
    if value - value == 0:  # finite
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - only NaN is not itself


def _mapped(value: Any, change: Any) -> Any:
    return [_mapped(it, change) for it in value] if isinstance(value, list) else change(value)
