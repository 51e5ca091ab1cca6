"""A model's files: found, and loaded by the framework that wrote them. Another `load_model` may stand here."""

from __future__ import annotations

import importlib
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving.arrays import BYTES, Tensor
from serving.estimators import load_catboost, load_lightgbm, load_pickle, load_skops, load_xgboost
from serving.model import Arrays, Model
from serving.settings import Unusable

FILES = (
    (r"saved_model\.pb(txt)?", "saved_model", b""),
    (r".*\.keras", "keras", b""),
    (r".*\.onnx", "onnx", b""),
    (r".*\.(h5|hdf5)", "keras", b""),
    (r".*\.pt2", "torch_export", b""),
    (r".*\.pth?", "torchscript", b""),
    (r".*\.(pkl|pickle|joblib|cloudpickle)", "pickle", b""),
    (r".*\.skops", "skops", b"PK"),
    (r".*\.(ubj|xgb|model|bst)", "xgboost", b""),
    (r".*\.cbm", "catboost", b"CBM1"),
    (r".*\.json", "xgboost", b'{"learner"'),
    (r".*\.txt", "lightgbm", b"tree"),
)
"""Names of files, how what they hold is loaded, and how it begins: what says most about a model first."""
STAMP_FOLDER = "envbuild"
"""What lies beside a model to say where it comes from is no part of it."""
ONNX = {"float": "float32", "double": "float64", "string": BYTES}
"""Types that ONNX names in its own way."""


def load_model(place: Path) -> Model:
    """Load a model's file, or the one in a folder; Unusable where there is none that can be served."""
    how, path = find_model(place)
    try:
        return LOADERS[how](path)
    except ImportError as error:
        raise Unusable(f"{path} cannot be loaded, as this environment has not what wrote it: {error}") from error


def find_model(place: Path) -> tuple[str, Path]:
    """Return how a model is loaded, and from where: of several files the one that lies highest and says most."""
    ranked = [
        (path.relative_to(place).as_posix().count("/"), rank, path, how)
        for path in _files(place)
        for rank, (pattern, how, start) in enumerate(FILES)
        if re.fullmatch(pattern, path.name) and _head(path, len(start)) == start
    ]
    if not ranked:
        known = (
            "saved_model.pb, *.keras, *.h5, *.onnx, *.pt2, *.pt of TorchScript, *.pkl, *.joblib, *.skops, *.ubj, *.cbm"
        )
        raise Unusable(f"there is no model that can be served in {place}: {known}")
    _, _, path, how = min(ranked)
    return how, path.parent if how == "saved_model" else path


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(it for it in folders if it != STAMP_FOLDER)
        yield from (Path(folder, name) for name in sorted(names))


def _head(path: Path, length: int) -> bytes:
    if not length:
        return b""
    with path.open("rb") as file:
        return file.read(length)


def _tensor(name: str, dtype: Any, shape: Any) -> Tensor:
    """Describe a tensor of TensorFlow or Keras; what is passed on as a bfloat16 is taken as a float32."""
    kind = str(getattr(dtype, "name", dtype))
    try:
        lengths = tuple(None if it is None else int(it) for it in shape)
    except (TypeError, ValueError):  # TensorFlow's word for a shape that is not known
        return Tensor(name, {"string": BYTES, "bfloat16": "float32"}.get(kind, kind))
    return Tensor(name, {"string": BYTES, "bfloat16": "float32"}.get(kind, kind), lengths)


def _saved_model(path: Path) -> Model:
    """Call the signature that TensorFlow Serving calls."""
    tf = importlib.import_module("tensorflow")
    loaded = tf.saved_model.load(str(path))
    names = list(loaded.signatures)
    if "serving_default" not in names and len(names) != 1:
        raise Unusable(f"{path} has no signature serving_default, but {', '.join(names) or 'none'}")
    serve = loaded.signatures["serving_default" if "serving_default" in names else names[0]]
    specs = dict(sorted(serve.structured_input_signature[1].items()))

    def call(arrays: Arrays, _owner: Any = loaded) -> Arrays:  # it owns the variables that the signature reads
        given = {name: tf.cast(tf.constant(arrays[name]), spec.dtype) for name, spec in specs.items()}
        return {name: value.numpy() for name, value in serve(**given).items()}

    return Model(
        platform="tensorflow_savedmodel",
        inputs=tuple(_tensor(name, it.dtype, it.shape) for name, it in specs.items()),
        outputs=tuple(_tensor(name, it.dtype, it.shape) for name, it in sorted(serve.structured_outputs.items())),
        call=call,
    )


def _keras(path: Path) -> Model:
    """Predict as training did when it recorded its sample."""
    keras = _keras_module()
    model = keras.models.load_model(str(path), compile=False)
    inputs = tuple(_tensor(name, it.dtype, it.shape) for name, it in _named(model, "input"))
    outputs = tuple(_tensor(name, it.dtype, it.shape) for name, it in _named(model, "output"))
    predict = _step_of_keras_2(model) if keras.__version__.startswith("2.") else model.predict_on_batch

    def call(arrays: Arrays) -> Arrays:
        given = dict(arrays) if len(arrays) > 1 else next(iter(arrays.values()))
        return _by_name(predict(given), [it.name for it in outputs])

    return Model(platform="keras", inputs=inputs, outputs=outputs, call=call)


def _step_of_keras_2(model: Any) -> Callable[[Any], Any]:
    """Return what predict_on_batch computes in Keras 2, without the data pipeline that it sets up for each call."""
    tf = importlib.import_module("tensorflow")
    specs = {name: tf.TensorSpec(it.shape, it.dtype) for name, it in _named(model, "input")}
    if not specs:
        return model.predict_on_batch  # type: ignore[no-any-return]
    step = tf.function(model.predict_step, input_signature=[specs if len(specs) > 1 else next(iter(specs.values()))])

    def predict(given: Any) -> Any:
        if isinstance(given, dict):
            return step({name: tf.cast(tf.constant(it), specs[name].dtype) for name, it in given.items()})
        return step(tf.cast(tf.constant(given), next(iter(specs.values())).dtype))

    return predict


def _keras_module() -> Any:
    """Return the Keras that programs get in this environment."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return importlib.import_module("tf_keras")
    try:
        return importlib.import_module("keras")
    except ImportError:
        return importlib.import_module("tensorflow").keras


def _named(model: Any, side: str) -> list[tuple[str, Any]]:
    """Return a Keras model's symbolic tensors by the names that it takes or gives them by."""
    tensors = getattr(model, f"{side}s", None) or []
    names = getattr(model, f"{side}_names", None)  # of Keras 2; Keras 3 goes by the tensors, or the keys of a dict
    structure = getattr(model, f"_{side}s_struct", None)
    if isinstance(structure, dict):
        return sorted(structure.items())
    if not names or len(names) != len(tensors):
        names = [it.name for it in tensors]
    return list(zip(names, tensors))  # noqa: B905 - Python 3.9 has no strict


def _torchscript(path: Path) -> Model:
    """Call it by place, on a GPU where there is one."""
    if not zipfile.is_zipfile(path) or not any("/code/" in name for name in zipfile.ZipFile(path).namelist()):
        raise Unusable(f"{path} holds weights or a pickle: save the model by torch.jit.save, which keeps its program")
    torch = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.jit.load(str(path), map_location=device).eval()
    names = [it.name for it in model.forward.schema.arguments if it.name != "self"]

    def call(arrays: Arrays) -> Arrays:
        given = [torch.from_numpy(np.ascontiguousarray(arrays[name])).to(device) for name in names]
        with torch.no_grad():
            return _by_name(model(*given), [])

    return Model(platform="pytorch_torchscript", inputs=tuple(Tensor(it) for it in names), outputs=(), call=call)


def _torch_export(path: Path) -> Model:
    """Call an exported program by place, on the device that it was exported for."""
    torch = importlib.import_module("torch")
    program = torch.export.load(str(path))
    module, values = program.module(), {it.name: it.meta["val"] for it in program.graph.nodes if it.op == "placeholder"}
    taken = [(name, values[name]) for name in program.graph_signature.user_inputs]
    inputs = tuple(Tensor(name, str(it.dtype).rpartition(".")[2], tuple(map(_length, it.shape))) for name, it in taken)

    def call(arrays: Arrays) -> Arrays:
        given = [torch.from_numpy(np.ascontiguousarray(arrays[name])).to(it.device) for name, it in taken]
        with torch.no_grad():
            return _by_name(module(*given), [])

    return Model(platform="pytorch_export", inputs=inputs, outputs=(), call=call)


def _length(size: Any) -> int | None:
    """Return a length; None for one that may differ from call to call."""
    return size if isinstance(size, int) else None


def _onnx(path: Path) -> Model:
    """Call it with the providers that the runtime has, the fastest first."""
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=runtime.get_available_providers())
    outputs = tuple(_onnx_tensor(it) for it in session.get_outputs())

    def call(arrays: Arrays) -> Arrays:
        given = {name: _words(it) if it.dtype.kind == "O" else it for name, it in arrays.items()}
        names = [it.name for it in outputs]
        return dict(zip(names, session.run(names, given)))  # noqa: B905 - Python 3.9 has no strict

    inputs = tuple(_onnx_tensor(it) for it in session.get_inputs())
    return Model(platform="onnx_onnxv1", inputs=inputs, outputs=outputs, call=call)


def _words(array: np.ndarray) -> np.ndarray:
    """Return strings as ONNX Runtime takes them, which knows only text."""
    return np.array([it.decode("utf-8", "replace") for it in array.flat], dtype=object).reshape(array.shape)


def _onnx_tensor(item: Any) -> Tensor:
    kind = item.type[len("tensor(") : -1]
    shape = tuple(it if isinstance(it, int) else None for it in item.shape)
    return Tensor(item.name, ONNX.get(kind, kind), shape)


def _by_name(value: Any, names: Sequence[str]) -> Arrays:
    """Return what a model answered as arrays by name, numbered where nothing names them."""
    if isinstance(value, Mapping):
        return {str(name): _array(it) for name, it in value.items()}
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    known = names if len(names) == len(items) else [f"output_{at}" for at in range(len(items))]
    return {name: _array(it) for name, it in zip(known, items)}  # noqa: B905 - Python 3.9 has no strict


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # NumPy has no such type
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


LOADERS: dict[str, Callable[[Path], Model]] = {
    "saved_model": _saved_model,
    "keras": _keras,
    "onnx": _onnx,
    "torchscript": _torchscript,
    "torch_export": _torch_export,
    "pickle": load_pickle,
    "skops": load_skops,
    "xgboost": load_xgboost,
    "lightgbm": load_lightgbm,
    "catboost": load_catboost,
}
