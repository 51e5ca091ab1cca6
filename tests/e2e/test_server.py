"""The ready server as a process: real models that TensorFlow trained here, Vertex AI's contract, protocol v2, SIGTERM."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from envbuild.serve.contents import REQUIREMENTS
from tests.e2e.services import command_output
from tests.environ import cleaned
from tests.unit.serving_app import FOLDER, strict

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).with_name("artifacts") / "save_served.py"
BENCHMARK = Path(__file__).parents[2] / "benchmarks/serve.py"
RELEASES = {
    "2.15.1": ("tensorflow-cpu==2.15.1", "pip==24.0", *REQUIREMENTS),
    "2.21.0": ("tensorflow-cpu==2.21.0", *REQUIREMENTS),
}
OWN_MODEL = '''
"""A model of NumPy that takes its time."""
import time
from serving.arrays import Tensor
from serving.model import Model

def load_model(place):
    def call(arrays):
        time.sleep(float(arrays["x"].max()))
        return {"y": arrays["x"] * 2}
    x = Tensor("x", "float32", (None,))
    return Model(platform="own", inputs=(x,), outputs=(Tensor("y", "float32", (None,)),), call=call)
'''
ONNX = """
import sys, onnx
from onnx import TensorProto as T, helper as h
x, y = (h.make_tensor_value_info(name, T.FLOAT, ["rows", 2]) for name in "xy")
w, v = (h.make_tensor_value_info(name, T.STRING, ["rows"]) for name in "wv")
graph = h.make_graph([h.make_node("Add", ["x", "x"], ["y"]), h.make_node("Identity", ["w"], ["v"])], "g", [x, w], [y, v])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), sys.argv[1])
"""


@dataclass(frozen=True)
class Serving:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60)

    def post(self, path: str, value: Any) -> Any:
        answer = httpx.post(self.url + path, json=value, timeout=120)
        assert answer.status_code == 200, answer.text
        return strict(answer.content)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(port: int, **settings: str) -> dict[str, str]:
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    return cleaned(os.environ) | quiet | {"AIP_HTTP_PORT": str(port)} | settings


@contextmanager
def serving(python: Path, log: Path, folder: Path = FOLDER, **settings: str) -> Iterator[Serving]:
    """Run the server from another folder than its own, until its health route answers 200."""
    port = free_port()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [python, folder / "serve.py"], env=environment(port, **settings), stdout=file, stderr=file, cwd="/"
        )
        it = Serving(process, f"http://127.0.0.1:{port}", log)
        try:
            wait_for_health(it)
            yield it
        finally:
            process.kill()
            process.wait()


def wait_for_health(it: Serving) -> None:
    ready = threading.Event()
    for _ in range(1200):
        assert it.process.poll() is None, it.log.read_text()
        try:
            if it.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        ready.wait(0.1)
    raise AssertionError(it.log.read_text())


def check_drained(it: Serving, path: str, value: Any) -> Any:
    """Send SIGTERM while a request is worked on: health says 503, the request is answered, the exit code is 0."""
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(it.post(path, value)))
    asking.start()
    while "serving_in_flight 1.0" not in it.get("/metrics").text:
        assert asking.is_alive()
    it.process.send_signal(signal.SIGTERM)
    while it.get("/health").status_code != 503:
        assert asking.is_alive()
    assert it.get("/v2/health/live").status_code == 200
    asking.join(120)
    assert it.process.wait(60) == 0, it.log.read_text()
    assert it.lines()[-1]["message"] == "the server has ended"
    return answers[0]


@pytest.fixture(scope="module")
def light(train_env):
    """A Python that has what the server needs, and no framework."""
    return train_env("3.11", "numpy", *REQUIREMENTS)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The server with an application's own loading.py in place of its own."""
    folder = tmp_path_factory.mktemp("own") / "app"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "serving/loading.py").write_text(OWN_MODEL)
    return folder


def test_sigterm_lets_running_requests_end(tmp_path, light, own):
    settings = {"ENVBUILD_MODEL_FOLDER": str(tmp_path), "ENVBUILD_DRAIN_SECONDS": "3"}
    with serving(light, tmp_path / "log", own, **settings) as it:
        assert check_drained(it, "/predict", {"instances": [5.0]}) == {"predictions": [10.0]}


def test_vertexs_variables_name_port_and_routes_and_lines_of_json_are_logged(tmp_path, light, own):
    settings = {"AIP_PREDICT_ROUTE": "/v1/endpoints/7:predict", "ENVBUILD_MODEL_FOLDER": str(tmp_path)}
    with serving(light, tmp_path / "log", own, **settings) as it:
        assert it.post("/v1/endpoints/7:predict", {"instances": [0.0]}) == {"predictions": [0.0]}
        it.process.terminate()
        assert it.process.wait(60) == 0
        assert [line["message"] for line in it.lines() if "route" in line or "platform" in line] == [
            "the model is ready",
            "request",
        ]
        assert len(it.lines()) == len(it.log.read_text().splitlines())


def test_an_onnx_model_is_served_by_its_runtime(tmp_path, train_env):
    python = train_env("3.11", "onnx", "onnxruntime", *REQUIREMENTS)
    (tmp_path / "model").mkdir()
    command_output(str(python), "-c", ONNX, str(tmp_path / "model/m.onnx"))
    with serving(python, tmp_path / "log", AIP_STORAGE_URI=f"file://{tmp_path}/model") as it:
        asked = {"instances": [{"x": [0.5, 1], "w": "one"}, {"x": [2, 3], "w": "zwölf"}]}
        found = [{"y": [1.0, 2.0], "v": "one"}, {"y": [4.0, 6.0], "v": "zwölf"}]
        assert it.post("/predict", asked) == {"predictions": found}
        about = it.get("/v2/models/model").json()
        assert about["platform"] == "onnx_onnxv1"
        assert about["inputs"] == [
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "w", "datatype": "BYTES", "shape": [-1]},
        ]


def test_the_load_benchmark_counts_answers_and_refusals(tmp_path, light, own):
    (tmp_path / "right").write_text('{"instances": [0.0]}')
    (tmp_path / "wrong").write_text("{}")
    with serving(light, tmp_path / "log", own, ENVBUILD_MODEL_FOLDER=str(tmp_path)) as it:

        def load(body: str) -> tuple[int, dict[str, Any]]:
            command = [
                sys.executable,
                BENCHMARK,
                f"{it.url}/predict",
                tmp_path / body,
                "--seconds=1",
                "--connections=2",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode, json.loads(done.stdout)

        code, found = load("right")
        assert (code, found["errors"]) == (0, 0)
        assert 0 < found["p50"] <= found["p95"] <= found["p99"] <= found["max"]
        code, found = load("wrong")
        assert code == 1
        assert found["errors"] == found["requests"] > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"AIP_STORAGE_URI": "gs://models/run-17"}, "--extra google-cloud-storage"),
        ({"AIP_STORAGE_URI": "/none/at/all"}, "there is no model at /none/at/all"),
        ({"AIP_HTTP_PORT": "http"}, "AIP_HTTP_PORT is to be a number"),
    ],
)
def test_a_server_without_a_model_ends_and_says_why(light, settings, words):
    command = [light, FOLDER / "serve.py"]
    done = subprocess.run(
        command, env=environment(free_port(), **settings), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    [line] = [json.loads(it) for it in done.stdout.splitlines() if json.loads(it)["severity"] == "ERROR"]
    assert words in line["message"]
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture(scope="module", params=RELEASES)
def trained(request, tmp_path_factory, train_env):
    """The Python of a training environment with the server above it, and the models that it saved."""
    python = train_env("3.11", *RELEASES[request.param])
    folder = tmp_path_factory.mktemp("trained") / "models"
    command_output(str(python), str(PROGRAM), str(folder), env=environment(0))
    said = json.loads((folder / "said.json").read_bytes())
    assert said["tensorflow"] == request.param
    return python, folder, said


def close(found: Any, wanted: Any) -> bool:
    return bool(found == pytest.approx(wanted, rel=1e-5, abs=1e-6))


@pytest.mark.slow  # TensorFlow is imported for each model
@pytest.mark.parametrize("kind", ["keras", "hdf5", "exported"])
def test_a_keras_model_predicts_what_it_did_in_training(tmp_path, trained, kind):
    python, folder, said = trained
    with serving(python, tmp_path / "log", AIP_STORAGE_URI=str(folder / kind)) as it:
        found = it.post("/predict", {"instances": said["x"]})["predictions"]
        assert all(close(row, wanted) for row, wanted in zip(found, said["p"], strict=True))
        about = it.get("/v2/models/model").json()
        [name] = [tensor["name"] for tensor in about["inputs"]]
        assert [(it["datatype"], it["shape"]) for it in (*about["inputs"], *about["outputs"])] == [
            ("FP32", [-1, 3]),
            ("FP32", [-1, 2]),
        ]
        flat = [number for row in said["x"] for number in row]
        asked = {"id": "1", "inputs": [{"name": name, "shape": [5, 3], "datatype": "FP32", "data": flat}]}
        answer = it.post("/v2/models/model/infer", asked)
        [output] = answer["outputs"]
        assert (answer["id"], answer["model_name"], output["shape"], output["datatype"]) == (
            "1",
            "model",
            [5, 2],
            "FP32",
        )
        assert output["data"] == [number for row in found for number in row]
        assert output["name"] == about["outputs"][0]["name"]
        [line] = [line for line in it.lines() if line["message"] == "the model is ready"]
        assert line["warm"]


@pytest.mark.slow  # TensorFlow is imported
def test_a_saved_model_is_served_by_its_signature_and_drains(tmp_path, trained):
    python, folder, said = trained
    with serving(python, tmp_path / "log", AIP_STORAGE_URI=str(folder / "scaled")) as it:
        instances = [{"x": row, "steps": 0} for row in said["x"]]
        found = it.post("/v1/models/model:predict", {"instances": instances})["predictions"]
        assert [row["word"] for row in found] == said["word"]
        assert all(close(row["y"], wanted) for row, wanted in zip(found, said["y"], strict=True))
        wrong = httpx.post(f"{it.url}/predict", json={"instances": [{"x": [1, 2, 3]}]})
        assert (wrong.status_code, wrong.json()["error"]) == (400, "instance 0 has no input 'steps', and the model takes 'steps', 'x'")  # fmt: skip
        late = check_drained(it, "/predict", {"instances": [{"x": said["x"][0], "steps": 2000}]})
        assert close(late["predictions"][0]["y"], said["y"][0])
