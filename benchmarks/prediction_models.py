"""The models that are served: trained once, with what a builder needs for the image that serves them."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.build_inputs import BIN, debian_base, say
from benchmarks.build_parts import run
from envbuild.recipe import Base
from envbuild.serve.contents import REQUIREMENTS

ROOT = Path(__file__).resolve().parents[1]
BASE = "debian:bookworm"
_TOOLS = ("pandas", "matplotlib")
"""Which most runs have beside their framework."""
_START = """
import json, os
import numpy as np
import envbuild
x = np.random.default_rng(7).normal(size=(64, 4)).astype("float32")
"""
_END = """
envbuild.capture("model", out="manifest.json", golden=envbuild.golden_sample(x[:4], predicted))
json.dump({"instances": x[:4].tolist()}, open("request.json", "w"))
json.dump(predicted.tolist(), open("expected.json", "w"))
"""
_SKLEARN = """
import joblib
from sklearn.ensemble import RandomForestClassifier
model = RandomForestClassifier(8, random_state=0).fit(x, (x[:, 0] > 0).astype(int))
os.mkdir("model")
joblib.dump(model, "model/model.joblib")
predicted = model.predict(x[:4])
"""
_TENSORFLOW = """
import keras
inputs = keras.Input((4,), name="x")
model = keras.Model(inputs, keras.layers.Dense(2, name="y")(inputs))
model.export("model")
predicted = model.predict_on_batch(x[:4])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the run installs, and how it makes the model of `x`."""

    requirements: tuple[str, ...]
    program: str


MODELS: Mapping[str, Model] = {
    "scikit-learn": Model(requirements=("scikit-learn==1.5.2", "joblib", *_TOOLS), program=_SKLEARN),
    "tensorflow-cpu": Model(requirements=("tensorflow-cpu==2.15.1", *_TOOLS), program=_TENSORFLOW),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model, and the lock and the wheels of the image that serves it."""

    folder: Path
    base: Base

    @property
    def context(self) -> Path:
        """For other builders: wheels/, requirements.txt and app/, the server."""
        return self.folder / "context"

    @property
    def cache(self) -> Path:
        """envbuild's, after locking: it knows the wheels, and no layer."""
        return self.folder / "cache"

    @property
    def request(self) -> str:
        """The body of a prediction."""
        return (self.folder / "request.json").read_text()

    def is_right(self, answer: Mapping[str, object]) -> bool:
        """Whether an answer to the request has training's predictions."""
        found, wanted = (_numbers(it) for it in (answer["predictions"], self._expected))
        return len(found) == len(wanted) and all(abs(a - b) < 1e-5 for a, b in zip(found, wanted, strict=True))

    @property
    def _expected(self) -> object:
        return json.loads((self.folder / "expected.json").read_text())


def _numbers(value: object) -> list[float]:
    return [it for inner in value for it in _numbers(inner)] if isinstance(value, list) else [float(str(value))]


def trained(name: str, kept: Path) -> Trained:
    """Train a model unless that was done before, and lock the image that serves it."""
    folder = kept / "prediction" / name
    folder.mkdir(parents=True, exist_ok=True)
    done = Trained(folder=folder, base=debian_base(folder / "cache"))
    if not (folder / "expected.json").exists():
        say(f"training the model: {name}")
        _train(MODELS[name], folder)
    envbuild = [sys.executable, "-m", "envbuild", "lock", str(folder / "manifest.json"), "--base", BASE]
    extras = [word for it in REQUIREMENTS for word in ("--extra", it)]
    goes = ["--out", str(done.context), "--download", str(done.context / "wheels")]
    run([*envbuild, *extras, *goes], {"ENVBUILD_CACHE": str(done.cache)})
    shutil.copytree(ROOT / "templates/server/fastapi", done.context / "app", dirs_exist_ok=True)
    return done


def _train(model: Model, folder: Path) -> None:
    shutil.rmtree(folder / "model", ignore_errors=True)
    uv, python = str(BIN / "uv"), str(folder / "venv/bin/python")
    run([uv, "venv", "--quiet", "--clear", "--python", "3.11", str(folder / "venv")])
    run([uv, "pip", "install", "--quiet", "--python", python, *model.requirements])
    (folder / "train.py").write_text(f"{_START}{model.program}{_END}")
    run(["env", "-C", str(folder), python, "train.py"], {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""})
    shutil.rmtree(folder / "venv")
