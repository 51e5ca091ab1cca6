"""Model files of scikit-learn, XGBoost and CatBoost, and pickles, against what is to load them."""

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
