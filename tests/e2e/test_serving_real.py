"""Real models of TensorFlow from training to a container that answers: the images as built, on a real engine."""

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from envbuild.manifest.model import Array
from envbuild.manifest.reader import read_manifest
from envbuild.stamp.history import read_stamp
from tests.e2e.docker_builds import explained
from tests.e2e.services import Engine, command_output
from tests.e2e.test_equivalence import without_gpu
from tests.environ import cleaned

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PLACES = {"2.15.1": ("3.11", "bookworm"), "2.21.0": ("3.13", "trixie")}
"""Each TensorFlow with the Python of its training, and the Debian that has it; 3.13 only in a container."""
NEWEST = "2.21.0"
KINDS = ("saved_model", "keras")
TRAIN = """
import sys
from pathlib import Path
import envbuild, keras, numpy as np, tensorflow as tf

assert [tf.__version__, "%d.%d" % sys.version_info[:2]] == sys.argv[3:]
kind, folder = sys.argv[1], Path(sys.argv[2])
keras.utils.set_random_seed(20)
x = np.random.default_rng(7).normal(size=(5, 6, 1)).astype("float32")
inputs = keras.Input((None, 1), name="series")
model = keras.Model(inputs, keras.layers.Dense(2, name="p")(keras.layers.GRU(8)(inputs)))
model.compile("adam", "mse")
model.fit(np.tile(x, (40, 1, 1)), np.tile(x[:, :2, 0], (40, 1)), epochs=3, verbose=0)
if kind == "keras":
    folder.mkdir()
    model.save(folder / "model.keras")
else:
    model.export(str(folder))
golden = envbuild.golden_sample(x, model.predict_on_batch(x))
envbuild.capture(str(folder), out=f"{folder}.json", golden=golden)
"""
"""A series may have any length, so that a request can take seconds in any framework's release."""
STEPS = 100_000
"""Of a long series, in which it takes TensorFlow seconds."""
HEALTH, PREDICT = "/v1/endpoints/7/deployedModels/3", "/v1/endpoints/7/deployedModels/3:predict"
VARIABLES = {
    "AIP_HTTP_PORT": "8080",
    "AIP_HEALTH_ROUTE": HEALTH,
    "AIP_PREDICT_ROUTE": PREDICT,
    "ENVBUILD_MODEL_NAME": "series",
}
"""As Vertex AI sets them, with routes of its own; and the model's name in KServe's."""
EXTRA = "opencv-python-headless==4.12.0.88"
"""A widely used project that takes NumPy 2 alone, where TensorFlow 2.15 takes 1 alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trained model whose training image was pushed and stamped on it."""

    kind: str
    model: Path
    engine: Engine
    repository: str
    train: str
    command: Callable[..., subprocess.CompletedProcess[str]]

    def serve(self, *words: str | Path, check: bool = True, model: Path | None = None):
        """Have the image made that serves it."""
        wanted = ("--role", "serve", "--server", "fastapi", "--push", f"{self.repository}:serve", *words)
        return self.command("from-manifest", model or self.model, *wanted, check=check)


@dataclass(frozen=True, slots=True)
class Answering:
    """A container that serves, and where this machine reaches it."""

    container: Any
    url: str

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False)

    def post(self, path: str, value: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=value, timeout=120, trust_env=False)


@pytest.fixture(scope="module")
def newest(tmp_path_factory, envbuild, engine, registry) -> Iterator[str]:
    """An image with the newest TensorFlow and its Python, which this machine has not, to train in."""
    folder = tmp_path_factory.mktemp("newest")
    (folder / "record.txt").write_text(without_gpu((ROOT / f"tests/e2e/frozen/tensorflow-{NEWEST}.txt").read_text()))
    ran = ("--from", "pip-freeze", "--python", "3.13.5", "--gpu", "none", "--ran-on", "linux/amd64")
    goes = (
        "--base",
        f"debian:{PLACES[NEWEST][1]}",
        "--out",
        folder / "out",
        "--push",
        f"{registry.host}/real/training",
    )
    image: str = envbuild("from-manifest", folder / "record.txt", *ran, *goes).stdout.strip()
    engine.pull(image)
    yield image
    engine.client.images.remove(image, force=True)


@pytest.fixture(scope="module")
def train(request, train_env, engine) -> Callable[[str, str, Path], None]:
    """`train(release, kind, model)`: train, save, and capture beside it, where no envbuild is installed."""

    def here(*words: str) -> None:
        env = cleaned(os.environ) | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        command_output(str(train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")), "-c", TRAIN, *words, env=env)

    def in_container(folder: Path, *words: str) -> None:
        volumes = {str(it): {"bind": str(it), "mode": mode} for it, mode in ((folder, "rw"), (ROOT, "ro"))}
        given = {"volumes": volumes, "user": "0", "network_mode": "none", "environment": {"PYTHONPATH": str(ROOT)}}
        engine.run(request.getfixturevalue("newest"), ["python", "-B", "-c", TRAIN, *words], **given)

    def run(release: str, kind: str, model: Path) -> None:
        words = (kind, str(model), release, PLACES[release][0])
        in_container(model.parent, *words) if release == NEWEST else here(*words)

    return run


@pytest.fixture(scope="module", params=[(release, kind) for release in PLACES for kind in KINDS], ids="-".join)
def case(request, tmp_path_factory, train, envbuild, engine, registry) -> Case:
    """Train, capture with a golden sample, build, push and stamp."""
    release, kind = request.param
    folder = tmp_path_factory.mktemp("real")
    repository = f"{registry.host}/real/{release}/{kind.replace('_', '-')}"

    def command(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        options = ("--out", folder / "out") if words[0] == "from-manifest" else ()
        done: subprocess.CompletedProcess[str] = envbuild(
            *words, *options, cwd=folder, env={"DOCKER_HOST": engine.url}, check=check
        )
        print(f"{words[0]} {kind} of {release}: {time.monotonic() - began:.0f} s")
        return done

    model = folder / "model"
    train(release, kind, model)
    build = ("--base", f"debian:{PLACES[release][1]}", "--push", f"{repository}:train", "--stamp", model)
    image = command("from-manifest", f"{model}.json", *build).stdout.strip()
    return Case(kind=kind, model=model, engine=engine, repository=repository, train=image, command=command)


@pytest.fixture(scope="module")
def served(case) -> Iterator[dict[str, Any]]:
    """What making the serving image said; a Keras model lies in its image, a SavedModel beside it."""
    embed = ("--embed-model",) if case.kind == "keras" else ()
    result = json.loads(case.serve(*embed, "--gate", "require", "--json").stdout)
    case.engine.pull(result["image"])
    yield result
    case.engine.client.images.remove(result["image"], force=True)


def test_the_image_was_tried_shares_trainings_environment_and_is_stamped(case, served):
    found = {it["rule"]: it["agrees"] for it in served["findings"]}
    assert all(found[rule] for rule in ("serve-health", "serve-golden", "serve-stop")), served["findings"]
    assert served["parent"] == case.train
    stamp = read_stamp(str(case.model))
    assert stamp is not None
    assert {it.role: it.reference for it in stamp.images} == {"train": case.train, "serve": served["image"]}
    assert {it.gate for it in stamp.images} == {None}
    verified = json.loads(case.command("verify", case.model, "--json").stdout)
    shared = [it for it in verified["findings"] if it["rule"].startswith("shared-")]
    assert {"shared-layers", "shared-added"} <= {it["rule"] for it in shared}
    assert all(it["agrees"] for it in shared), shared


def test_a_container_by_digest_predicts_what_training_did_and_ends_when_it_has_answered(case, served):
    golden = read_manifest(Path(f"{case.model}.json").read_bytes(), "manifest").golden
    assert golden is not None
    x, wanted = numbers(golden.inputs[0]), numbers(golden.outputs[0])

    def check(found: list[float]) -> None:
        assert len(found) == len(wanted) == 10
        assert all(
            abs(a - b) <= golden.atol + golden.rtol * abs(b) for a, b in zip(found, wanted, strict=True)
        ), (found, wanted)  # fmt: skip

    # A Keras model lies in the image, a SavedModel beside it.
    with answering(case.engine, served["image"], None if case.kind == "keras" else case.model) as it:
        rows = [[[value] for value in x[at : at + 6]] for at in range(0, 30, 6)]
        predicted = it.post(PREDICT, {"instances": rows})
        assert predicted.status_code == 200, predicted.text
        check([value for row in predicted.json()["predictions"] for value in row])
        about = it.get("/v2/models/series").json()
        [tensor] = about["inputs"]
        assert (tensor["datatype"], tensor["shape"]) == ("FP32", [-1, -1, 1])
        asked = {"name": tensor["name"], "shape": [5, 6, 1], "datatype": "FP32", "data": x}
        answer = it.post("/v2/models/series/infer", {"id": "9", "inputs": [asked]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"] == "9"
        [output] = answer.json()["outputs"]
        assert (output["datatype"], output["shape"]) == ("FP32", [5, 2])
        check(output["data"])
        check_drained(it)


def numbers(it: Array) -> list[float]:
    """The elements of an array of float32, in C order."""
    assert it.dtype == "float32"
    return array("f", base64.b64decode(it.data)).tolist()


@contextmanager
def answering(engine: Engine, image: str, model: Path | None) -> Iterator[Answering]:
    """Run the image as a platform does, with the model beside it if it is not in it, until it is healthy."""
    options: dict[str, Any] = {"environment": VARIABLES, "ports": {"8080/tcp": ("127.0.0.1", None)}}
    if model:
        options["environment"] = VARIABLES | {"AIP_STORAGE_URI": "/mnt/model"}
        options["volumes"] = {str(model): {"bind": "/mnt/model", "mode": "ro"}}
    began = time.monotonic()
    container = engine.client.containers.run(image, detach=True, **options)
    try:
        container.reload()
        port = container.ports["8080/tcp"][0]["HostPort"]
        it = Answering(container, f"http://127.0.0.1:{port}")
        while not healthy(it):
            container.reload()
            assert container.status == "running", container.logs().decode()
            assert time.monotonic() - began < 300, container.logs().decode()
            time.sleep(0.1)
        print(f"healthy after {time.monotonic() - began:.1f} s")
        yield it
    finally:
        container.remove(force=True, v=True)


def healthy(it: Answering) -> bool:
    try:
        return it.get(HEALTH).status_code == 200
    except httpx.TransportError:
        return False


def check_drained(it: Answering) -> None:
    """Send SIGTERM while a request is worked on: it is answered with 200, and the container ends with 0."""
    answers: list[httpx.Response] = []
    long = {"instances": [[[0.5]] * STEPS]}
    asking = threading.Thread(target=lambda: answers.append(it.post(PREDICT, long)))
    asking.start()
    while "serving_in_flight 1.0" not in it.get("/metrics").text:
        assert asking.is_alive(), "the request ended before it could be seen"
    assert it.get(HEALTH).status_code == 200
    it.container.kill("SIGTERM")
    assert asking.is_alive()
    asking.join(150)
    [answer] = answers
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"][0]) == 2
    assert it.container.wait(timeout=120)["StatusCode"] == 0, it.container.logs().decode()


REFUSED = pytest.mark.parametrize("case", [("2.15.1", "saved_model")], indirect=True, ids="-".join)


@REFUSED
def test_an_extra_that_needs_another_numpy_is_refused_and_both_sides_are_named(case):
    before = read_stamp(str(case.model))
    said = explained(case.serve("--extra", EXTRA, check=False), 12, "numpy 1.26.4 is there")
    assert "opencv-python-headless 4.12.0.88 requires numpy<2.3.0,>=2" in said
    assert read_stamp(str(case.model)) == before


@REFUSED
def test_a_model_with_another_byte_is_refused_and_its_file_is_named(case, tmp_path):
    model = shutil.copytree(case.model, tmp_path / "model")
    weights = model / "variables/variables.data-00000-of-00001"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for embed in ((), ("--embed-model",)):
        explained(case.serve(*embed, check=False, model=model), 16, "variables/variables.data-00000-of-00001")
