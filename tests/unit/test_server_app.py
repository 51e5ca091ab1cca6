"""The ready server around its model: routes, readiness, limits, faults, metrics, where the model is found."""

import asyncio
import json
import threading

import pytest
from jsonschema import Draft202012Validator

from tests.fakes.gcs import FakeGcs
from tests.unit.serving_app import Served, load, model_of, same, strict

INSTANCES = {"instances": [[1.0, 2.0]]}
TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"enum": ["FP32", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}},
    },
}
# The Open Inference Protocol's "Payload Contents".
ANSWERS: dict[str, dict] = {
    "/v2": {"required": ["name", "version", "extensions"], "properties": {"extensions": {"type": "array"}}},
    "/v2/health/live": {"properties": {"live": {"const": True}}, "required": ["live"]},
    "/v2/health/ready": {"properties": {"live": {"const": True}, "ready": {"const": True}}, "required": ["live"]},
    "/v2/models/model": {
        "required": ["name", "platform", "inputs", "outputs"],
        "properties": {"inputs": {"type": "array", "items": TENSOR}, "outputs": {"type": "array", "items": TENSOR}},
    },
    "/v2/models/model/ready": {"properties": {"name": {"const": "model"}, "ready": {"const": True}}},
    "/v1/models": {"properties": {"models": {"const": ["model"]}}, "required": ["models"]},
    "/v1/models/model": {"properties": {"name": {"const": "model"}, "ready": {"const": True}}, "required": ["name"]},
    "/health": {"properties": {"status": {"const": "ready"}}},
}


@pytest.fixture(scope="module")
def it():
    return load()


def pair(it):
    return same(it, x=("float32", (None, 2)), words=("bytes", (None,)))


@pytest.mark.parametrize("path", ANSWERS)
def test_what_can_be_asked_about_a_model_is_answered_as_the_protocols_say(it, path):
    answer = Served(it, pair(it)).ask("GET", path)
    assert answer.status_code == 200
    Draft202012Validator({"type": "object", **ANSWERS[path]}).validate(strict(answer.content))


def test_metadata_has_the_models_tensors(it):
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "words", "datatype": "BYTES", "shape": [-1]},
    ]
    found = Served(it, pair(it)).ask("GET", "/v2/models/model").json()
    assert (found["inputs"], found["platform"]) == (tensors, "numpy")


def test_nothing_is_ready_before_the_model_is_and_while_the_server_ends(it):
    served = Served(it, None)
    paths = ("/health", "/v2/health/ready", "/v2/models/model/ready", "/v1/models/model")
    assert [served.ask("GET", path).status_code for path in paths] == [503] * 4
    assert served.ask("GET", "/v2/health/live").status_code == 200
    assert served.post("/predict", INSTANCES) == (503, {"error": "the model is not loaded yet"})
    served.worker.model = same(it, x=("float32", (None, 2)))
    assert served.ask("GET", "/health").status_code == 200
    served.worker.drain()
    assert [served.ask("GET", path).status_code for path in paths] == [503] * 4
    assert served.post("/predict", INSTANCES)[0] == 200


def test_vertex_says_the_routes_and_kserve_the_name(it):
    served = Served(it, same(it, x=("float32", (None, 2))), health_route="/h", predict_route="/p", model_name="m")
    assert served.ask("GET", "/h").status_code == 200
    assert served.post("/p", INSTANCES) == served.post("/v1/models/m:predict", INSTANCES)
    assert served.ask("GET", "/health").json() == {"error": "Not Found"}


def test_a_body_over_the_limit_is_not_read_to_its_end(it):
    served = Served(it, same(it, x=("float32", (None, 2))), most_bytes=100)
    sent = []

    async def parts():
        for _ in range(50):
            sent.append(1)
            yield b" " * 50

    declared = served.ask("POST", "/predict", content=b" " * 101)
    streamed = served.ask("POST", "/predict", content=parts())
    assert (declared.status_code, streamed.status_code, len(sent)) == (413, 413, 3)
    assert "more than 100 bytes" in declared.json()["error"]
    assert served.ask("POST", "/predict", content=b"x", headers={"content-encoding": "gzip"}).status_code == 415


def test_the_binary_extension_is_refused_by_its_header(it):
    headers = {"inference-header-content-length": "10"}
    answer = Served(it, pair(it)).ask("POST", "/v2/models/model/infer", content=b"{}", headers=headers)
    assert (answer.status_code, "send JSON" in answer.json()["error"]) == (400, True)


def test_a_fault_of_the_model_stays_in_the_log(it, caplog):
    def call(_):
        raise ValueError("secret row 17")

    served = Served(it, model_of(it, same(it, x=("float32", (None, 2))).inputs, call))
    status, answer = served.post("/predict", INSTANCES)
    assert (status, list(answer)) == (500, ["error"])
    assert "secret" not in answer["error"]
    [record] = [record for record in caplog.records if record.exc_info]
    line = json.loads(it.told.JsonLines().format(record))
    assert line["fault"] in answer["error"]
    assert line["severity"] == "ERROR"
    assert "secret row 17" in line["traceback"]


def test_outputs_that_are_no_rows_are_refused_for_instances_and_given_as_tensors(it):
    model = model_of(it, same(it, x=("float32", (None, 2))).inputs, lambda arrays: {"sum": arrays["x"].sum()})
    served = Served(it, model)
    status, answer = served.post("/predict", INSTANCES)
    assert (status, "output 'sum' has shape []" in answer["error"]) == (400, True)
    body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    assert served.post("/v2/models/model/infer", body)[1]["outputs"][0]["data"] == [3.0]


def test_health_is_answered_while_a_prediction_runs_and_too_many_are_refused(it):
    began, end = threading.Event(), threading.Event()

    def call(arrays):
        began.set()
        assert end.wait(10)
        return arrays

    served = Served(it, model_of(it, same(it, x=("float32", (None, 2))).inputs, call), most_waiting=1)

    async def both():
        running = asyncio.create_task(served.asked("POST", "/predict", json=INSTANCES))
        await asyncio.to_thread(began.wait, 10)
        answers = [await served.asked("GET", "/health"), await served.asked("POST", "/predict", json=INSTANCES)]
        end.set()
        return [answer.status_code for answer in (*answers, await running)]

    assert asyncio.run(both()) == [200, 503, 200]


def test_prometheus_is_told(it):
    served = Served(it, same(it, x=("float32", (None, 2))))
    served.post("/predict", {"instances": [[1, 2]] * 3})
    served.post("/predict", {"instances": [[1]]})
    lines = served.ask("GET", "/metrics").text.splitlines()
    expected = {
        'serving_requests_total{code="200",route="predict"} 1.0',
        'serving_requests_total{code="400",route="predict"} 1.0',
        'serving_request_seconds_count{route="predict"} 2.0',
        "serving_batch_rows_sum 3.0",
        "serving_model_seconds_count 1.0",
        "serving_in_flight 0.0",
    }
    assert expected - set(lines) == set()


def test_requests_are_logged_without_what_was_asked(it, caplog):
    caplog.set_level("INFO", "serving")
    body = b'{"instances": [[123.0, 456.0]]}'
    Served(it, same(it, x=("float32", (None, 2)))).post("/predict", body)
    [line] = [json.loads(it.told.JsonLines().format(record)) for record in caplog.records]
    assert (line["message"], line["route"], line["code"], line["bytes_in"]) == (
        "request",
        "predict",
        200,
        str(len(body)),
    )
    assert "123" not in str(line)


def test_settings_come_from_the_environment_and_what_cannot_be_meant_is_named(it):
    read = it.settings.read_settings
    assert read({"AIP_HTTP_PORT": "", "OTHER": "1"}) == it.settings.Settings()
    names = {field: "/x" if field.endswith("route") else "7" for field in it.settings.NAMES}
    changed = read({it.settings.NAMES[field]: text for field, text in names.items()})
    assert {field: str(getattr(changed, field)).removesuffix(".0") for field in names} == names
    for name, text in {"AIP_HTTP_PORT": "x", "ENVBUILD_MAX_BATCH": "0", "AIP_HEALTH_ROUTE": "h", "ENVBUILD_DRAIN_SECONDS": "nan"}.items():  # fmt: skip
        with pytest.raises(it.settings.Unusable, match=name):
            read({name: text})
    assert read({"AIP_HTTP_PORT": "65535"}).port == 65535
    with pytest.raises(it.settings.Unusable, match="AIP_HTTP_PORT is to be a number from 1 to 65535, and is '65536'"):
        read({"AIP_HTTP_PORT": "65536"})


def test_a_model_in_cloud_storage_is_copied_with_nothing_beside_it(it, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        for name in ("runs/1/saved_model.pb", "runs/1/variables/v.index", "runs/12/other", "runs/1/", "one.keras"):
            gcs.put("models", name, name.encode())
        place = it.storage.model_place(it.settings.Settings(storage_uri="gs://models/runs/1/"))
        files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        assert files == {"saved_model.pb", "variables/v.index"}
        assert it.loading.find_model(place) == ("saved_model", place)
        single = it.storage.model_place(it.settings.Settings(storage_uri="gs://models/one.keras"))
        assert (single / "one.keras").read_bytes() == b"one.keras"
        with pytest.raises(it.settings.Unusable, match="no object at gs://models/none"):
            it.storage.model_place(it.settings.Settings(storage_uri="gs://models/none"))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["saved_model.pb", "model.keras", "variables/x.h5"], ("saved_model", "")),
        (["a/1/saved_model.pb", "b.onnx"], ("onnx", "b.onnx")),
        (["a/1/saved_model.pbtxt"], ("saved_model", "a/1")),
        (["model.hdf5", "envbuild/model.keras"], ("keras", "model.hdf5")),
        (["model.pt"], ("torchscript", "model.pt")),
    ],
)
def test_of_several_files_the_one_that_lies_highest_and_says_most_is_served(it, tmp_path, names, found):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert it.loading.find_model(tmp_path) == (found[0], tmp_path / found[1])


def test_what_cannot_be_served_says_what_can(it, tmp_path):
    with pytest.raises(it.settings.Unusable, match=r"saved_model\.pb, \*\.keras"):
        it.loading.load_model(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"pickle")
    with pytest.raises(it.settings.Unusable, match=r"torch\.jit\.save"):
        it.loading.load_model(tmp_path)
    with pytest.raises(it.settings.Unusable, match="no model at"):
        it.storage.model_place(it.settings.Settings(model_folder=str(tmp_path / "none")))
