"""Model files of scikit-learn, XGBoost and CatBoost, ONNX and pickles, against what is to load them."""

from collections.abc import Iterator
from typing import NamedTuple

from envbuild.manifest.model import Artifact, Model
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import agree, differs, listing
from envbuild.verify.rules.model import model_and_environment
from envbuild.verify.rules.packages import minor, numbers
from envbuild.verify.sources import Side

_PICKLES = ("pickle", "joblib")
_TITLES = {"scikit-learn": "scikit-learn", "xgboost": "XGBoost", "catboost": "CatBoost"}
"""Libraries that say which release wrote a model. LightGBM does not, and 2.3 to 4.6 load each other's models."""
_XGBOOST = ("xgboost", "xgboost-cpu")
_NO_BINARY = (3, 1)
"""XGBoost reads its old binary format before 3.1 only: 3.0.5 loads what 1.7.6 wrote, 3.1.1 does not."""
_PROTOCOL_5 = (3, 8)
_NUMPY_CORE = (1, 26, 1)
"""From here on NumPy 1 knows the names of NumPy 2's modules, numpy._core, in pickles."""
_ONNXRUNTIME = ("onnxruntime", "onnxruntime-gpu")
_ONNX = ("ir_version", "IR version"), ("opset", "opset"), ("opset:ai.onnx.ml", "opset of ai.onnx.ml")
"""What an ONNX model is written in: details of the manifest, and their names."""
_ONNX_LIMITS = (
    (4, 7, 12, 2), (6, 7, 13, 2), (8, 7, 14, 2), (9, 8, 15, 2), (11, 8, 16, 3), (12, 8, 17, 3), (14, 8, 18, 3),
    (15, 9, 19, 3), (17, 9, 20, 4), (18, 10, 21, 5), (21, 10, 22, 5), (23, 11, 23, 5), (24, 13, 25, 5),
    (25, 13, 26, 5), (32, 14, 28, 5),
)  # fmt: skip
"""The minor release of ONNX Runtime 1 from which on it reads so high an IR version and opsets.

Each release was given models until it refused one; its docs/Versioning.md says less.
"""
_MODULES = {
    "catboost": ("catboost",), "lightgbm": ("lightgbm",), "numpy": ("numpy",), "pandas": ("pandas",),
    "prophet": ("prophet",), "scipy": ("scipy",), "sklearn": ("scikit-learn",), "spacy": ("spacy",),
    "statsmodels": ("statsmodels",), "torch": ("torch",), "transformers": ("transformers",),
    "xgboost": _XGBOOST, "joblib": ("joblib",), "cloudpickle": ("cloudpickle",),
    "imblearn": ("imbalanced-learn",), "category_encoders": ("category-encoders",), "keras": ("keras", "tensorflow"),
}  # fmt: skip
"""The distributions that bring a module, of those that are met in pickled models."""


class _Judgement(NamedTuple):
    """Why a version does not load what another one wrote, and what to do."""

    why: str
    todo: str
    severity: Severity | None = None


def artifact_library(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each library that wrote a model against the same library there, by the library's own promise."""
    model, environment = model_and_environment(wanted, found)
    for it in artifacts_of(model):
        for name, version in _writers(it):
            title, about = _TITLES[name], f"{it.path or 'model'} of {_TITLES[name]}"
            there = _version(environment, _XGBOOST if name == "xgboost" else (name,))
            if there is None:
                if environment.packages is not None and environment.complete:
                    says, todo = f"{title} {version} wrote it, and none is there", f"install {name}=={version} there"
                    yield differs("artifact-library", about, says, wanted=version, found="none", todo=todo)
                continue
            judgement = _judge(name, it, version, there)
            if judgement is None:
                says = f"{version} wrote it, {there} loads it"
                yield agree("artifact-library", about, says, wanted=version, found=there)
            else:
                says, (why, todo, severity) = f"{version} wrote it, and {there} is to load it", judgement
                yield differs(
                    "artifact-library", about, says, wanted=version, found=there, todo=todo, severity=severity, why=why
                )


def artifact_pickle(wanted: Side, found: Side) -> Iterator[Finding]:
    """What a pickle needs: its protocol, and the modules of its classes."""
    model, environment = model_and_environment(wanted, found)
    for it in artifacts_of(model):
        if it.format not in _PICKLES:
            continue
        details, about = dict(it.details), f"pickle {it.path or 'of the model'}"
        modules = [name for name in details.get("modules", "").split(",") if name]
        faults = [*_lacking(environment, modules, details), *_too_old(environment, details)]
        for lacks, there, todo in faults:
            yield differs("artifact-pickle", about, wanted=lacks, found=there, todo=todo)
        known = [name for name in modules if name in _MODULES]
        if not faults and known and environment.packages is not None:
            yield agree("artifact-pickle", about, f"it needs {listing(known)}, and {environment.name} has them")


def artifact_onnx(wanted: Side, found: Side) -> Iterator[Finding]:
    """The IR version and opsets of ONNX models against the highest that the ONNX Runtime there reads."""
    model, environment = model_and_environment(wanted, found)
    there = _version(environment, _ONNXRUNTIME)
    release = numbers(there or "")[:2]
    known = [limits for since, *limits in _ONNX_LIMITS if (1, since) <= release]
    for it in artifacts_of(model):
        values = [dict(it.details).get(key, "") for key, _ in _ONNX]
        if it.format != "onnx" or not there or not known or not values[0].isdigit():
            continue
        needs = [int(value) if value.isdigit() else 0 for value in values]
        about = f"{it.path or 'model'} of ONNX"
        over = [
            (f"{name} {need}", f"{name} {limit}")
            for (_, name), need, limit in zip(_ONNX, needs, known[-1], strict=True)
            if need > limit
        ]
        if not over:
            yield agree("artifact-onnx", about, f"onnxruntime {there} reads its IR version {needs[0]} and opsets")
        elif release <= (1, _ONNX_LIMITS[-1][0]):  # of later ones nothing is known
            enough = [
                since for since, *limits in _ONNX_LIMITS if all(a <= b for a, b in zip(needs, limits, strict=True))
            ]
            later = f"onnxruntime 1.{enough[0]} or later" if enough else "a later onnxruntime"
            has, reads = (", ".join(words) for words in zip(*over, strict=True))
            says = f"it has {has}, and onnxruntime {there} reads at most {reads}"
            todo = f"serve it with {later}, or export it again for an older opset"
            yield differs("artifact-onnx", about, says, wanted=has, found=f"onnxruntime {there}", todo=todo)


def artifacts_of(model: Model | None) -> tuple[Artifact, ...]:
    """Each model and preprocessing step of a folder; the path of a single one is empty."""
    if model is None or model.format is None:
        return ()
    alone = Artifact(path="", format=model.format, written_by=model.written_by, details=model.details)
    return model.artifacts or (alone,)


def _writers(artifact: Artifact) -> Iterator[tuple[str, str]]:
    """The libraries that have a rule here."""
    for writer in artifact.written_by:
        if writer.name in _TITLES and numbers(writer.version):
            yield writer.name, writer.version


def _version(environment: Side, names: tuple[str, ...]) -> str | None:
    packages = environment.packages or {}
    return next((found for it in names if it in packages and (found := packages[it].version)), None)


def _judge(name: str, artifact: Artifact, writer: str, there: str) -> _Judgement | None:
    """Why it is not loaded there; None where the library promises that it is."""
    one, other, title = numbers(writer)[:2], numbers(there)[:2], _TITLES[name]
    same = f"serve it with {title} {minor(writer)}, or save it again with {there}"
    if name == "scikit-learn" or artifact.format in _PICKLES:
        text = f"{title} promises nothing about objects of another minor version; what loads may predict other numbers."
        return _Judgement(text, same) if one != other else None
    if dict(artifact.details).get("encoding") == "binary" and other >= _NO_BINARY:
        todo = f"load it with {title} {minor(writer)} to 3.0, and save it as .ubj or .json"
        return _Judgement(f"{title} 3.1 no longer reads its old binary format.", todo)
    if one > other:
        todo = f"serve it with {title} {minor(writer)} or later"
        if name == "catboost":
            return _Judgement("CatBoost promises to load what older releases wrote only.", todo, "warning")
        return _Judgement("An older XGBoost loads such a model without an error, and may predict other numbers.", todo)
    return None


def _lacking(environment: Side, modules: list[str], details: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Modules that the environment has not: what is needed, what is there, what to do."""
    if "__main__" in modules:
        classes = [it for it in details.get("classes", "").split(",") if it.startswith("__main__.")]
        todo = "define them in a module that is installed where the model is loaded, and save the model again"
        yield f"{', '.join(classes) or '__main__'}", "no such class outside the program that saved it", todo
    if environment.packages is None or not environment.complete:
        return
    for module in modules:
        names = _MODULES.get(module, ())
        if names and not any(it in environment.packages for it in names):
            yield f"the module {module}", f"no {names[0]}", f"install {names[0]} there, in the version of the run"


def _too_old(environment: Side, details: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """What is too old there for the pickle: Python for its protocol, NumPy for the names of NumPy 2."""
    python = numbers(environment.python)[:2]
    if details.get("protocol") == "5" and python and python < _PROTOCOL_5:
        todo = "load it with Python 3.8 or later, or save it again with protocol 4"
        yield "pickle protocol 5", f"Python {environment.python}", todo
    numpy = _version(environment, ("numpy",))
    if details.get("numpy") == "2" and numpy and numbers(numpy) < _NUMPY_CORE:
        yield (
            "numpy._core, which NumPy 2 wrote",
            f"NumPy {numpy}",
            "install NumPy 2, as the run had, or 1.26.4",
        )
