"""Models of scikit-learn, XGBoost, LightGBM and CatBoost, and pickles of whatever has `predict`."""

from __future__ import annotations

import importlib
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serving.arrays import Tensor
from serving.model import Arrays, Model
from serving.settings import Unusable

METHODS = "ENVBUILD_METHODS"
"""The methods that give the outputs, each under its name: `predict,predict_proba`; `predict` by default."""


def load_pickle(path: Path) -> Model:
    """Unpickle a model: by joblib, which wrote arrays in its own way, where it is installed."""
    try:
        loaded = importlib.import_module("joblib").load(path)
    except ModuleNotFoundError as error:
        if error.name != "joblib":
            raise
        with path.open("rb") as file:
            loaded = pickle.load(file)  # noqa: S301 - the person who built this image put the model into it
    return estimator("sklearn", loaded)


def load_skops(path: Path) -> Model:
    """Load a model of skops, and the types that it names, which a pickle would load as well."""
    skops = importlib.import_module("skops.io")
    return estimator("sklearn", skops.load(path, trusted=skops.get_untrusted_types(file=path)))


def load_xgboost(path: Path) -> Model:
    """Load a model as the class of scikit-learn's interface that saved it, else as a Booster."""
    xgboost = importlib.import_module("xgboost")
    booster = xgboost.Booster(model_file=str(path))
    kind = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type")
    name = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}.get(kind)
    if name is None:
        names = tuple(booster.feature_names or ())
        return described(
            "xgboost", names, booster.num_features(), {"predict": lambda x: booster.predict(xgboost.DMatrix(x))}
        )
    loaded = getattr(xgboost, name)()
    loaded.load_model(str(path))
    return estimator("xgboost", loaded)


def load_lightgbm(path: Path) -> Model:
    """Load LightGBM's text as a Booster, whose predictions are probabilities for classes."""
    booster = importlib.import_module("lightgbm").Booster(model_file=str(path))
    return described("lightgbm", (), booster.num_feature(), {"predict": booster.predict})


def load_catboost(path: Path) -> Model:
    """Load a model as the class that its loss is for."""
    catboost = importlib.import_module("catboost")
    kind = "json" if path.suffix == ".json" else "cbm"
    loaded = catboost.CatBoost().load_model(str(path), format=kind)
    loss = str(loaded.get_all_params().get("loss_function", ""))
    if loss in ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"):
        loaded = catboost.CatBoostClassifier().load_model(str(path), format=kind)
    names = tuple(loaded.feature_names_)
    if names != tuple(map(str, range(len(names)))):
        return estimator("catboost", loaded, columns=names)
    words = loaded.get_cat_feature_indices() or loaded.get_text_feature_indices()
    return estimator("catboost", loaded, width=0 if words else len(names))


def estimator(platform: str, loaded: Any, columns: tuple[str, ...] = (), width: int = 0) -> Model:
    """Describe an object by scikit-learn's conventions; Unusable where it lacks a method that is to be called.

    `columns` and `width` are what it takes where it does not say so in scikit-learn's way.
    """
    wanted = [name.strip() for name in os.environ.get(METHODS, "predict").split(",") if name.strip()]
    missing = [name for name in wanted if name.startswith("_") or not callable(getattr(loaded, name, None))]
    if missing or not wanted:
        kind = f"{type(loaded).__module__}.{type(loaded).__name__}"
        raise Unusable(f"the model, a {kind}, has no method {', '.join(missing) or 'named'}: correct {METHODS}")
    names = getattr(loaded, "feature_names_in_", None)
    columns = columns or (tuple(map(str, names)) if names is not None else ())
    width = width or getattr(loaded, "n_features_in_", 0)
    return described(platform, columns, width, {name: getattr(loaded, name) for name in wanted})


def described(platform: str, columns: tuple[str, ...], width: int, methods: Mapping[str, Any]) -> Model:
    """Return a model that takes the columns of a table by name, or rows of `width` numbers, or single values."""
    inputs = tuple(Tensor(name, text=True) for name in columns)
    if not columns:
        inputs = (Tensor("input", "float64", (None, width)) if width else Tensor("input", text=True),)

    def call(arrays: Arrays) -> Arrays:
        given: Any
        if columns:
            pandas = importlib.import_module("pandas")
            given = pandas.DataFrame({name: _values(arrays[name]) for name in columns})
        else:
            given = _values(arrays["input"])
        return {name: _answer(method(given)) for name, method in methods.items()}

    return Model(platform=platform, inputs=inputs, outputs=tuple(Tensor(name) for name in methods), call=call)


def _values(array: np.ndarray) -> np.ndarray:
    """Return text as the strings that models were trained on."""
    if array.dtype.kind != "O":
        return array
    words = [it.decode("utf-8", "replace") if isinstance(it, bytes) else it for it in array.ravel().tolist()]
    return np.array(words, dtype=object).reshape(array.shape)


def _answer(value: Any) -> np.ndarray:
    found = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    if found.dtype.kind not in "OU":
        return found
    words = [str(it).encode() for it in found.ravel().tolist()]
    return np.array(words, dtype=object).reshape(found.shape)
