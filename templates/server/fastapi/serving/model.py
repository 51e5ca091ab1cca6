"""A model: what it takes, what it gives, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from serving.arrays import BYTES, Tensor

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A model that can be called."""

    platform: str
    """As protocol v2 names it."""
    inputs: tuple[Tensor, ...]
    """Empty where the model does not say what it takes."""
    outputs: tuple[Tensor, ...]
    call: Callable[[Arrays], Arrays]
    """From all inputs by name, or one without a name, to all outputs by name."""


def warm_up(model: Model) -> bool:
    """Call a model once with zeros, so that the first request need not wait for what is made then.

    False where the model leaves open what it takes, and zeros of some shape were not what it can be called with.
    """
    if not model.inputs or not all(it.dtype and it.shape is not None for it in model.inputs):
        return False
    closed = all(it.dtype != BYTES and not it.column and None not in (it.shape or ())[1:] for it in model.inputs)
    try:
        model.call({it.name: _zeros(it) for it in model.inputs})
    except Exception:
        if closed:
            raise
        return False
    return True


def _zeros(tensor: Tensor) -> np.ndarray:
    shape = [1 if it is None else it for it in tensor.shape or ()]
    if tensor.dtype == BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=tensor.dtype)
