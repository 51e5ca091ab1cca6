"""Save a model twice, as Keras 2 does: `save_keras_2.py FOLDER`; TensorFlow 2.15.1 made tensorflow_2_15 by it."""

# The frameworks are installed only where this runs.
# mypy: ignore-errors

import sys
from pathlib import Path

import tensorflow as tf


def main() -> None:
    folder = Path(sys.argv[1])
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((3,)), tf.keras.layers.Dense(1)])
    model.save(str(folder / "model.h5"))
    tf.saved_model.save(tf.train.Checkpoint(weights=model.weights[0]), str(folder / "saved_model"))


main()
