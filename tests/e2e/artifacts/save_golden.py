"""Take a golden sample of arrays and tensors with the standalone capture file: `save_golden.py FOLDER CAPTURE_FOLDER`."""

# The frameworks are installed only where this runs.
# mypy: ignore-errors

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np


def tensors(values) -> dict:
    """The same as tensors of the framework that is installed, also as its bfloat16."""
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        tensor = torch.tensor(values, requires_grad=True)
        return {
            "tensor": tensor,
            "turned": tensor.T,
            "brain": tensor.to(torch.bfloat16),
            "brain_turned": tensor.T.bfloat16(),
        }
    tf = importlib.import_module("tensorflow")
    tensor = tf.Variable(values)
    turned = tf.transpose(tensor)
    return {
        "tensor": tensor,
        "turned": turned,
        "brain": tf.cast(tensor, tf.bfloat16),
        "brain_turned": tf.cast(turned, tf.bfloat16),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, sys.argv[2])
    golden_sample = importlib.import_module("capture").golden_sample
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {
        "plain": values,
        "big_endian": values.astype(">f4"),
        "fortran": np.asfortranarray(values),
        "strided": np.repeat(values, 2, axis=1)[:, ::2],
        "scalar": np.float32(7),
        "flags": values > 2,
        "complex": values.astype(np.complex64),
    }
    sample = golden_sample(arrays, tensors(values), rtol=0.5)
    (folder / "golden.json").write_text(json.dumps(sample))
    parts = {"inputs/" + name: np.ascontiguousarray(array) for name, array in arrays.items()}
    np.savez_compressed(folder / "golden.npz", outputs=values, **parts)
    refused = []
    for array in (np.array([b"\xff"]), np.array([object()]), np.zeros(1 << 20)):
        try:
            golden_sample(array, values)
        except ValueError as error:
            refused.append(str(error))
    (folder / "refused.json").write_text(json.dumps(refused))


main()
