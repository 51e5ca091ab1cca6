"""Run a model on recorded inputs, or import modules: `program.py --out FILE`, beside `order.json`; `-` is stdout.

One file that any environment's Python from 3.7 on runs alone; it imports what the model's format needs and nothing of
envbuild but the file beside it that capture is, whose arrays it writes.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import sys
import traceback
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slower to load, and enough is
CAPTURE = "envbuild_capture"
LAST_LINES = 12
LONGEST, CAUSES = 500, 20
"""Characters of an error, and errors of a chain."""
ONNX = {"float": "float32", "double": "float64", "string": "object"}
"""Types that ONNX names in its own way."""


class Unclear(Exception):  # noqa: N818 - the sample is at fault, not the environment
    """Why inputs and model cannot be joined."""


def main() -> None:
    """Answer the order, whatever happens: what failed, and in which step, is an answer too."""
    with open(os.path.join(HERE, "order.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        order = json.load(file)
    # The model lies beside this file, and must not be taken for a module.
    sys.path[:] = [path for path in sys.path if path != HERE]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    out = sys.argv[sys.argv.index("--out") + 1]
    descriptor = os.dup(1) if out == "-" else os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(2, 1)  # what a model prints is no part of the answer
    if "modules" in order:
        import_modules(order["modules"], descriptor)
    step = {"name": "import"}
    try:
        answer = {"outputs": encoded(outputs(order, step), [it["name"] for it in order["outputs"]])}
    except Unclear as error:
        answer = {"unclear": str(error)}
    except BaseException as error:  # noqa: BLE001 - frameworks fail in any way
        said = "".join(traceback.format_exception_only(type(error), error))
        answer = {"failed": step["name"], "lines": [line for line in said.split("\n") if line][-LAST_LINES:]}
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def import_modules(modules: list[str], descriptor: int) -> None:
    """Import modules one after the other, whatever each raises, and end the process.

    Each gets a line of JSON before it is imported and one after, so that of a process that ended it is known where.
    """
    os.environ["HOME"] = "/tmp"  # noqa: S108 - what is written at the first import has to go somewhere
    for module in modules:
        write(descriptor, {"begins": module})
        write(descriptor, {"module": module, "error": error_of(module)})
    os._exit(0)  # what modules do at the end of a process is no part of importing them


def write(descriptor: int, value: Any) -> None:
    """Write a line."""
    os.write(descriptor, json.dumps(value).encode() + b"\n")


def error_of(module: str) -> dict[str, Any] | None:
    """Import a module; what it raised, or None."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - modules fail in any way
        return described(error)
    return None


def described(error: BaseException) -> dict[str, Any]:
    """The packages that were being imported, outermost first, the root cause, and what all errors say."""
    causes: list[BaseException] = [error]
    while len(causes) < CAUSES:
        last = causes[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in causes:
            break
        causes.append(cause)
    packages: list[str] = []
    for cause in causes:
        trace = cause.__traceback__
        while trace:
            name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
            if name not in ("", "__main__", "importlib", "_frozen_importlib", *packages):
                packages.append(name)
            trace = trace.tb_next
    root = causes[-1]
    return {
        "packages": packages,
        "root": "{}: {}".format(type(root).__name__, " ".join(str(root).split())[:LONGEST]),
        "says": [str(cause)[:LONGEST] for cause in causes],
        "outside": any(outside(cause) for cause in causes),
    }


def outside(error: BaseException) -> bool:
    """Whether it is about a file, a network or a user that is not there, and not about what is installed."""
    ended = isinstance(error, (SystemExit, KeyboardInterrupt))
    return ended or (isinstance(error, OSError) and error.errno is not None)


def outputs(order: dict[str, Any], step: dict[str, str]) -> Any:
    """Load and call the model: an array, or a list or dict of arrays."""
    framework, load, call = FORMATS[order["format"]]
    modules = framework()
    step["name"] = "load"
    model = load(modules, os.path.join(HERE, order["model"]))  # noqa: PTH118 - an absolute path stays one
    step["name"] = "run"
    return call(modules, model, order["inputs"], order["outputs"])


def encoded(values: Any, wanted: list[str]) -> Any:
    """Encode arrays as capture does; of outputs by name those that were recorded, where all of these are there."""
    sys.path.append(HERE)
    if isinstance(values, dict):
        values = {str(name): value for name, value in values.items()}
        if set(wanted) <= set(values):
            values = {name: values[name] for name in wanted}
    return importlib.import_module(CAPTURE).golden_sample(0, values)["outputs"]


def array_of(item: dict[str, Any]) -> Any:
    """Decode an input."""
    numpy = importlib.import_module("numpy")
    if "values" in item:
        return numpy.array(item["values"], dtype=object).reshape(item["shape"])
    try:
        dtype = numpy.dtype(item["dtype"])
    except TypeError:
        dtype = numpy.dtype(getattr(importlib.import_module("ml_dtypes"), item["dtype"]))
    return numpy.frombuffer(base64.b64decode(item["data"]), dtype).reshape(item["shape"]).copy()


def in_order(inputs: list[dict[str, Any]]) -> bool:
    """Tell whether inputs go by their place and not by names."""
    return all(not item["table"] and (item["name"] == "" or item["name"].isdigit()) for item in inputs)


def by_place(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort inputs that go by their place, which a manifest has as words."""
    return sorted(inputs, key=lambda item: int(item["name"] or 0))


def by_name(inputs: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Join inputs and the names that the model has; Unclear where that is a guess."""
    given = [item["name"] for item in inputs]
    if set(given) == set(names):
        return {item["name"]: array_of(item) for item in inputs}
    if len(given) == len(names) == 1:
        return {names[0]: array_of(inputs[0])}
    said = ", ".join(name or "(without a name)" for name in given)
    raise Unclear(f"inputs {said} were recorded, and the model wants {', '.join(names)}")


def module(name: str) -> Any:
    """Make a function that imports a module."""
    return lambda: importlib.import_module(name)


def tensorflow() -> Any:
    """TensorFlow 2's names, also of TensorFlow 1.15."""
    tf = importlib.import_module("tensorflow")
    if tf.__version__.startswith("1."):
        tf.compat.v1.enable_v2_behavior()
        return tf.compat.v2
    return tf


def call_saved_model(tf: Any, model: Any, inputs: list[dict[str, Any]], _wanted: list[dict[str, Any]]) -> Any:
    """Call the signature that a server calls."""
    names = [str(name) for name in model.signatures]
    if "serving_default" not in names and len(names) != 1:
        raise Unclear("its signatures are %s, and none is serving_default" % (", ".join(names) or "none"))
    serve = model.signatures["serving_default" if "serving_default" in names else names[0]]
    known = serve.structured_input_signature
    specs = known[1] if known else dict(zip(serve._arg_keywords, serve.inputs))  # noqa: B905, SLF001 - of TensorFlow 1
    values = by_name(inputs, list(specs))
    return serve(**{name: tf.cast(tf.constant(value), specs[name].dtype) for name, value in values.items()})


def keras() -> Any:
    """The Keras that programs get in this environment."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return importlib.import_module("tf_keras")
    try:
        return importlib.import_module("keras")
    except ImportError:
        return importlib.import_module("tensorflow").keras


def call_keras(_: Any, model: Any, inputs: list[dict[str, Any]], _wanted: list[dict[str, Any]]) -> Any:
    """Predict as keras_callback() does when it records."""
    if not in_order(inputs):
        return model.predict_on_batch({item["name"]: array_of(item) for item in inputs})
    arrays = [array_of(item) for item in by_place(inputs)]
    return model.predict_on_batch(arrays if len(arrays) > 1 else arrays[0])


def call_torch(module: Any, model: Any, inputs: list[dict[str, Any]], _wanted: list[dict[str, Any]]) -> Any:
    """Call it by place or by name."""
    weight = next((it.dtype for it in model.parameters() if it.is_floating_point()), None)
    with module.no_grad():
        if in_order(inputs):
            return model(*[tensor(module, item, weight) for item in by_place(inputs)])
        return model(**{item["name"]: tensor(module, item, weight) for item in inputs})


def tensor(module: Any, item: dict[str, Any], weight: Any) -> Any:
    """Decode an input; numbers that a list held are float64, which models that have weights of another type refuse."""
    dtype, data = getattr(module, item["dtype"]), bytearray(base64.b64decode(item["data"]))
    value = (module.frombuffer(data, dtype=dtype) if data else module.empty(0, dtype=dtype)).reshape(item["shape"])
    return value.to(weight) if weight is not None and item["dtype"] == "float64" else value


def call_onnx(_: Any, session: Any, inputs: list[dict[str, Any]], _wanted: list[dict[str, Any]]) -> Any:
    """Call it by its own names."""
    types = {one.name: one.type[len("tensor(") : -1] for one in session.get_inputs()}
    values = by_name(inputs, list(types))
    feed = {name: value.astype(ONNX.get(types[name], types[name])) for name, value in values.items()}
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, feed)))  # noqa: B905 - Python 3.7 has no strict


def load_pickle(_: Any, path: str) -> Any:
    """Unpickle a model: by joblib, which wrote arrays in its own way, where it is installed."""
    try:
        return importlib.import_module("joblib").load(path)
    except ImportError as error:
        if error.name != "joblib":
            raise
        with open(path, "rb") as file:  # noqa: PTH123
            return importlib.import_module("pickle").load(file)


def load_skops(skops: Any, path: str) -> Any:
    """Load a model of skops, and the types that it names, which a pickle would load as well."""
    return skops.load(path, trusted=skops.get_untrusted_types(file=path))


def load_xgboost(xgboost: Any, path: str) -> Any:
    """Load a model as the class of scikit-learn's interface that saved it, else as a Booster."""
    booster = xgboost.Booster(model_file=path)
    kind = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type")
    model = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}.get(kind)
    if model is None:
        return booster
    estimator = getattr(xgboost, model)()
    estimator.load_model(path)
    return estimator


def load_catboost(catboost: Any, path: str) -> Any:
    """Load a model as the class that its loss is for."""
    kind = "json" if path.endswith(".json") else "cbm"
    model = catboost.CatBoost().load_model(path, format=kind)
    loss = str(model.get_all_params().get("loss_function", ""))
    classes = ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll")
    return catboost.CatBoostClassifier().load_model(path, format=kind) if loss in classes else model


def call_estimator(_: Any, model: Any, inputs: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> Any:
    """Call the methods that the outputs are named after, or `predict`, or what gives as many dimensions as it had."""
    if in_order(inputs):
        values: Any = array_of(by_place(inputs)[0])
    else:
        values = table_of(importlib.import_module("pandas"), inputs, getattr(model, "feature_names_in_", ()))
    if type(model).__module__.startswith("xgboost") and type(model).__name__ == "Booster":
        values = importlib.import_module("xgboost").DMatrix(values, enable_categorical=not in_order(inputs))
    names = [item["name"] for item in wanted]
    if all(name and callable(getattr(model, name, None)) for name in names):
        return {name: getattr(model, name)(values) for name in names}
    found = model.predict(values)
    several = len(wanted) == 1 and len(wanted[0]["shape"]) == 2 and getattr(found, "ndim", 2) == 1
    return model.predict_proba(values) if several and hasattr(model, "predict_proba") else found


def table_of(pandas: Any, inputs: list[dict[str, Any]], names: Any) -> Any:
    """Make a DataFrame with the columns' own types; what was no table is ordered as the model names its columns."""
    columns = {}
    for item in inputs:
        column = array_of(item)
        if item["table"] and "values" in item:
            known = item["dtype"] == "category"
            dtype = pandas.CategoricalDtype(item["categories"]) if known else item["dtype"]
            column = pandas.Series(item["values"], dtype=dtype)
        columns[item["name"]] = column
    return pandas.DataFrame({name: columns[name] for name in (names if set(names) == set(columns) else columns)})


KERAS = (keras, lambda module, path: module.models.load_model(path, compile=False), call_keras)
"""Without the losses, which only training needs."""
FORMATS: dict[str, Any] = {
    "saved_model": (tensorflow, lambda tf, path: tf.saved_model.load(path), call_saved_model),
    "keras": KERAS,
    "hdf5": KERAS,
    "torchscript": (module("torch"), lambda torch, path: torch.jit.load(path, map_location="cpu").eval(), call_torch),
    "torch_export": (module("torch"), lambda torch, path: torch.export.load(path).module(), call_torch),
    "onnx": (
        module("onnxruntime"),
        lambda runtime, path: runtime.InferenceSession(path, providers=["CPUExecutionProvider"]),
        call_onnx,
    ),
    "pickle": (lambda: None, load_pickle, call_estimator),
    "joblib": (lambda: None, load_pickle, call_estimator),
    "skops": (module("skops.io"), load_skops, call_estimator),
    "xgboost": (module("xgboost"), load_xgboost, call_estimator),
    "lightgbm": (module("lightgbm"), lambda lightgbm, path: lightgbm.Booster(model_file=path), call_estimator),
    "catboost": (module("catboost"), load_catboost, call_estimator),
}
"""How to import, load and call a model of each format; others hold weights without a program."""
PICKLES = ("pickle", "joblib", "skops")
"""Formats that name classes and functions, which are called when a model is loaded."""

if __name__ == "__main__":
    main()
