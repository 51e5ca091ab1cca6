"""Models with scikit-learn's methods in the ready server: of arrays, of tables and of texts."""

import importlib
import pickle
import sys
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

from tests.unit.serving_app import Served, load

TOY = """
import numpy as np

class Rows:
    n_features_in_ = 2

    def predict(self, x):
        return np.where(x.sum(axis=1) > 0, "yes", "no")

    def predict_proba(self, x):
        return np.stack([x.sum(axis=1), -x.sum(axis=1)], axis=1)

class Texts:
    def predict(self, texts):
        return np.array([len(it) for it in texts])
"""


@pytest.fixture
def it(tmp_path, monkeypatch) -> SimpleNamespace:
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    return load()


def served(it: SimpleNamespace, tmp_path, name: str) -> Served:
    toy = importlib.import_module("toy")
    place = tmp_path / "model"
    place.mkdir()
    (place / "model.pkl").write_bytes(pickle.dumps(getattr(toy, name)()))
    return Served(it, it.loading.load_model(place))


def test_rows_of_numbers_get_the_label_of_predict(it, tmp_path):
    server = served(it, tmp_path, "Rows")
    code, answer = server.post("/predict", {"instances": [[1, 2], [-3, 0.5]]})
    assert (code, answer) == (200, {"predictions": ["yes", "no"]})
    code, answer = server.post("/predict", {"instances": [[1, 2, 3]]})
    assert code == 400


def test_several_methods_are_outputs_by_their_names(it, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVBUILD_METHODS", "predict, predict_proba")
    code, answer = served(it, tmp_path, "Rows").post("/predict", {"instances": [[1, 2]]})
    assert (code, answer["predictions"]) == (200, [{"predict": "yes", "predict_proba": [3.0, -3.0]}])


@pytest.mark.parametrize("methods", ["decision_function", "__init__", " , "])
def test_a_method_that_the_model_lacks_stops_the_start(it, tmp_path, monkeypatch, methods):
    monkeypatch.setenv("ENVBUILD_METHODS", methods)
    with pytest.raises(it.settings.Unusable):
        served(it, tmp_path, "Rows")


def test_texts_are_texts(it, tmp_path):
    code, answer = served(it, tmp_path, "Texts").post("/predict", {"instances": ["abc", "", "NaN?"]})
    assert (code, answer) == (200, {"predictions": [3, 0, 4]})


class Asked:
    """A server of a table's columns, and what its model got."""

    def __init__(self, **kinds: str | None) -> None:
        it = load()
        self.given: dict = {}

        def call(arrays):
            self.given = dict(arrays)
            return {"predict": np.array([b"ja"] * len(next(iter(arrays.values()))), dtype=object)}

        inputs = tuple(it.arrays.Tensor(name, kind, (None,), text=True) for name, kind in kinds.items())
        self.server = Served(it, it.model.Model(platform="sklearn", inputs=inputs, outputs=(), call=call))

    def lists(self) -> dict:
        return {name: (it.dtype.name, it.tolist()) for name, it in self.given.items()}


def test_columns_go_by_name_with_all_their_digits():
    asked = Asked(age=None, city=None)
    code, _ = asked.server.post("/predict", {"instances": [{"age": 16777217.5, "city": "Bonn"}]})
    assert code == 200
    assert asked.lists() == {"age": ("float64", [16777217.5]), "city": ("object", [b"Bonn"])}


def test_null_is_a_missing_value_of_a_column():
    rows = [{"a": 1, "b": None, "c": "x", "d": None, "e": 2}, {"a": None, "b": 2, "c": None, "d": None, "e": None}]
    asked = Asked(a="float64", b="int64", c="bytes", d="bytes", e=None)
    assert asked.server.post("/predict", {"instances": rows})[0] == 200
    [body] = (
        asked.server.ask("GET", "/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]["content"].values()
    )
    jsonschema.validate({"instances": rows}, body["schema"])
    found = asked.lists()
    assert [np.isnan(found[name][1]).tolist() for name in "ae"] == [[False, True]] * 2
    assert found["b"] == ("object", [None, 2])
    assert [found[name][1] for name in "cd"] == [[b"x", None], [None, None]]


def test_rows_of_a_table_may_be_lists_in_the_order_of_its_columns():
    asked = Asked(age="int64", city="bytes")
    assert asked.server.post("/predict", {"instances": [[3, "Ulm"], [4, "Bonn"]]}) == (
        200,
        {"predictions": ["ja", "ja"]},
    )
    assert asked.lists() == {"age": ("int64", [3, 4]), "city": ("object", [b"Ulm", b"Bonn"])}
    assert asked.server.post("/predict", {"instances": [[3]]})[0] == 400


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_columns_are_tensors_by_name_and_labels_are_bytes(shape):
    asked = Asked(age="int64", city="bytes", vip="float64", other=None)
    named = asked.server.ask("GET", "/v2/models/model").json()["inputs"]
    types = {it["name"]: (it["datatype"], it["shape"]) for it in named}
    assert types == {"age": ("INT64", [-1]), "city": ("BYTES", [-1]), "vip": ("FP64", [-1]), "other": ("BYTES", [-1])}
    data = {
        "age": ("FP32", [3.0, 4.0]), "city": ("BYTES", ["Ulm", None]), "vip": ("BOOL", [True, False]),
        "other": ("INT8", [1, 2]),
    }  # fmt: skip
    inputs = [{"name": name, "shape": shape, "datatype": kind, "data": it} for name, (kind, it) in data.items()]
    code, answer = asked.server.post("/v2/models/model/infer", {"inputs": inputs})
    assert (code, answer["outputs"]) == (
        200, [{"name": "predict", "shape": [2], "datatype": "BYTES", "data": ["ja", "ja"]}]
    )  # fmt: skip
    assert asked.lists() == {
        "age": ("int64", [3, 4]), "city": ("object", [b"Ulm", None]), "vip": ("float64", [1.0, 0.0]),
        "other": ("int8", [1, 2]),
    }  # fmt: skip


@pytest.mark.parametrize("value", [3.5, "x", {}, [1, 2], [[1]], True])
def test_what_does_not_fit_a_column_is_refused(value):
    asked = Asked(age="int64" if value is not True else "bytes", city="bytes")
    code, answer = asked.server.post("/predict", {"instances": [{"age": value, "city": "Ulm"}]})
    assert code == 400
    assert "'age'" in answer["error"]
