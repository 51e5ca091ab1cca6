"""A Keras callback that captures when training ends."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from envbuild.capture.output import say
from envbuild.capture.reading import Facts
from envbuild.capture.record import capture
from envbuild.capture.redact import scrub
from envbuild.capture.settings import check_lists

CHIEFS = ("chief", "master", "workerpool0")
"""Kinds of tasks that lead: of TF_CONFIG, of TensorFlow 1, of CLUSTER_SPEC in Vertex AI."""


def keras_callback(golden_inputs: Any = None, **options: Any) -> Any:
    """Return a callback for `fit` that captures when training ends, with the options of `capture`.

    It is one of the Keras that is imported when this is called: tf.keras 2, tf_keras, or Keras 3. `golden_inputs` is a
    small batch, for which the golden sample records what the model predicts. A capture that fails is told on stderr and
    never fails the training. Of distributed workers only the chief captures, as TF_CONFIG or CLUSTER_SPEC names it;
    where neither does, every process captures, so give each another `out`. RuntimeError if no Keras is imported,
    ValueError for one text in place of a list.
    """
    check_lists(options)

    class Capture(_callback_class()):  # type: ignore[misc]
        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras gives it
            try:
                if is_chief():
                    capture(**dict(options, **_sample(self.model, golden_inputs)))
            except Exception as error:
                say("warning: the environment was not captured: %s" % scrub(str(error)))

    return Capture()


def _callback_class() -> Any:
    """Find the base class in what the program has imported: a callback of another Keras would not be accepted."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    for name in ("tf_keras", "keras") if legacy else ("keras", "tf_keras"):
        if name in sys.modules:
            return sys.modules[name].callbacks.Callback
    if "tensorflow" in sys.modules:
        # Imports Keras at this moment, where the program has not used it yet.
        return sys.modules["tensorflow"].keras.callbacks.Callback
    raise RuntimeError("keras_callback() needs Keras: import it, or TensorFlow, before")


def _sample(model: Any, inputs: Any) -> Facts:
    return {} if inputs is None else {"golden": (inputs, model.predict_on_batch(inputs))}


def is_chief() -> bool:
    """Whether this process leads its cluster; one that is alone does."""
    return all(_leads(os.environ.get(name)) for name in ("TF_CONFIG", "CLUSTER_SPEC"))


def _leads(text: str | None) -> bool:
    try:
        settings = json.loads(text or "{}")
        cluster, task = settings.get("cluster") or {}, settings.get("task") or {}
        kind, index = str(task.get("type", "chief")), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError):
        # What says nothing that can be understood must not cost the record.
        return True
    without_chief = not any(name in CHIEFS for name in cluster)
    return index == 0 and (kind in CHIEFS or (kind == "worker" and without_chief))
