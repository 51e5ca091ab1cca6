"""Load a saved model in this environment and compare its predictions with those of the training process.

    python examples/predict.py MODEL_FOLDER [--expected FOLDER]

Prints one JSON line; the exit code is 1 if a prediction is off by more than 1e-6. Equal environments on one machine
give equal bits, so 0.0 is what to expect there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

LIMIT = 1e-6


def main() -> None:
    options = _options()
    tf.config.set_visible_devices([], "GPU")  # as in training: another device rounds differently
    path = _expected_path(options.model, options.expected)
    try:
        expected = json.loads(path.read_text(encoding="utf-8"))
        predictions = _predict(options.model, expected["inputs"])
    except OSError as error:
        sys.exit(f"cannot be read; make both by examples/train.py: {error}")
    difference = _largest_difference(predictions, np.asarray(expected["predictions"]))
    facts = {"largest_difference": difference, "predictions": predictions.tolist(), "tensorflow": tf.__version__}
    print(json.dumps(facts))
    if not difference <= LIMIT:  # so that NaN fails too
        sys.exit(f"the largest difference is {difference}, more than {LIMIT}; trained by {expected['tensorflow']}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predict with a saved model and compare with its training process.")
    parser.add_argument("model", type=Path, metavar="MODEL_FOLDER", help="the SavedModel that train.py wrote")
    parser.add_argument(
        "--expected", type=Path, metavar="FOLDER", help="where expected.json is, if not MODEL_FOLDER-expected.json"
    )
    return parser.parse_args()


def _expected_path(model: Path, folder: Path | None) -> Path:
    return model.with_name(f"{model.name}-expected.json") if folder is None else folder / "expected.json"


def _predict(folder: Path, inputs: list[list[float]]) -> np.ndarray:
    """Predict through the serving signature, the one door that every TensorFlow version opens alike."""
    loaded = tf.saved_model.load(str(folder))  # keep a name for it: it owns the variables that the signature reads
    serve = loaded.signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    (output,) = serve(**{name: tf.constant(inputs, tf.float32)}).values()
    return output.numpy()


def _largest_difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")


if __name__ == "__main__":
    main()
