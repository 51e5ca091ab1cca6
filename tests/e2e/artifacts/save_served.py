"""Train small models, save them as servers get them, and say what they predict: `save_served.py FOLDER`."""

# The frameworks are installed only where this runs.
# mypy: ignore-errors

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


class Scaled(tf.Module):
    """Two inputs, two outputs, one of them of words; `steps` is how long it computes."""

    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(tf.random.stateless_normal([3, 2], seed=[1, 2]))
        self.large = tf.Variable(tf.eye(400))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "steps")])
    def __call__(self, x, steps):
        matrix = self.large * 1.0
        for _ in tf.range(tf.reduce_max(steps)):
            matrix = tf.matmul(matrix, self.large)
        y = tf.matmul(x, self.weights) * matrix[0, 0]
        return {"y": y, "word": tf.strings.as_string(tf.argmax(y, axis=1))}


def main():
    folder = Path(sys.argv[1])
    (folder / "keras").mkdir(parents=True)
    (folder / "hdf5").mkdir()
    x = np.random.default_rng(7).normal(size=(5, 3)).astype("float32")
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax", name="p")(hidden))
    model.compile("adam", "categorical_crossentropy")
    model.fit(np.tile(x, (40, 1)), np.tile([[0, 1], [1, 0], [1, 0], [0, 1], [0, 1]], (40, 1)), epochs=3, verbose=0)
    model.save(folder / "keras" / "model.keras")
    model.save(folder / "hdf5" / "model.h5")
    model.export(str(folder / "exported"))
    scaled = Scaled()
    tf.saved_model.save(scaled, str(folder / "scaled"), signatures=scaled.__call__)
    answers = scaled(tf.constant(x), tf.zeros([5], tf.int32))
    said = {
        "tensorflow": tf.__version__,
        "x": x.tolist(),
        "p": model.predict_on_batch(x).tolist(),
        "y": answers["y"].numpy().tolist(),
        "word": [word.decode() for word in answers["word"].numpy()],
    }
    (folder / "said.json").write_text(json.dumps(said))


main()
