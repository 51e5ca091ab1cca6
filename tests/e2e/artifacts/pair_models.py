"""Train, save and load the small models of tests/data/pairs: `pair_models.py write|load KIND HOW FILE`, on Python 3.6 too.

Prints the predictions, or the error, and the warnings of loading, as JSON.
"""

# The libraries are installed only where this runs.
# mypy: ignore-errors
# ruff: noqa: ICN001, PD011, PLR0911, PTH123

import json
import logging
import math
import os
import random
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

random.seed(7)
ROWS = [[random.random() for _ in range(3)] for _ in range(60)]
TARGETS = [int(row[0] + row[1] > 1) for row in ROWS]
FEW = ROWS[:5]


class Scaler:
    """A class of the program that saves, which no other program has."""

    def predict(self, rows):
        return [row[0] * 2 for row in rows]


def arrays():
    import numpy

    return numpy.array(ROWS), numpy.array(TARGETS)


def logistic():
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(*arrays())


def tree():
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3, random_state=0).fit(*arrays())


def forest():
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=2, max_depth=2, random_state=0).fit(*arrays())


def gradient():
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(n_estimators=2, max_depth=2, random_state=0).fit(*arrays())


def histogram():
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=2, random_state=0).fit(*arrays())


def pipeline():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(*arrays())


def resampled():
    from imblearn.pipeline import make_pipeline
    from imblearn.under_sampling import RandomUnderSampler
    from sklearn.linear_model import LogisticRegression

    return make_pipeline(RandomUnderSampler(random_state=0), LogisticRegression()).fit(*arrays())


def scaler():
    return Scaler()


def columns():
    import numpy

    return {"mean": numpy.array(ROWS).mean(axis=0), "names": ["a", "b", "c"]}


def states():
    import numpy

    return [numpy.random.RandomState(3), numpy.random.default_rng(3)]


def sparse():
    import scipy.sparse

    return scipy.sparse.csr_matrix(ROWS)


def frame():
    import pandas

    return pandas.DataFrame(ROWS, columns=["a", "b", "c"])


def closure():
    factor = 3.0
    return lambda rows: [row[0] * factor for row in rows]


def xgboost():
    from xgboost import DMatrix, train

    rows, targets = arrays()
    return train({"objective": "binary:logistic", "max_depth": 2, "nthread": 1}, DMatrix(rows, label=targets), 3)


def catboost():
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(iterations=3, depth=2, thread_count=1, allow_writing_files=False, verbose=False)
    return model.fit(*arrays())


def lightgbm():
    from lightgbm import Dataset, train

    settings = {"objective": "binary", "max_depth": 2, "min_data_in_leaf": 2, "num_threads": 1, "verbose": -1}
    rows, targets = arrays()
    return train(settings, Dataset(rows, targets), 3)


def ols():
    import statsmodels.api

    return statsmodels.api.OLS(TARGETS, ROWS).fit()


def prophet():
    import pandas
    from prophet import Prophet

    days = pandas.date_range("2024-01-01", periods=60)
    data = pandas.DataFrame({"ds": days, "y": [row[0] for row in ROWS]})
    return Prophet(n_changepoints=2, weekly_seasonality=False, uncertainty_samples=0).fit(data)


def spacy():
    import spacy

    found = spacy.blank("en")
    if spacy.__version__.startswith("2"):
        found.add_pipe(found.create_pipe("sentencizer"))
        tagger = found.create_pipe("textcat")
        found.add_pipe(tagger)
    else:
        tagger = found.add_pipe("textcat")
    tagger.add_label("yes")
    tagger.add_label("no")
    spacy.util.fix_random_seed(1)
    getattr(found, "initialize", found.begin_training)()
    return found


def bert():
    from transformers import BertConfig

    return BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)


def configured(name):
    """The configuration of a transformers' model: `transformers:Qwen3`."""
    import transformers

    found = getattr(transformers, name + "Config")(num_hidden_layers=1)
    found.architectures = [name + "ForCausalLM"]
    return found


def onnx(opset="", ir=""):
    """A graph as that release of onnx writes it, or in a given opset and IR."""
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(numpy.array([[1.0], [2.0], [3.0]], numpy.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    shapes = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, size]) for name, size in (("x", 3), ("y", 1))
    ]
    graph = helper.make_graph(nodes, "linear", shapes[:1], shapes[1:], [weight])
    found = helper.make_model(graph, producer_name="pairs", producer_version=onnx.__version__)
    if opset:
        del found.opset_import[:]
        found.opset_import.extend([helper.make_opsetid("", int(opset))])
    found.ir_version = int(ir) if ir else found.ir_version
    return found


def keras():
    import keras

    keras.utils.set_random_seed(1) if hasattr(keras.utils, "set_random_seed") else None
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, activation="relu"), keras.layers.Dense(1)])


def keras_functional():
    import keras

    values = keras.layers.Input((3,))
    return keras.Model(values, keras.layers.Dense(1)(values))


def keras_recurrent():
    import keras

    layers = [keras.layers.Input((3,)), keras.layers.Reshape((3, 1)), keras.layers.LSTM(2), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def safetensors():
    import numpy

    return {"w": numpy.array([[1.0], [2.0], [3.0]], numpy.float32)}


KINDS = {name: it for name, it in list(globals().items()) if callable(it)}


def built(kind):
    name, _, rest = kind.partition(":")
    if name == "transformers":
        return configured(rest)
    return KINDS[name](*rest.split(":")) if rest else KINDS[name]()


def write(model, how, path):
    if how.startswith("pickle"):
        import pickle

        with open(path, "wb") as stream:
            pickle.dump(model, stream, protocol=int(how[6:]))
    elif how in ("cloudpickle", "dill"):
        with open(path, "wb") as stream:
            __import__(how).dump(model, stream)
    elif how.startswith("joblib"):
        import joblib

        joblib.dump(model, path, compress=(how[7:], 3) if how[7:] else 0)
    elif how == "skops":
        import skops.io

        skops.io.dump(model, path)
    elif how == "onnx":
        import onnx

        onnx.save(model, path)
    elif how == "safetensors":
        import safetensors.numpy

        safetensors.numpy.save_file(model, path)
    elif how == "spacy":
        model.to_disk(path)
    elif how == "transformers":
        model.save_pretrained(path)
    elif how == "keras":
        model.save(path)
    else:
        model.save_model(path, **({"format": "json"} if path.endswith(".json") and how == "catboost" else {}))


def load(how, path):
    if how.startswith("pickle"):
        import pickle

        with open(path, "rb") as stream:
            return pickle.load(stream)
    if how in ("cloudpickle", "dill"):
        with open(path, "rb") as stream:
            return __import__("pickle" if how == "cloudpickle" else how).load(stream)
    if how.startswith("joblib"):
        import joblib

        return joblib.load(path)
    if how == "skops":
        import skops.io

        get = getattr(skops.io, "get_untrusted_types", None)
        return skops.io.load(path, trusted=get(file=path) if get else True)
    if how == "onnx":
        import onnxruntime

        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    if how == "safetensors":
        import safetensors.numpy

        return safetensors.numpy.load_file(path)
    if how == "spacy":
        import spacy

        return spacy.load(path)
    if how == "transformers":
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(path)
    if how == "keras":
        import keras

        return keras.models.load_model(path)
    if how == "lightgbm":
        from lightgbm import Booster

        return Booster(model_file=path)
    if how == "xgboost":
        from xgboost import Booster

        found = Booster()
    else:
        from catboost import CatBoostClassifier

        found = CatBoostClassifier()
    found.load_model(path, **({"format": "json"} if path.endswith(".json") and how == "catboost" else {}))
    return found


def predict(model, how):
    """Numbers that a model gives for the first rows; of what computes nothing, what it holds."""
    name = type(model).__module__.partition(".")[0]
    if isinstance(model, dict):
        values = [number for it in model.values() if hasattr(it, "ravel") for number in it.ravel().tolist()]
    elif isinstance(model, list):
        values = [model[0].random_sample(), model[1].random()]
    elif name == "scipy":
        values = model.toarray().ravel().tolist()
    elif name == "pandas":
        values = model.values.ravel().tolist()
    elif name == "spacy":
        values = [score for _, score in sorted(model("One, two and three.").cats.items())]
    elif name == "transformers":
        values = [model.num_hidden_layers, model.vocab_size]
    elif name == "prophet":
        values = model.predict(model.history[["ds"]].head(5))["yhat"].tolist()
    elif name == "onnx":
        values = [row[0] + 2 * row[1] + 3 * row[2] for row in FEW]
    elif name == "onnxruntime":
        values = model.run(None, {"x": [[*row] for row in FEW]})[0].ravel().tolist()
    elif name == "keras":
        import numpy

        rows = numpy.array(FEW, "float32")
        values = (
            numpy.asarray(model(rows) if callable(model) else model.signatures["serving_default"](rows))
            .ravel()
            .tolist()
        )
    elif name == "xgboost":
        from xgboost import DMatrix

        values = model.predict(DMatrix(arrays()[0][:5])).tolist()
    elif hasattr(model, "predict_proba"):
        values = model.predict_proba(arrays()[0][:5])[:, 1].tolist()
    elif hasattr(model, "predict"):
        values = list(model.predict(FEW))
    else:
        values = model(FEW)
    return [round(float(it), 5) for it in values]


class Kept(logging.Handler):
    """Warnings that are logged instead of raised."""

    def __init__(self):
        logging.Handler.__init__(self, logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append("log: " + record.getMessage())


def main():
    what, kind, how, path = sys.argv[1:]
    kept = Kept()
    logging.getLogger().addHandler(kept)
    said = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if what == "write":
                model = built(kind)
                write(model, how, path)
            else:
                model = load(how, path)
            said["predictions"] = predict(model, how)
            if not all(map(math.isfinite, said["predictions"])):
                said["error"] = "predictions that are no numbers"
        except BaseException as error:
            lines = str(error).strip().splitlines()
            said["error"] = type(error).__name__ + ": " + (lines[0] if lines else "")
    noise = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "ResourceWarning", "SyntaxWarning")
    texts = [(it.category.__name__, str(it.message).strip().split("\n")[0]) for it in caught]
    said["warnings"] = sorted({name + ": " + text for name, text in texts if name not in noise} | set(kept.lines))
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
