"""The OpenAPI description of the routes; what a tensor's name and shape may be depends on the model."""

from __future__ import annotations

from typing import Any

from serving.arrays import MOST_DIMENSIONS
from serving.settings import Settings
from serving.tensors import DATATYPES

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


def description(settings: Settings) -> dict[str, Any]:
    """Describe the routes of these settings."""
    v1, v2 = f"/v1/models/{settings.model_name}", f"/v2/models/{settings.model_name}"
    ready, flags = _object(name=TEXT, ready={"type": "boolean"}), {"type": "boolean"}
    predict = _post(_instances(settings), _object(predictions={"type": "array"}))
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
        f"{v2}/infer": _post(_tensors(), _object(model_name=TEXT, outputs={"type": "array", "items": _tensor()})),
    }
    return {"openapi": "3.1.0", "info": {"title": "envbuild-fastapi", "version": "1"}, "paths": paths}


def _instances(settings: Settings) -> dict[str, Any]:
    rows = {"type": "array", "items": ANY, "minItems": 1, "maxItems": settings.most_rows}
    return _object(instances=rows) | {"properties": {"instances": rows, "parameters": PARAMETERS}}


def _tensors() -> dict[str, Any]:
    outputs = {"type": ["array", "null"], "items": _object(name=TEXT), "uniqueItems": True}
    inputs = {"type": "array", "items": _tensor(), "minItems": 1}
    more = {"id": {"type": ["string", "null"]}, "outputs": outputs, "parameters": PARAMETERS}
    return _object(inputs=inputs) | {"properties": {"inputs": inputs, **more}}


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
