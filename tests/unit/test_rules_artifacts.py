"""Which library's model files another version of it loads, and what a pickle needs."""

import pytest

from envbuild.capture.model import model_facts
from envbuild.manifest.model import Artifact, Model, Writer
from envbuild.validation import read_or_none
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.artifacts import artifact_library, artifact_pickle
from envbuild.verify.sources import Package, Side
from tests.unit.modelling import MODELS


def model_of(format_: str, *writers: tuple[str, str], **details: str) -> Side:
    written = tuple(Writer(name=name, version=version) for name, version in writers)
    model = Model(uri="gs://m/churn", format=format_, written_by=written, details=tuple(sorted(details.items())))
    return Side(name="churn", kind="model", model=model)


def having(*, python: str = "3.11.7", complete: bool = True, **packages: str) -> Side:
    names = {name.replace("_", "-"): version for name, version in packages.items()}
    found = {name: Package(name=name, version=version) for name, version in names.items()}
    return Side(name="image", kind="image", python=python, packages=found, complete=complete)


SKLEARN = ("scikit-learn", "1.3.2")
BOOSTED = ("xgboost", "2.0.3")


@pytest.mark.parametrize(
    ("model", "environment", "wrong"),
    [
        (model_of("pickle", SKLEARN), having(scikit_learn="1.3.0"), False),
        (model_of("pickle", SKLEARN), having(scikit_learn="1.4.0"), True),
        (model_of("joblib", SKLEARN), having(scikit_learn="1.2.2"), True),
        (model_of("skops", SKLEARN), having(scikit_learn="1.5.0"), True),
        (model_of("skops", SKLEARN), having(numpy="1.26.4"), True),
        (model_of("skops", SKLEARN), having(numpy="1.26.4", complete=False), False),
        (model_of("xgboost", BOOSTED), having(xgboost="2.0.0"), False),
        (model_of("xgboost", BOOSTED), having(xgboost_cpu="3.2.0"), False),
        (model_of("xgboost", BOOSTED), having(xgboost="1.7.6"), True),
        (model_of("pickle", BOOSTED), having(xgboost="3.2.0"), True),
        (model_of("xgboost", ("xgboost", "1.7"), encoding="binary"), having(xgboost="3.0.5"), False),
        (model_of("xgboost", ("xgboost", "1.7"), encoding="binary"), having(xgboost="3.1.0"), True),
        (model_of("catboost", ("catboost", "1.2.2")), having(catboost="1.2.8"), False),
        (model_of("catboost", ("catboost", "1.2.2")), having(catboost="1.1.1"), True),
        (model_of("lightgbm", version="v4"), having(lightgbm="4.6.0"), False),
        (model_of("lightgbm", version="v4"), having(lightgbm="3.3.5"), False),
        (model_of("lightgbm", version="v3"), having(lightgbm="3.3.5"), False),
        (model_of("lightgbm", version="v4"), having(numpy="1.26.4"), True),
        (model_of("lightgbm", version="v4"), having(numpy="1.26.4", complete=False), False),
        (model_of("onnx", opset="21", ir_version="10"), having(onnxruntime="1.17.3"), True),
        (model_of("onnx", opset="20", ir_version="10"), having(onnxruntime_gpu="1.17.3"), True),
        (model_of("onnx", opset="20", ir_version="9"), having(onnxruntime="1.17.3"), False),
        (model_of("onnx", opset="99", ir_version="99"), having(onnxruntime="1.99.0"), False),
        (model_of("onnx", opset="99", ir_version="9"), having(onnxruntime="1.31.1"), True),
        (model_of("onnx", opset="21", ir_version="10"), having(torch="2.6.0"), False),
        (model_of("saved_model", ("tensorflow", "2.15.1")), having(numpy="1.26.4"), False),
    ],
)
def test_a_library_loads_what_it_promises_to(model, environment, wrong):
    found = [it for it in apply_rules(model, environment, (artifact_library,)) if not it.agrees]
    assert bool(found) is wrong
    gravest = "warning" if model.model.format == "catboost" else "error"
    assert all(it.severity == gravest and it.todo for it in found)
    turned = [it for it in apply_rules(environment, model, (artifact_library,)) if not it.agrees]
    assert len(turned) == len(found)


@pytest.mark.parametrize(
    ("details", "environment", "named"),
    [
        ({"protocol": "4", "modules": "numpy,sklearn"}, having(numpy="2.1.0", scikit_learn="1.3.2"), ()),
        ({"protocol": "4", "modules": "sklearn"}, having(numpy="2.1.0"), ("sklearn", "scikit-learn")),
        ({"protocol": "4", "modules": "sklearn"}, having(numpy="2.1.0", complete=False), ()),
        ({"protocol": "4", "modules": "xgboost"}, having(xgboost_cpu="2.1.0"), ()),
        ({"protocol": "4", "modules": "churn"}, having(numpy="2.1.0"), ()),
        (
            {"protocol": "5", "modules": "numpy,pandas,statsmodels"},
            having(numpy="2.1.0", pandas="2.2.3"),
            ("statsmodels",),
        ),
        ({"protocol": "4", "modules": "pandas,prophet"}, having(pandas="2.2.3", prophet="1.1.7"), ()),
        ({"protocol": "4", "modules": "pandas,prophet"}, having(pandas="2.2.3"), ("prophet",)),
        ({"protocol": "5", "modules": ""}, having(python="3.7.17"), ("protocol 5", "3.7.17")),
        ({"protocol": "5", "modules": ""}, having(python="3.8.1"), ()),
        (
            {"protocol": "4", "modules": "__main__", "classes": "__main__.Scaler"},
            having(numpy="2.1.0"),
            ("__main__.Scaler",),
        ),
        (
            {"protocol": "4", "modules": "numpy", "numpy": "1.26.1"},
            having(numpy="1.25.2"),
            ("NumPy 1.26.1", "1.25.2"),
        ),
        ({"protocol": "4", "modules": "numpy", "numpy": "1.26.1"}, having(numpy="1.26.0"), ("NumPy 1.26.1", "1.26.0")),
        ({"protocol": "4", "modules": "numpy", "numpy": "1.26.1"}, having(numpy="1.26.1"), ()),
        ({"protocol": "5", "modules": "numpy", "numpy": "2.0"}, having(numpy="1.26.4"), ("NumPy 2.0", "1.26.4")),
        ({"protocol": "4", "modules": "numpy", "classes": "numpy.core.numeric"}, having(numpy="1.25.2"), ()),
    ],
)
def test_a_pickle_needs_its_modules_and_its_protocol(details, environment, named):
    found = [it for it in apply_rules(model_of("pickle", **details), environment, (artifact_pickle,)) if not it.agrees]
    assert bool(found) is bool(named)
    assert all(part in f"{it.wanted} {it.found} {it.todo}" for it in found for part in named)
    # The program that loads it may have the classes of __main__.
    assert {it.severity for it in found} <= {"warning" if "__main__" in details["modules"] else "error"}


@pytest.mark.parametrize(
    ("environment", "severities"),
    [
        (having(scikit_learn="1.9.1", numpy="2.4.0", joblib="1.5.2"), ["warning"]),
        (having(scikit_learn="1.9.1", numpy="2.4.0", joblib="1.5.2", complete=False), []),
        (having(scikit_learn="1.9.1", numpy="2.4.0", joblib="1.5.2", pandas="2.3.3"), []),
        (having(scikit_learn="1.9.1", numpy="2.4.0", joblib="1.5.2", polars="1.30.0"), []),
        (having(numpy="2.4.0", joblib="1.5.2"), ["error"]),
    ],
)
def test_a_transformer_that_was_fitted_on_a_table_needs_what_has_tables(environment, severities):
    read = read_or_none({"uri": "model", **model_facts(str(MODELS / "columns.joblib"))}, Model)
    found = apply_rules(Side(name="churn", kind="model", model=read), environment, (artifact_pickle,))
    faults = [it for it in found if not it.agrees]
    assert [it.severity for it in faults] == severities
    assert any(it.agrees for it in found) is not bool(severities)
    assert all("pandas" in it.todo and "--golden" in it.todo for it in faults if it.severity == "warning")


def test_an_estimator_that_was_fitted_on_a_table_takes_arrays_too():
    """A LogisticRegression; only a ColumnTransformer selects by name."""
    read = read_or_none({"uri": "model", **model_facts(str(MODELS / "table.joblib"))}, Model)
    environment = having(scikit_learn="1.9.1", numpy="2.4.0", joblib="1.5.2")
    [found] = apply_rules(Side(name="churn", kind="model", model=read), environment, (artifact_pickle,))
    assert (found.agrees, found.says) == (True, "it needs joblib, numpy, sklearn, and image has them")


def onnx(ir_version: int, opset: int, ml: int | None = None) -> Side:
    return model_of("onnx", ir_version=str(ir_version), opset=str(opset), **{"opset:ai.onnx.ml": str(ml or "")})


@pytest.mark.parametrize(
    ("model", "environment", "named"),
    [
        (onnx(8, 17), having(onnxruntime="1.12.1"), ()),
        (onnx(8, 18), having(onnxruntime="1.12.1"), ("opset 18", "opset 17", "1.14 or later")),
        (onnx(10, 18), having(onnxruntime="1.16.3"), ("IR version 10", "1.18 or later")),
        (onnx(9, 18), having(onnxruntime_gpu="1.16.3"), ()),
        (
            onnx(10, 22, 5),
            having(onnxruntime_gpu="1.17.3"),
            ("IR version 10", "opset 22", "opset of ai.onnx.ml 5", "1.21"),
        ),
        (onnx(4, 11, 3), having(onnxruntime="1.10.0"), ("ai.onnx.ml 3", "1.11")),
        (onnx(99, 17), having(onnxruntime="1.32.0"), ("IR version 99",)),
        (onnx(99, 17), having(onnxruntime="1.33.0"), ()),
        (onnx(99, 17), having(onnxruntime="1.2.0"), ()),
        (onnx(99, 17), having(torch="2.1.0"), ()),
        (model_of("onnx"), having(onnxruntime="1.12.1"), ()),
    ],
)
def test_onnx_runtime_reads_a_model_up_to_its_opset(model, environment, named):
    found = [it for it in apply_rules(model, environment, (artifact_library,)) if not it.agrees]
    assert bool(found) is bool(named)
    assert all(part in f"{it.says} {it.todo}" for it in found for part in named)


def test_each_artifact_of_a_folder_is_judged_and_named():
    artifacts = (
        Artifact(path="model.ubj", format="xgboost", written_by=(Writer(name="xgboost", version="2.0.3"),)),
        Artifact(path="scaler.joblib", format="joblib", written_by=(Writer(name="scikit-learn", version="1.3.2"),)),
    )
    side = Side(name="churn", kind="model", model=Model(uri="m", format="xgboost", artifacts=artifacts))
    found = apply_rules(side, having(xgboost="2.1.0", scikit_learn="1.4.0"), (artifact_library,))
    assert [(it.about, it.agrees) for it in found] == [
        ("scaler.joblib of scikit-learn", False),
        ("model.ubj of XGBoost", True),
    ]
