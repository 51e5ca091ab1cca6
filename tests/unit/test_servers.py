"""What a serving image gets so that it answers requests."""

import ast
import base64
import json
from dataclasses import replace

import pytest
from packaging.requirements import Requirement

from envbuild.errors import UsageError
from envbuild.manifest.model import Array, Golden, Model
from envbuild.serve.contents import REQUIREMENTS, server_parts
from tests.fakes.images import image_of
from tests.unit.serving_app import FOLDER
from tests.unit.test_gate import order_of, origin_of
from tests.unit.test_golden_check import array_of, golden_of, manifest_with, texts


def origin(kind=None):
    manifest = replace(manifest_with(None), model=Model(uri="/m", format=kind) if kind else None)
    return origin_of(image_of(), manifest)


def test_the_ready_server_is_its_folder_at_app(tmp_path):
    server = server_parts(order_of(tmp_path, server="fastapi"), origin("keras"))
    files = {path.removeprefix("/app/"): source for path, source in server.files.items()}
    assert {FOLDER / path for path in files} == set(files.values()) == set(FOLDER.rglob("*.py"))
    assert server.cmd == ("/opt/env/bin/python", "/app/serve.py")
    assert (server.ports, server.health, server.predict) == ((8080,), "/health", "/predict")


@pytest.mark.parametrize(
    ("outputs", "methods"),
    [
        (("predict", "predict_proba"), "predict,predict_proba"),
        (("predict_proba",), "predict_proba"),
        (("predict",), None),
        (("",), None),
        (("probability",), None),
    ],
)
def test_it_calls_the_methods_whose_outputs_the_run_recorded(tmp_path, outputs, methods):
    arrays = tuple(Array(name=name, dtype="float32", shape=(1,), data="AAAAAA==") for name in outputs)
    golden = Golden(inputs=arrays[:1], outputs=arrays, rtol=1e-5, atol=1e-6)
    recorded = replace(origin("joblib"), manifest=manifest_with(golden))
    server = server_parts(order_of(tmp_path, server="fastapi"), recorded)
    assert dict(server.variables).get("ENVBUILD_METHODS") == methods


def test_it_gets_the_columns_of_the_table_that_the_run_recorded(tmp_path):
    categories = base64.b64encode(b'["Bonn","Ulm"]').decode()
    columns = [
        array_of([1.0], name="age"),
        texts("Ulm", dtype="category", name="city", categories=categories),
        texts(None, "x", name="note"),
        texts(float("nan"), True, name="vip"),
        texts(None, dtype="Int64", name="visits"),
    ]
    table = replace(golden_of(columns, [texts("ja", name="predict")]), table=True)
    order, recorded = order_of(tmp_path, server="fastapi"), replace(origin("joblib"), manifest=manifest_with(table))
    content = server_parts(order, recorded).files["/app/columns.json"]
    assert isinstance(content, bytes)
    unknown = {"categories": [], "none": False}
    assert json.loads(content) == [
        {"name": "age", "dtype": "float32", "kind": "float32"},
        {"name": "city", "dtype": "category", "kind": "bytes", "categories": ["Bonn", "Ulm"], "none": False},
        {"name": "note", "dtype": "object", "kind": "bytes", "categories": [], "none": True},
        {"name": "vip", "dtype": "object", "kind": "bool", **unknown},
        {"name": "visits", "dtype": "Int64", "kind": None, "categories": [], "none": True},
    ]
    damaged = manifest_with(replace(table, inputs=(replace(columns[1], categories="A"),)))
    assert "/app/columns.json" not in server_parts(order, replace(recorded, manifest=damaged)).files


def test_its_requirements_are_what_it_imports():
    imported = {
        str(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    theirs = {
        "fastapi",
        "uvicorn",
        "prometheus_client",
        "starlette",
        "numpy",
    }  # FastAPI brings Starlette, training NumPy
    assert theirs <= imported
    named = {Requirement(it).name.replace("-", "_") for it in REQUIREMENTS}
    assert named == theirs - {"starlette", "numpy"}


def test_the_applications_own_files_take_the_place_of_the_servers(tmp_path):
    (tmp_path / "app/serving").mkdir(parents=True)
    (tmp_path / "app/serving/loading.py").touch()
    server = server_parts(order_of(tmp_path, server="fastapi", app=tmp_path / "app"), origin("safetensors"))
    assert "/app/serving/app.py" in server.files
    assert "/app/serving/loading.py" not in server.files


@pytest.mark.parametrize("kind", ["safetensors", "orbax", "tf_checkpoint"])
def test_a_format_that_no_loader_knows_is_refused_early(tmp_path, kind):
    with pytest.raises(UsageError, match=f"the model is {kind}") as caught:
        server_parts(order_of(tmp_path, server="fastapi"), origin(kind))
    assert "serving/loading.py" in caught.value.todo


def test_an_application_alone_is_started_as_was_said(tmp_path):
    server = server_parts(order_of(tmp_path, cmd=("python", "main.py")), origin("keras"))
    assert (server.cmd, server.files, server.requirements) == (("python", "main.py"), {}, ())


def test_a_server_of_its_own_is_no_part_of_an_image(tmp_path):
    with pytest.raises(UsageError, match="triton is an image of its own"):
        server_parts(order_of(tmp_path, server="triton"), origin("onnx"))
