"""KServe's protocol v2, the Open Inference Protocol: github.com/kserve/open-inference-protocol, "HTTP/REST"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.arrays import BYTES, Refused, Tensor, array_of, check_shape, parameters_of, parsed, plain, written

DATATYPES = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BYTES": BYTES,
}
"""The protocol's types ("Tensor Data Types"), by NumPy's names."""
NAMES = {name: datatype for datatype, name in DATATYPES.items()}
NO_BINARY = "the binary tensor data extension is not spoken here: send and ask for tensors as JSON"


@dataclass(frozen=True)
class Request:
    """What is asked."""

    inputs: dict[str, np.ndarray]
    outputs: tuple[str, ...] = ()
    """Empty for all that the model has."""
    id: str | None = None


def decoded(body: bytes, inputs: Sequence[Tensor], most_rows: int) -> Request:
    """Read an inference request."""
    value = parsed(body)
    if not isinstance(value.get("inputs"), list) or not value["inputs"]:
        raise Refused('the body is to be {"inputs": [{"name", "shape", "datatype", "data"}, ...]}')
    if value.get("id") is not None and not isinstance(value["id"], str):
        raise Refused('"id" is to be a string')
    _check_parameters(value)
    specs = {it.name: it for it in inputs}
    arrays: dict[str, np.ndarray] = {}
    for item in value["inputs"]:
        name, array = _input(item, specs)
        if name in arrays:
            raise Refused(f"input {name!r} is there twice")
        arrays[name] = array
        _check_rows(name, array, specs.get(name), most_rows)
    for name in specs:
        if name not in arrays:
            raise Refused(f"input {name!r} is missing")
    return Request(inputs=arrays, outputs=_wanted(value.get("outputs")), id=value.get("id"))


def encoded(model_name: str, request: Request, outputs: Mapping[str, np.ndarray]) -> bytes:
    """Write an inference response."""
    for name in request.outputs:
        if name not in outputs:
            raise Refused(f"the model has no output {name!r}; it has {', '.join(map(repr, outputs))}")
    answer: dict[str, Any] = {"model_name": model_name}
    if request.id is not None:
        answer["id"] = request.id
    answer["outputs"] = [_output(name, outputs[name]) for name in request.outputs or outputs]
    return written(answer)


def described(model_name: str, platform: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, Any]:
    """Return the model's metadata; tensors of which the model says neither type nor shape are left out."""
    return {
        "name": model_name,
        "platform": platform,
        "inputs": [_described(it) for it in inputs if it.dtype and it.shape is not None],
        "outputs": [_described(it) for it in outputs if it.dtype and it.shape is not None],
    }


def datatype_of(dtype: str) -> str:
    """Return the protocol's name of a type; a bfloat16 is a float32 in JSON."""
    return NAMES.get("float32" if dtype == "bfloat16" else dtype, dtype.upper())


def _input(item: Any, specs: Mapping[str, Tensor]) -> tuple[str, np.ndarray]:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise Refused("each input is to be an object with a name")
    name = item["name"]
    _check_parameters(item)
    if specs and name not in specs:
        raise Refused(f"the model has no input {name!r}; it takes {', '.join(map(repr, specs))}")
    spec = specs.get(name, Tensor(name))
    datatype = str(item.get("datatype"))
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise Refused(f"input {name!r} has the datatype {datatype!r}, which is none of {', '.join(DATATYPES)}")
    if spec.dtype and datatype_of(spec.dtype) != datatype:
        raise Refused(f"input {name!r} is {datatype}, and the model takes {datatype_of(spec.dtype)}")
    array = _shaped(array_of(item.get("data"), dtype, name), item.get("shape"), name)
    check_shape(array, spec)
    return name, array


def _shaped(array: np.ndarray, shape: Any, name: str) -> np.ndarray:
    """Give an array its shape; data may be flat or nested ("Tensor Data"), and nested has to be of that shape."""
    if not isinstance(shape, list) or not all(type(it) is int and it >= 0 for it in shape):
        raise Refused(f"input {name!r} has no shape, a list of whole numbers")
    count = 1
    for length in shape:
        count *= length
    if array.size != count or (array.ndim > 1 and list(array.shape) != shape):
        raise Refused(f"input {name!r} has the shape {shape}, and data of the shape {list(array.shape)}")
    return array.reshape(shape)


def _output(name: str, array: np.ndarray) -> dict[str, Any]:
    dtype = BYTES if array.dtype.kind in "OSU" else array.dtype.name
    shape = list(array.shape)
    return {"name": name, "shape": shape, "datatype": datatype_of(dtype), "data": plain(array.reshape(-1))}


def _wanted(outputs: Any) -> tuple[str, ...]:
    if outputs is None:
        return ()
    for item in outputs if isinstance(outputs, list) else [None]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise Refused('"outputs" is to be a list of objects with a name')
        _check_parameters(item)
    return tuple(it["name"] for it in outputs)


def _check_parameters(value: Mapping[str, Any]) -> None:
    parameters = parameters_of(value)
    if any(parameters.get(it) for it in ("binary_data_size", "binary_data", "binary_data_output")):
        raise Refused(NO_BINARY)


def _check_rows(name: str, array: np.ndarray, spec: Tensor | None, most_rows: int) -> None:
    batched = spec is None or spec.shape is None or spec.shape[:1] == (None,)
    if batched and array.ndim and array.shape[0] > most_rows:
        raise Refused(f"input {name!r} has {array.shape[0]} rows, and a request may have {most_rows}")


def _described(tensor: Tensor) -> dict[str, Any]:
    shape = [-1 if it is None else it for it in tensor.shape or ()]
    return {"name": tensor.name, "datatype": datatype_of(tensor.dtype or ""), "shape": shape}
