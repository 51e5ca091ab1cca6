"""`{"instances": [...]}` -> `{"predictions": [...]}`, which Vertex AI and KServe's protocol v1 share.

As TensorFlow Serving's REST API has it ("Predict API", row format): an instance is the value of the only input, or an
object of values by the names of the inputs; a prediction is the value of the only output, or such an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.arrays import Refused, Tensor, array_of, check_shape, parameters_of, parsed, plain, written


def decoded(body: bytes, inputs: Sequence[Tensor], most_rows: int) -> dict[str, np.ndarray]:
    """Return the inputs by name, a row for each instance."""
    value = parsed(body)
    instances = value.get("instances")
    if not isinstance(instances, list) or not instances:
        raise Refused('the body is to be {"instances": [...]}, with at least one')
    parameters_of(value)
    if len(instances) > most_rows:
        raise Refused(f"there are {len(instances)} instances, and a request may have {most_rows}")
    columns = _columns(instances, [it.name for it in inputs])
    specs = {it.name: it for it in inputs}
    arrays = {}
    for name, column in columns.items():
        spec = specs.get(name, Tensor(name))
        arrays[name] = array_of(column, spec.dtype, name)
        check_shape(arrays[name], spec)
    return arrays


def encoded(outputs: Mapping[str, np.ndarray], rows: int) -> bytes:
    """Return the answer, a prediction for each instance."""
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != rows:
            shape = list(array.shape)
            raise Refused(f"output {name!r} has shape {shape}, no row for each instance: ask for it by protocol v2")
    columns = {name: plain(array) for name, array in outputs.items()}
    if len(columns) == 1:
        return written({"predictions": next(iter(columns.values()))})
    return written({"predictions": [{name: column[at] for name, column in columns.items()} for at in range(rows)]})


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
    for at, instance in enumerate(instances):
        missing = [name for name in known if name not in instance]
        unknown = [name for name in instance if name not in known]
        if missing or unknown:
            wrong = f"no input {missing[0]!r}" if missing else f"an input {unknown[0]!r}"
            raise Refused(f"instance {at} has {wrong}, and the model takes {_listed(known)}")
    return {name: [it[name] for it in instances] for name in known}


def _listed(names: list[str]) -> str:
    return ", ".join(repr(it) for it in names)
