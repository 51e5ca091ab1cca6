"""The OpenAPI description of the routes, with the inputs that the model says it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from serving.arrays import BYTES, MOST_DIMENSIONS, Tensor
from serving.settings import Settings
from serving.tensors import DATATYPES, NAMES, datatype_of

FAULTS = {
    400: "the request does not fit the model or the protocol",
    408: "the request took too long to arrive",
    413: "the body is too large",
    415: "the body is compressed",
    500: "the model failed",
    503: "the model is not loaded, or too many requests wait for it",
}
ANY: dict[str, Any] = {}
TEXT = {"type": "string"}
PARAMETERS = {"type": ["object", "null"]}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": MOST_DIMENSIONS}


def description(settings: Settings, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Describe the routes of these settings, for a model with these inputs; without inputs, for any model."""
    v1, v2 = f"/v1/models/{settings.model_name}", f"/v2/models/{settings.model_name}"
    ready, flags = _object(name=TEXT, ready={"type": "boolean"}), {"type": "boolean"}
    predict = _post(_instances(settings, inputs), _object(predictions={"type": "array"}))
    paths = {
        settings.health_route: _get(_object(status=TEXT)),
        settings.predict_route: predict,
        "/v1/models": _get(_object(models={"type": "array", "items": TEXT})),
        v1: _get(ready),
        f"{v1}:predict": predict,
        "/v2": _get(_object(name=TEXT, version=TEXT, extensions={"type": "array", "items": TEXT})),
        "/v2/health/live": _get(_object(live=flags)),
        "/v2/health/ready": _get(_object(live=flags, ready=flags)),
        v2: _get(_object(name=TEXT, platform=TEXT, inputs={"type": "array"}, outputs={"type": "array"})),
        f"{v2}/ready": _get(ready),
        f"{v2}/infer": _post(_tensors(inputs), _object(model_name=TEXT, outputs={"type": "array", "items": _tensor()})),
    }
    return {"openapi": "3.1.0", "info": {"title": "envbuild-fastapi", "version": "1"}, "paths": paths}


def _instances(settings: Settings, inputs: Sequence[Tensor]) -> dict[str, Any]:
    values = {it.name: _values(it, (it.shape or ())[1:]) if it.shape else ANY for it in inputs}
    row = ANY if not values else _object(**values) if len(values) > 1 else next(iter(values.values()))
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": settings.most_rows}
    return _object(instances=rows) | {"properties": {"instances": rows, "parameters": PARAMETERS}}


def _values(tensor: Tensor, shape: Sequence[int | None]) -> dict[str, Any]:
    """Describe lists in lists of this shape."""
    if not shape:
        value = _value(str(tensor.dtype))
        return {"anyOf": [value, {"type": "null"}]} if tensor.column else value
    length = {} if shape[0] is None else {"minItems": shape[0], "maxItems": shape[0]}
    return {"type": "array", "items": _values(tensor, shape[1:]), **length}


def _value(dtype: str) -> dict[str, Any]:
    if dtype in (BYTES, "bool"):
        return {"type": "string" if dtype == BYTES else "boolean"}
    if dtype not in NAMES:
        return ANY
    limits: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    kind, number = ("number", float) if dtype.startswith("float") else ("integer", int)
    return {"type": kind, "minimum": number(limits.min), "maximum": number(limits.max)}


def _tensors(inputs: Sequence[Tensor]) -> dict[str, Any]:
    outputs = {"type": ["array", "null"], "items": _object(name=TEXT), "uniqueItems": True}
    wanted = {"type": "array", "items": _tensor(), "minItems": 1}
    if inputs and all(it.dtype and it.shape is not None for it in inputs):
        wanted = {"type": "array", "items": {"anyOf": list(map(_input, inputs))}, "minItems": len(inputs)}
        wanted["examples"] = [[_example(it) for it in inputs]]
    more = {"id": {"type": ["string", "null"]}, "outputs": outputs, "parameters": PARAMETERS}
    return _object(inputs=wanted) | {"properties": {"inputs": wanted, **more}}


def _input(tensor: Tensor) -> dict[str, Any]:
    lengths = [{"type": "integer", "minimum": 0} if it is None else {"const": it} for it in tensor.shape or ()]
    shape = {"type": "array", "prefixItems": lengths, "minItems": len(lengths), "maxItems": len(lengths)}
    data = {"type": "array", "items": _values(tensor, ())}
    datatype = {"const": datatype_of(str(tensor.dtype))}
    return _object(name={"const": tensor.name}, shape=shape, datatype=datatype, data=data)


def _example(tensor: Tensor) -> dict[str, Any]:
    shape = [1 if it is None else it for it in tensor.shape or ()]
    zero = {BYTES: "", "bool": False}.get(str(tensor.dtype), 0)
    data = [zero] * math.prod(shape)
    return {"name": tensor.name, "shape": shape, "datatype": datatype_of(str(tensor.dtype)), "data": data}


def _tensor() -> dict[str, Any]:
    return _object(name=TEXT, shape=SHAPE, datatype={"enum": list(DATATYPES)}, data={"type": "array"})


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _get(answer: dict[str, Any]) -> dict[str, Any]:
    """Describe a question; 503 has the same form, and says that it is not ready."""
    return {"get": {"responses": {"200": _json("the answer", answer), "503": _json("not ready", ANY)}}}


def _post(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    faults = {str(code): _json(text, _object(error=TEXT)) for code, text in FAULTS.items() if code != 408}
    responses = {"200": _json("the model's answer", answer), "408": {"description": FAULTS[408]}, **faults}
    return {"post": {"requestBody": {"required": True, **_content(body)}, "responses": responses}}


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, **_content(schema)}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
