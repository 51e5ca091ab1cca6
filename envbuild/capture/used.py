"""Which of several installed frameworks the run used, as far as its facts say."""

from __future__ import annotations

import re

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.capture.reading import Facts, normal_name

_LIBRARY_OWNERS = {"torch": "torch", "jaxlib": "jax"}
"""The framework whose shared libraries a distribution holds; TensorFlow's distributions have many names."""
_MODEL_WRITERS = {
    "saved_model": "tensorflow",
    "tf_checkpoint": "tensorflow",
    "tf_graph": "tensorflow",
    "torch": "torch",
    "torchscript": "torch",
    "torch_export": "torch",
    "orbax": "jax",
}
"""The framework that writes a format; Keras' formats name their backend."""


def used_framework(manifest: Facts) -> Facts | None:
    """Return the framework that the run used; None where several are installed and the facts do not point to one.

    The facts are what the process had loaded, and what wrote the model.
    """
    frameworks = manifest.get("frameworks") or []
    # Keras runs on one of the others.
    several = [item for item in frameworks if item["name"] != "keras"]
    if len(several) < 2:
        return frameworks[0] if frameworks else None
    said = {_loaded_framework(manifest, [item["name"] for item in several]), _model_writer(manifest)}
    found = [item for item in several if item["name"] in said]
    return found[0] if len(found) == 1 else None


def _loaded_framework(manifest: Facts, names: list[str]) -> str | None:
    """Return the framework that the process used, of `names` in the order in which the capture ranked them.

    A capture ranks a framework that has computed before one that another library has imported, and equals as in
    `equals`. So of several that were loaded the first is the one that was used if it would otherwise stand last.
    """
    native = manifest.get("native") or {}
    there = {item["framework"] for item in manifest.get("numerics") or []}
    for library in native.get("libraries") or []:
        owner = normal_name(library["owner"].get("name") or "")
        there.add("tensorflow" if re.fullmatch(TENSORFLOW, owner) else _LIBRARY_OWNERS.get(owner, ""))
    first, *others = [name for name in names if name in there] or [""]
    equals = ("tensorflow", "torch", "jax")
    return first if all(equals.index(name) < equals.index(first) for name in others) else None


def _model_writer(manifest: Facts) -> str | None:
    model = manifest.get("model") or {}
    details = model.get("details") or {}
    if model.get("format") in ("keras", "hdf5"):
        return details.get("backend")
    if any(writer["name"] == "pytorch" for writer in model.get("written_by") or []):
        return "torch"
    return _MODEL_WRITERS.get(model.get("format") or "")
