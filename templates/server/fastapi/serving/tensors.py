"""KServe's protocol v2, the Open Inference Protocol: github.com/kserve/open-inference-protocol, "HTTP/REST"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.arrays import (
    BYTES,
    MOST_TENSORS,
    PART,
    Refused,
    Tensor,
    array_of,
    check_rank,
    check_shape,
    check_size,
    column_of,
    joined,
    parameters_of,
    parsed,
    plain,
    written,
)

DATATYPES = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BYTES": BYTES,
}
"""The protocol's types ("Tensor Data Types"), by NumPy's names."""
NAMES = {name: datatype for datatype, name in DATATYPES.items()}
MOST_EMPTY = 1 << 20
"""Product of the other dimensions of a tensor that has one of length 0: a model may make values from its shape."""
NO_BINARY = "the binary tensor data extension is not supported; send JSON"


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
    if len(value["inputs"]) > max(len(specs), MOST_TENSORS):
        raise Refused(f"there are {len(value['inputs'])} inputs, and a request may have {MOST_TENSORS}")
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


def encoded(model_name: str, request: Request, outputs: Mapping[str, np.ndarray], most_bytes: int) -> bytes:
    """Write an inference response."""
    for name in request.outputs:
        if name not in outputs:
            raise Refused(f"the model has no output {name!r}; it has {', '.join(map(repr, outputs))}")
    wanted = {name: outputs[name] for name in request.outputs or outputs}
    check_size(wanted.values(), most_bytes)
    return joined(_parts(model_name, request.id, wanted), most_bytes)


def _parts(model_name: str, request_id: str | None, outputs: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Write some values at a time."""
    head = {"model_name": model_name, **({} if request_id is None else {"id": request_id})}
    yield written(head)[:-1] + b',"outputs":['
    for number, (name, array) in enumerate(outputs.items()):
        dtype = BYTES if array.dtype.kind in "OSU" else array.dtype.name
        about = {"name": name, "shape": list(array.shape), "datatype": datatype_of(dtype)}
        yield (b"," if number else b"") + written(about)[:-1] + b',"data":['
        flat = array.reshape(-1)
        for at in range(0, flat.size, PART):
            yield (b"," if at else b"") + written(plain(flat[at : at + PART]))[1:-1]
        yield b"]}"
    yield b"]}"


def described(model_name: str, platform: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, Any]:
    """Return the model's metadata; tensors of which the model says neither type nor shape are left out.

    A column of a table of unknown type is called BYTES, and takes numbers too.
    """
    return {
        "name": model_name,
        "platform": platform,
        "inputs": [_described(it) for it in inputs if it.column or (it.dtype and it.shape is not None)],
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
    datatype = item.get("datatype")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        given = repr(datatype) if isinstance(datatype, str) else "no text"
        raise Refused(f"input {name!r} has the datatype {given}, which is none of {', '.join(DATATYPES)}")
    if spec.column:
        array = column_of(item.get("data"), spec.dtype or DATATYPES[datatype], name)
        shape = item.get("shape")
        flat = shape[:1] if isinstance(shape, list) and shape[1:] == [1] else shape  # as KServe's clients send a column
        return name, _shaped(array, flat, name)
    if spec.dtype and datatype_of(spec.dtype) != datatype:
        raise Refused(f"input {name!r} is {datatype}, and the model takes {datatype_of(spec.dtype)}")
    array = _shaped(array_of(item.get("data"), DATATYPES[datatype], name), item.get("shape"), name)
    check_shape(array, spec)
    return name, array


def _shaped(array: np.ndarray, shape: Any, name: str) -> np.ndarray:
    """Give an array its shape; data may be flat or nested ("Tensor Data"), and nested has to be of that shape."""
    if not isinstance(shape, list) or not all(type(it) is int and it >= 0 for it in shape):
        raise Refused(f"input {name!r} has no shape, a list of whole numbers")
    check_rank(len(shape), name)
    count = filled = 1
    for length in shape:
        count *= length
        filled *= max(length, 1)
        if filled > max(array.size, MOST_EMPTY):
            raise Refused(f"input {name!r} has a shape of more values than its data, which has {array.size}")
    if array.size != count or (array.ndim > 1 and list(array.shape) != shape):
        raise Refused(f"input {name!r} has the shape {shape}, and data of the shape {list(array.shape)}")
    return array.reshape(shape)


def _wanted(outputs: Any) -> tuple[str, ...]:
    if outputs is None:
        return ()
    for item in outputs if isinstance(outputs, list) else [None]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise Refused('"outputs" is to be a list of objects with a name')
        _check_parameters(item)
    names = tuple(it["name"] for it in outputs)
    if len(set(names)) < len(names):
        raise Refused('"outputs" names an output twice')
    return names


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
    return {"name": tensor.name, "datatype": datatype_of(tensor.dtype or BYTES), "shape": shape}
