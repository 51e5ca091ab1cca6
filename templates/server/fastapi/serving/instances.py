"""`{"instances": [...]}` -> `{"predictions": [...]}`, which Vertex AI and KServe's protocol v1 share.

As TensorFlow Serving's REST API has it ("Predict API", row format): an instance is the value of the only input, or an
object of values by the names of the inputs; a prediction is the value of the only output, or such an object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from serving.arrays import (
    MOST_TENSORS,
    PART,
    Refused,
    Tensor,
    array_of,
    check_shape,
    check_size,
    column_of,
    joined,
    parameters_of,
    parsed,
    plain,
    written,
)


def decoded(body: bytes, inputs: Sequence[Tensor], most_rows: int) -> dict[str, np.ndarray]:
    """Return the inputs by name, a row for each instance."""
    value = parsed(body)
    instances = value.get("instances")
    if not isinstance(instances, list) or not instances:
        raise Refused('the body is to be {"instances": [...]}, with at least one')
    parameters_of(value)
    if len(instances) > most_rows:
        raise Refused(f"there are {len(instances)} instances, and a request may have {most_rows}")
    names = [it.name for it in inputs]
    if len(names) > 1 and all(it.column for it in inputs):  # a table's rows may be lists in the order of its columns
        same = len(names)
        instances = [dict(zip(names, it)) if isinstance(it, list) and len(it) == same else it for it in instances]  # noqa: B905
    columns = _columns(instances, names)
    specs = {it.name: it for it in inputs}
    arrays = {}
    for name, column in columns.items():
        spec = specs.get(name, Tensor(name))
        read = column_of if spec.column else partial(array_of, text=spec.text)
        arrays[name] = read(column, spec.dtype, name)
        check_shape(arrays[name], spec)
    return arrays


def encoded(outputs: Mapping[str, np.ndarray], rows: int, most_bytes: int) -> bytes:
    """Return the answer, a prediction for each instance."""
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != rows:
            shape = list(array.shape)
            raise Refused(f"output {name!r} has shape {shape}, no row for each instance: ask for it by protocol v2")
    check_size(outputs.values(), most_bytes)
    return joined(_parts(outputs, rows), most_bytes)


def _parts(outputs: Mapping[str, np.ndarray], rows: int) -> Iterator[bytes]:
    """Write some rows at a time."""
    step = max(1, PART * rows // max(1, sum(it.size for it in outputs.values())))
    yield b'{"predictions":['
    for at in range(0, rows, step):
        columns = [plain(array[at : at + step]) for array in outputs.values()]
        found = columns[0] if len(columns) == 1 else [dict(zip(outputs, row)) for row in zip(*columns)]  # noqa: B905
        yield (b"," if at else b"") + written(found)[1:-1]
    yield b"]}"


def _columns(instances: list[Any], names: list[str]) -> dict[str, list[Any]]:
    """Turn rows into columns by the names of the inputs."""
    named = [isinstance(it, dict) and set(it) != {"b64"} for it in instances]
    if not any(named):
        if len(names) > 1:
            raise Refused(f"the model takes several inputs: give each instance as an object of {_listed(names)}")
        return {(names or [""])[0]: instances}
    if not all(named):
        raise Refused(f"instance {named.index(False)} is no object of inputs, and others are")
    known = names or list(instances[0])
    if len(known) > max(len(names), MOST_TENSORS):
        raise Refused(f"instance 0 has {len(known)} inputs, and a request may have {MOST_TENSORS}")
    known_names = set(known)
    for at, instance in enumerate(instances):
        missing = [name for name in known if name not in instance]
        unknown = [name for name in instance if name not in known_names]
        if missing or unknown:
            wrong = f"no input {missing[0]!r}" if missing else f"an input {unknown[0]!r}"
            raise Refused(f"instance {at} has {wrong}, and the model takes {_listed(known)}")
    return {name: [it[name] for it in instances] for name in known}


def _listed(names: list[str]) -> str:
    return ", ".join(repr(it) for it in names)
