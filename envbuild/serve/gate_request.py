"""The request that the gate sends for a golden sample, and what the answer says of its predictions."""

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any

from envbuild.capture.golden import NUMERIC
from envbuild.manifest.model import Array, Golden
from envbuild.verify.findings import Finding
from envbuild.verify.golden.arrays import DamagedError, Element, content, elements, width_of
from envbuild.verify.golden.check import judged, paired

_LARGEST = 1_400_000
"""Bytes of a request's rows: Vertex AI's shared endpoints take 1.5 MB in all (custom container requirements)."""
_MOST = 1024
"""Rows of a request, which `--server fastapi` accepts by default."""
_DEEPEST = 32
"""Dimensions; NumPy has at most 64, and models fewer than ten."""
PREDICTED = "serve-golden"
"""The id of the rule."""
NO_PREDICTIONS = "clients get no predictions, or wrong ones"
_BY_CONTRACT = (
    "have the predict route answer as Vertex AI's contract says: one prediction for each instance, in their order"
)


class UnfitError(Exception):
    """Numbers that JSON cannot represent, or JSON that holds no numbers."""


def request_of(golden: Golden) -> tuple[bytes, Golden]:
    """Return `{"instances": [...]}`, and as much of the sample as is in it; UnfitError where none can be.

    Plain values of one input, objects by name of several and of a table, as TensorFlow Serving's row format and Vertex
    AI's custom containers have it. What is larger than a request to Vertex AI may be loses its last rows.
    """
    names = [it.name for it in golden.inputs]
    by_name = golden.table or len(names) > 1
    if len(names) > 1 and not golden.table and any(not it or it.isdigit() for it in names):
        raise UnfitError("several inputs without names go by their places, which a request has not")
    if scalar := next((it for it in golden.inputs if not it.shape), None):
        raise UnfitError(f"input {scalar.name} has no batch".replace("  ", " "))
    columns = [_nested(_elements(it), it.shape) for it in golden.inputs]
    if len({len(it) for it in columns}) != 1:
        raise UnfitError("its inputs are not batches of one length")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if by_name else columns[0]
    sizes = accumulate(len(json.dumps(it)) + len(", ") for it in rows)
    fitting = sum(it <= _LARGEST for it in islice(sizes, _MOST))
    if not fitting:
        raise UnfitError(f"one row of it is larger than a request may be, {_LARGEST} bytes")
    body = json.dumps({"instances": rows[:fitting]}, allow_nan=False).encode()
    if fitting == len(rows):
        return body, golden
    if any(it.shape[:1] != (len(rows),) for it in golden.outputs):
        raise UnfitError("it is larger than a request may be, and its outputs have no row for each instance")
    inputs, outputs = (tuple(_cut(it, fitting) for it in arrays) for arrays in (golden.inputs, golden.outputs))
    return body, replace(golden, inputs=inputs, outputs=outputs)


def held_answer(golden: Golden, body: str) -> Iterator[Finding]:
    """Compare the answer of a predict route with the recorded outputs, within the sample's tolerance.

    JSON has no types, so that numbers are compared as numbers, and text as text.
    """
    try:
        columns = _columns(body)
        named = [Array(name=it, dtype="object", shape=(), data="") for it in columns]
        pairs = [(it, _decoded(it, came.name, columns[came.name])) for it, came in paired(golden.outputs, named)]
        recorded = tuple(_plain(it.name, it.shape, _elements(it), text=_is_text(it)) for it, _ in pairs)
    except (UnfitError, LookupError) as error:
        says = str(error.args[0])
        yield Finding(about="golden", rule=PREDICTED, agrees=False, says=says, why=NO_PREDICTIONS, todo=_BY_CONTRACT)
        return
    found = [came for _, came in pairs]
    yield from (replace(it, rule=PREDICTED) for it in judged(replace(golden, outputs=recorded), found))


def _decoded(recorded: Array, name: str, rows: list[Any]) -> Array:
    """An output of an answer, read as the recorded one is."""
    shape, text = _shape(rows), _is_text(recorded)
    values = list(_flat(rows, shape, text))
    if text and "NaN" not in _elements(recorded):  # a server's word for what is missing
        values = [None if it == "NaN" else it for it in values]
    return _plain(name, shape, values, text=text)


def _is_text(array: Array) -> bool:
    return any(isinstance(it, str) for it in _elements(array))


def _elements(array: Array) -> Sequence[Element]:
    try:
        if not NUMERIC.fullmatch(array.dtype):
            return [None if it != it else it for it in elements(array)]  # noqa: PLR0124 - so is NaN
        if width_of(array.dtype) and not array.dtype.startswith("complex"):
            return elements(array)
    except DamagedError as error:
        raise UnfitError(f"{array.name or 'an array'} is damaged: {error}") from error
    raise UnfitError(f"JSON has no numbers of the type {array.dtype}")


def _cut(array: Array, rows: int) -> Array:
    width, shape = width_of(array.dtype), (rows, *array.shape[1:])
    count = math.prod(shape)
    data = content(array)[: count * width] if width else json.dumps(elements(array)[:count]).encode()
    return replace(array, shape=shape, data=base64.b64encode(data).decode(), sha256=None)


def _nested(values: Sequence[Element], shape: Sequence[int]) -> Any:
    """Nest values as lists; NaN and infinity are the words that the JSON form of Protocol Buffers has for them."""
    if not shape:
        value = values[0]
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value
    step = math.prod(shape[1:])
    return [_nested(values[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]


def _columns(body: str) -> Mapping[str, list[Any]]:
    """The values of each output of an answer: predictions are objects by name where there are several."""
    try:
        predictions = json.loads(body)["predictions"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnfitError(f"the answer has no predictions: {body[:200]}") from error
    if not isinstance(predictions, list):
        raise UnfitError(f"the predictions are not a list: {body[:200]}")
    if not predictions or not all(isinstance(it, dict) for it in predictions):
        return {"": predictions}
    names = predictions[0].keys()
    if any(it.keys() != names for it in predictions):
        raise UnfitError("the predictions do not all have the same outputs")
    return {str(name): [it[name] for it in predictions] for name in names}


def _shape(value: Any) -> tuple[int, ...]:
    """Of the first of everything; whether all are like it shows when they are read."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    if len(shape) > _DEEPEST:
        raise UnfitError(f"the predictions have {len(shape)} dimensions")
    return tuple(shape)


def _flat(value: Any, shape: Sequence[int], text: bool) -> Iterator[Element]:
    if not shape:
        yield value if text and (value is None or isinstance(value, str)) else _number(value)
        return
    if not isinstance(value, list) or len(value) != shape[0]:
        raise UnfitError("the predictions do not all have the same shape")
    for it in value:
        yield from _flat(it, shape[1:], text)


def _number(value: Any) -> float:
    """A number of JSON, or what servers say for one that JSON has not."""
    if value in ("NaN", "Infinity", "-Infinity", None):
        return float(value or "NaN")
    if not isinstance(value, int | float):
        raise UnfitError(f"a prediction is not a number: {json.dumps(value)[:100]}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plain(name: str, shape: tuple[int, ...], values: Sequence[Element], *, text: bool) -> Array:
    """An array of float64, where NaN stands for what is missing, or of text."""
    if text:
        data = json.dumps(values).encode()
    else:
        data = struct.pack(f"<{len(values)}d", *(math.nan if it is None else it for it in values))
    return Array(name=name, dtype="object" if text else "float64", shape=shape, data=base64.b64encode(data).decode())
