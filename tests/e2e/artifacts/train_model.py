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
TEXTS = ["the wheel is locked", "a layer is pushed", "the image is pulled"]


def scikit_learn(kind, folder):
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

    model = XGBClassifier(n_estimators=6, max_depth=3, n_jobs=1).fit(X, Y)
    if kind == "pickle":
        estimator(kind, folder, model)
    else:
        model.save_model(str(folder / ("model." + kind)))
    return FEW, {"predict": model.predict(FEW), "predict_proba": model.predict_proba(FEW)}


xgboost_cpu = xgboost


def lightgbm(kind, folder):
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=6, min_child_samples=5, n_jobs=1).fit(X, Y)
    if kind == "txt":
        model.booster_.save_model(str(folder / "model.txt"))
        return FEW, model.booster_.predict(FEW)
    estimator(kind, folder, model)
    return FEW, {"predict": model.predict(FEW), "predict_proba": model.predict_proba(FEW)}


def catboost(kind, folder):
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(iterations=6, depth=3, thread_count=1, verbose=0, allow_writing_files=False).fit(X, Y)
    if kind == "pickle":
        estimator(kind, folder, model)
    else:
        model.save_model(str(folder / ("model." + kind)), format=kind)
    return FEW, {"predict": model.predict(FEW), "predict_proba": model.predict_proba(FEW)}


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
