"""Models of scikit-learn, XGBoost, LightGBM and CatBoost, and pickles of whatever has `predict`."""

from __future__ import annotations

import importlib
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.arrays import Refused, Tensor
from serving.model import Arrays, Model
from serving.settings import Unusable

METHODS = "ENVBUILD_METHODS"
"""The methods that give the outputs, each under its name: `predict,predict_proba`; `predict` by default."""

COLUMNS = Path(__file__).parents[1] / "columns.json"
"""The columns of the table that the run recorded, which `envbuild serve` writes."""


@dataclass(frozen=True)
class Column:
    """A column of a table; without types where only its name is known."""

    name: str
    kind: str | None = None
    """What is sent for it: `int64`, or `bytes` for text."""
    dtype: str | None = None
    """As pandas names it."""
    categories: tuple[Any, ...] = ()
    none: bool = False
    """Whether null is None in an object column, and not NaN."""

    def series(self, pandas: Any, array: np.ndarray) -> Any:
        """Return values as training had them; Refused where they are not of the type."""
        values = _values(array)
        if self.dtype is None or (array.dtype.name == self.dtype != "object"):
            return values
        if self.dtype == "object" and not self.none:
            values[values == None] = np.nan  # noqa: E711 - of each element
        if self.kind == self.dtype and None in values.tolist():
            raise Refused(f"input {self.name!r} takes {self.dtype}, which has no missing values")
        dtype = pandas.CategoricalDtype(self.categories) if self.dtype == "category" else self.dtype
        try:
            return pandas.Series(values.tolist(), dtype=dtype)
        except (ValueError, TypeError) as error:
            raise Refused(f"input {self.name!r} takes {self.dtype}: {error}") from None


def _recorded() -> dict[str, Column]:
    if not COLUMNS.is_file():
        return {}
    return {it["name"]: Column(**it) for it in json.loads(COLUMNS.read_bytes())}


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

        def predict(given: Any) -> Any:
            return booster.predict(xgboost.DMatrix(given, enable_categorical=hasattr(given, "columns")))

        return described("xgboost", _columns(booster), booster.num_features(), {"predict": predict})
    loaded = getattr(xgboost, name)()
    loaded.load_model(str(path))
    return estimator("xgboost", loaded, _columns(booster))


def _columns(booster: Any) -> tuple[Column, ...]:
    """Return the columns of XGBoost, which are numbers but for categories."""
    types = booster.feature_types or ["c"] * len(booster.feature_names or ())
    pairs = zip(booster.feature_names or (), types)  # noqa: B905 - Python 3.9 has no strict
    return tuple(Column(name, None if kind == "c" else "float64") for name, kind in pairs)


def load_lightgbm(path: Path) -> Model:
    """Load LightGBM's text as a Booster, whose predictions are probabilities for classes."""
    booster = importlib.import_module("lightgbm").Booster(model_file=str(path))
    columns = tuple(_recorded().values()) if len(_recorded()) == booster.num_feature() else ()
    return described("lightgbm", columns, booster.num_feature(), {"predict": booster.predict})


def load_catboost(path: Path) -> Model:
    """Load a model as the class that its loss is for."""
    catboost = importlib.import_module("catboost")
    kind = "json" if path.suffix == ".json" else "cbm"
    loaded = catboost.CatBoost().load_model(str(path), format=kind)
    loss = str(loaded.get_all_params().get("loss_function", ""))
    if loss in ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"):
        loaded = catboost.CatBoostClassifier().load_model(str(path), format=kind)
    names = tuple(loaded.feature_names_)
    words = {*loaded.get_cat_feature_indices(), *loaded.get_text_feature_indices()}
    if names != tuple(map(str, range(len(names)))):
        columns = (Column(name, None if at in words else "float64") for at, name in enumerate(names))
        return estimator("catboost", loaded, tuple(columns))
    return estimator("catboost", loaded, width=0 if words else len(names))


def estimator(platform: str, loaded: Any, columns: tuple[Column, ...] = (), width: int = 0) -> Model:
    """Describe an object by scikit-learn's conventions; Unusable where it lacks a method that is to be called.

    `columns` and `width` are what it takes where it does not say so in scikit-learn's way.
    """
    wanted = [name.strip() for name in os.environ.get(METHODS, "predict").split(",") if name.strip()]
    missing = [name for name in wanted if name.startswith("_") or not callable(getattr(loaded, name, None))]
    if missing or not wanted:
        kind = f"{type(loaded).__module__}.{type(loaded).__name__}"
        raise Unusable(f"the model, a {kind}, has no method {', '.join(missing) or 'named'}: correct {METHODS}")
    columns = columns or tuple(Column(str(name)) for name in getattr(loaded, "feature_names_in_", ()))
    columns = columns or tuple(_recorded().values())
    width = width or getattr(loaded, "n_features_in_", 0)
    return described(platform, columns, width, {name: getattr(loaded, name) for name in wanted})


def described(platform: str, columns: tuple[Column, ...], width: int, methods: Mapping[str, Any]) -> Model:
    """Return a model that takes the columns of a table by name, or rows of `width` numbers, or single values."""
    recorded = _recorded()
    columns = tuple(recorded.get(it.name, it) for it in columns)
    inputs = tuple(Tensor(it.name, it.kind, (None,), text=True) for it in columns)
    if not columns:
        inputs = (Tensor("input", "float64", (None, width)) if width else Tensor("input", text=True),)

    def call(arrays: Arrays) -> Arrays:
        given: Any
        if columns:
            pandas = importlib.import_module("pandas")
            given = pandas.DataFrame({it.name: it.series(pandas, arrays[it.name]) for it in columns})
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
    if found.dtype.kind in "OU" and np.array(found.tolist()).dtype.kind in "biuf":
        found = np.array(found.tolist())
    if found.dtype.kind not in "OU":
        return found
    words = [str(it).encode() for it in found.ravel().tolist()]
    return np.array(words, dtype=object).reshape(found.shape)
