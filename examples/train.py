"""Train a very small Keras model on fixed data, save it, and write down what it predicts.

    python examples/train.py MODEL_FOLDER [--expected FOLDER] [--manifest FILE]

Plain TensorFlow, 2.8 to the newest, Python 3.9 and later; CPU only, no network. envbuild is used only for --manifest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

SEED = 20


def main() -> None:
    options = _options()
    # Not by CUDA_VISIBLE_DEVICES: a manifest would record that as a fact of the run.
    tf.config.set_visible_devices([], "GPU")
    inputs, targets = _data()
    model = _trained(inputs, targets)
    _save(model, options.model)
    _write_expected(_expected_path(options.model, options.expected), model, inputs[:8])
    print(f"trained with TensorFlow {tf.__version__}, saved in {options.model}")
    _capture(options.model, options.manifest)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a very small Keras model and save it.")
    parser.add_argument("model", type=Path, metavar="MODEL_FOLDER", help="where the SavedModel goes")
    parser.add_argument(
        "--expected", type=Path, metavar="FOLDER", help="write expected.json here, not to MODEL_FOLDER-expected.json"
    )
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="capture this environment here")
    return parser.parse_args()


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(SEED)
    inputs = random.normal(size=(256, 4)).astype("float32")
    targets = np.sin(inputs[:, :1]) + inputs[:, 1:2] * inputs[:, 2:3]
    return inputs, targets


def _trained(inputs: np.ndarray, targets: np.ndarray) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(SEED)
    features = tf.keras.Input(shape=(4,), name="features")
    hidden = tf.keras.layers.Dense(16, activation="tanh")(features)
    model = tf.keras.Model(features, tf.keras.layers.Dense(1, name="prediction")(hidden))
    # Keras 3 would compile by XLA, whose rounding is not that of the saved graph.
    model.compile(optimizer="adam", loss="mse", jit_compile=False)
    model.fit(inputs, targets, batch_size=32, epochs=3, shuffle=False, verbose=0)
    return model


def _save(model: tf.keras.Model, folder: Path) -> None:
    """Save as a SavedModel, which Keras 3 calls export; its list of endpoints is left out."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        getattr(model, "export", model.save)(str(folder))


def _expected_path(model: Path, folder: Path | None) -> Path:
    return model.with_name(f"{model.name}-expected.json") if folder is None else folder / "expected.json"


def _write_expected(path: Path, model: tf.keras.Model, inputs: np.ndarray) -> None:
    # As a graph, like the saved one: eager TensorFlow, and predict in Keras 2.8, round differently in the last bit.
    predictions = tf.function(model)(tf.constant(inputs), training=False)
    facts = {
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
        "inputs": inputs.tolist(),
        "predictions": predictions.numpy().tolist(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path.with_suffix(".npz"), inputs=inputs, outputs=predictions.numpy())  # for `envbuild capture --golden`
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _capture(model: Path, manifest: Path | None) -> None:
    """Write the training manifest, or say how to get one from outside of this process."""
    outside = f"envbuild capture --python {sys.executable} --model {model} --out {manifest or 'manifest.json'}"
    if manifest is None:
        print(f"to capture this environment: {outside}")
        return
    try:
        import envbuild  # noqa: PLC0415 - optional: training needs no envbuild
    except ImportError:
        sys.exit(f"envbuild is not installed in this environment; capture it from outside: {outside}")
    envbuild.capture(model_uri=str(model), out=manifest)
    print(f"captured in {manifest}")


if __name__ == "__main__":
    main()
