"""Save small models with TensorFlow in every format it has, and say which versions did: `save_tensorflow.py FOLDER`."""

# The frameworks are installed only where this runs.
# mypy: ignore-errors

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def saved_model(folder: Path) -> None:
    class Double(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x):
            return 2.0 * x

    tf.saved_model.save(Double(), str(folder))


def keras_models(folder: Path) -> dict:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.InputLayer((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    model.save(str(folder / "model.h5"))
    model.save_weights(str(folder / "model.weights.h5"))
    if hasattr(model, "export"):
        model.save(str(folder / "model.keras"))
        model.export(str(folder / "exported"))
    if int(keras.__version__.split(".")[0]) < 3:
        model.save(str(folder / "keras_saved_model"), save_format="tf")
    with h5py.File(str(folder / "model.h5"), "r") as file:
        attributes = {name: str(file.attrs[name]) for name in ("keras_version", "backend")}
    return {"keras": keras.__version__, "backend": tf.keras.backend.backend(), "hdf5": attributes}


def checkpoints(folder: Path) -> None:
    tf.train.Checkpoint(v=tf.Variable(1.0)).save(str(folder / "checkpoint2" / "ckpt"))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("v", initializer=1.0)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "checkpoint1" / "model.ckpt"), global_step=7)


def graphs(folder: Path) -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        v1.saved_model.simple_save(session, str(folder / "simple_save"), {"x": x}, {"y": 2.0 * x})
        v1.train.write_graph(graph, str(folder / "frozen"), "frozen_graph.pb", as_text=False)
        builder = v1.saved_model.Builder(str(folder / "text"))
        builder.add_meta_graph_and_variables(session, ["serve", "gpu"])
        builder.save(as_text=True)


def singleprint(folder: Path) -> str | None:
    """What TensorFlow itself reads of a fingerprint, from 2.12 on."""
    experimental = tf.saved_model.experimental
    return experimental.read_fingerprint(str(folder)).singleprint() if hasattr(experimental, "Fingerprint") else None


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    saved_model(folder / "saved_model")
    versions = keras_models(folder)
    checkpoints(folder)
    graphs(folder)
    versions.update(tensorflow=tf.__version__, git_version=tf.version.GIT_VERSION)
    versions["singleprint"] = singleprint(folder / "saved_model")
    (folder / "versions.json").write_text(json.dumps(versions))


main()
