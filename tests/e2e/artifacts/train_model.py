"""Train a small model of a project, save it, and capture the run: `train_model.py PROJECT KIND FOLDER`.

FOLDER gets the model, and FOLDER.json is the manifest with a golden sample. Of what no golden sample can hold, FOLDER.txt
has the predictions; `train_model.py PROJECT predict FOLDER` prints them again.
"""

# The libraries are installed only where this runs.
# mypy: ignore-errors

import pickle
import sys
from pathlib import Path

import numpy as np

RANDOM = np.random.RandomState(7)
X = RANDOM.normal(size=(90, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5).astype(int)
FEW = X[:5]
LABELS = np.array(["low", "middle", "high"])[Y]
TEXTS = ["the wheel is locked", "a layer is pushed", "the image is pulled"]


def table():
    """The same as a table with numbers, booleans, text and missing values."""
    import pandas as pd

    seen, city = pd.Series(X[:, 2] > 0.5), pd.Series(np.where(X[:, 0] > 0, "Köln", "Ulm"))
    columns = {"wheel": X[:, 0], "layer": X[:, 1].astype("float64"), "seen": seen, "city": city, "count": Y * 2}
    found = pd.DataFrame(columns)
    found.loc[1, "layer"] = float("nan")
    found.loc[2, "city"] = None
    return found


def of_table(folder):
    """A pipeline that encodes columns of text, and predicts labels of text."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    x = table()
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((SimpleImputer(), ["layer", "wheel"]), (encoder, ["city", "seen"]))
    model = make_pipeline(columns, LogisticRegression()).fit(x, LABELS)
    estimator("joblib-zlib", folder, model)
    return x[:5], {"predict": model.predict(x[:5]), "predict_proba": model.predict_proba(x[:5])}


def scikit_learn(kind, folder):
    if kind == "table":
        return of_table(folder)
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), RandomForestClassifier(12, random_state=3)).fit(X, Y)
    estimator(kind, folder, model)
    return FEW, {"predict": model.predict(FEW), "predict_proba": model.predict_proba(FEW)}


def estimator(kind, folder, model):
    """Save by pickle, by joblib with or without a compression, or by skops."""
    if kind == "pickle":
        (folder / "model.pkl").write_bytes(pickle.dumps(model, 4))
    elif kind == "skops":
        import skops.io

        skops.io.dump(model, str(folder / "model.skops"))
    else:
        import joblib

        joblib.dump(model, str(folder / "model.joblib"), compress=(kind.partition("-")[2], 3) if "-" in kind else 0)


def xgboost(kind, folder):
    from xgboost import XGBClassifier

    kind, x = inputs(kind)
    more = {} if x is X else {"enable_categorical": True, "tree_method": "hist"}
    model, few = XGBClassifier(n_estimators=6, max_depth=3, n_jobs=1, **more).fit(x, Y), x[:5]
    if kind == "pickle":
        estimator(kind, folder, model)
    else:
        model.save_model(str(folder / ("model." + kind)))
    return few, {"predict": model.predict(few), "predict_proba": model.predict_proba(few)}


def inputs(kind):
    """A kind as it is without `-table`; and the table with its text as categories, where that is asked for, or the array."""
    kind, _, more = kind.partition("-")
    return kind, table().astype({"city": "category"}) if more == "table" else X


xgboost_cpu = xgboost


def lightgbm(kind, folder):
    from lightgbm import LGBMClassifier

    kind, x = inputs(kind)
    model = LGBMClassifier(n_estimators=6, min_child_samples=5, n_jobs=1).fit(x, Y)
    if kind == "txt":
        model.booster_.save_model(str(folder / "model.txt"))
        return x[:5], model.booster_.predict(x[:5])
    estimator(kind, folder, model)
    return FEW, {"predict": model.predict(FEW), "predict_proba": model.predict_proba(FEW)}


def catboost(kind, folder):
    from catboost import CatBoostClassifier

    kind, x = inputs(kind)
    more = {} if x is X else {"cat_features": ["city", "seen"]}
    x = x if x is X else x.astype({"city": "object"}).fillna({"city": ""})
    model = CatBoostClassifier(6, depth=3, thread_count=1, verbose=0, allow_writing_files=False, **more)
    model, few = model.fit(x, Y if x is X else LABELS), x[:5]
    if kind == "pickle":
        estimator(kind, folder, model)
    else:
        model.save_model(str(folder / ("model." + kind)), format=kind)
    return few, {"predict": model.predict(few), "predict_proba": model.predict_proba(few)}


def onnxruntime(kind, folder):
    import onnxruntime

    path = str(folder / "model.onnx")
    if kind == "skl2onnx":
        from skl2onnx import to_onnx
        from sklearn.linear_model import LogisticRegression

        model = to_onnx(LogisticRegression().fit(X, Y), X[:1], options={"zipmap": False})
        Path(path).write_bytes(model.SerializeToString())
    else:
        linear(path, int(kind.partition("-")[2]))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [it.name for it in session.get_outputs()]
    inputs = {session.get_inputs()[0].name: FEW}
    return inputs, dict(zip(names, session.run(names, inputs)))  # noqa: B905 - Python 3.8 has no strict


def linear(path, opset):
    """Fit by least squares, and write what was fitted with the `onnx` package for this opset."""
    import onnx
    from onnx import helper, numpy_helper

    weights = np.linalg.lstsq(X, np.eye(3, dtype="float32")[Y], rcond=None)[0]
    float32 = onnx.TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Softmax", ["s"], ["y"], axis=1)]
    x = helper.make_tensor_value_info("x", float32, [None, 4])
    y = helper.make_tensor_value_info("y", float32, [None, 3])
    graph = helper.make_graph(nodes, "linear", [x], [y], [numpy_helper.from_array(weights, "w")])
    opsets = [helper.make_opsetid("", opset)]
    version = onnx.helper.find_min_ir_version_for(opsets)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=version), path)


def statsmodels(kind, folder):
    import statsmodels.api as sm

    results = (sm.OLS(Y, X) if kind == "ols" else sm.GLM(Y > 0, X, family=sm.families.Binomial())).fit()
    results.save(str(folder / "model.pkl"))
    return FEW, {"predict": results.predict(FEW)}


def torch(kind, folder):
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    if kind == "jit":
        torch.jit.save(torch.jit.script(model), str(folder / "model.pt"))
    else:
        rows = torch.export.Dim("rows")
        program = torch.export.export(model, (torch.tensor(FEW),), dynamic_shapes=({0: rows},))
        torch.export.save(program, str(folder / "model.pt2"))
    return FEW, model(torch.tensor(FEW)).detach().numpy()


def prophet(kind, folder):
    import pandas as pd
    from prophet import Prophet

    days = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=90), "y": X[:, 0]})
    model = Prophet(n_changepoints=3).fit(days)
    (folder / "model.pkl").write_bytes(pickle.dumps(model))


def predict_prophet(folder):
    import pandas as pd

    model = pickle.loads((folder / "model.pkl").read_bytes())
    days = pd.DataFrame({"ds": pd.date_range("2024-05-01", periods=5)})
    return [round(float(it), 5) for it in model.predict(days)["yhat"]]


def spacy(kind, folder):
    import spacy
    from spacy.training import Example

    nlp = spacy.blank("en")
    classes = nlp.add_pipe("textcat")
    examples = [
        Example.from_dict(
            nlp.make_doc(text), {"cats": {"wheel": float("wheel" in text), "other": float("wheel" not in text)}}
        )
        for text in TEXTS
    ]
    assert classes
    nlp.initialize(lambda: examples)
    for _ in range(5):
        nlp.update(examples)
    nlp.to_disk(folder)


def predict_spacy(folder):
    import spacy

    nlp = spacy.load(folder)
    return [[round(float(it), 5) for _, it in sorted(nlp(text).cats.items())] for text in TEXTS]


def transformers(kind, folder):
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(3)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in TEXTS for word in text.split()})]
    (folder.parent / "vocab.txt").write_text("\n".join(words))
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **size)).save_pretrained(folder)
    BertTokenizerFast(str(folder.parent / "vocab.txt")).save_pretrained(folder)


def predict_transformers(folder):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(folder), device=-1)
    return [[it["label"], round(float(it["score"]), 5)] for it in classify(TEXTS)]


def main():
    project, kind, folder = sys.argv[1].replace("-", "_"), sys.argv[2], Path(sys.argv[3])
    predict = globals().get("predict_" + project)
    if kind == "predict":
        print(predict(folder))
        return
    import envbuild

    folder.mkdir()
    sample = globals()[project](kind, folder)
    if predict:
        Path(str(folder) + ".txt").write_text(str(predict(folder)))
    golden = envbuild.golden_sample(*sample) if sample else None
    envbuild.capture(str(folder), out=str(folder) + ".json", golden=golden)


main()
