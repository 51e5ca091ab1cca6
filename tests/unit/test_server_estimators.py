"""Models with scikit-learn's methods in the ready server: of arrays, of tables and of texts."""

import importlib
import pickle
import sys
from types import SimpleNamespace

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


def test_columns_go_by_name_with_all_their_digits():
    it = load()
    given = {}

    def call(arrays):
        given.update(arrays)
        return {"predict": np.zeros(1)}

    inputs = tuple(it.arrays.Tensor(name, text=True) for name in ("age", "city"))
    model = it.model.Model(platform="sklearn", inputs=inputs, outputs=(), call=call)
    code, _ = Served(it, model).post("/predict", {"instances": [{"age": 16777217.5, "city": "Bonn"}]})
    assert code == 200
    assert given["age"].tolist() == [16777217.5]
    assert given["city"].tolist() == [b"Bonn"]
