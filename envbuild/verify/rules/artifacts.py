"""Model files of scikit-learn, XGBoost, LightGBM and CatBoost, and pickles, against what is to load them."""

from collections.abc import Iterator
from typing import NamedTuple

from envbuild.manifest.model import Artifact, Model
from envbuild.verify.findings import Finding
from envbuild.verify.rules.catalogue import agree, differs, listing
from envbuild.verify.rules.packages import minor, numbers
from envbuild.verify.sources import Side

_PICKLES = ("pickle", "joblib")
_TITLES = {"scikit-learn": "scikit-learn", "xgboost": "XGBoost", "catboost": "CatBoost", "lightgbm": "LightGBM"}
_OTHER_NAMES = {"xgboost": ("xgboost", "xgboost-cpu")}
_LIGHTGBM = {"v2": "2.0", "v3": "2.3", "v4": "4.0"}
"""The first release that reads each version of LightGBM's format (src/boosting/gbdt_model_text.cpp)."""
_NO_BINARY = (3, 1)
"""XGBoost reads its old binary format before 3.1 only (its release notes of 2.1 and 3.1)."""
_PROTOCOLS = {"4": (3, 4), "5": (3, 8)}
_NUMPY_CORE = (1, 26)
"""NumPy 1.26 knows the names of NumPy 2's modules, numpy._core, in pickles (its release notes)."""
_MODULES = {
    "catboost": ("catboost",), "lightgbm": ("lightgbm",), "numpy": ("numpy",), "pandas": ("pandas",),
    "prophet": ("prophet",), "scipy": ("scipy",), "sklearn": ("scikit-learn",), "spacy": ("spacy",),
    "statsmodels": ("statsmodels",), "torch": ("torch",), "transformers": ("transformers",),
    "xgboost": ("xgboost", "xgboost-cpu"), "joblib": ("joblib",), "cloudpickle": ("cloudpickle",),
    "imblearn": ("imbalanced-learn",), "category_encoders": ("category-encoders",), "keras": ("keras", "tensorflow"),
}  # fmt: skip
"""The distributions that bring a module, of those that are met in pickled models."""


class _Judgement(NamedTuple):
    """Why a version does not load what another one wrote, and what to do."""

    why: str
    todo: str


def artifact_library(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each library that wrote a model against the same library there, by the library's own promise."""
    model, environment = (wanted.model, found) if wanted.kind in ("model", "manifest") else (found.model, wanted)
    for it in artifacts_of(model):
        for name, version in _writers(it):
            title, about = _TITLES[name], f"{it.path or 'model'} of {_TITLES[name]}"
            there = _version(environment, _OTHER_NAMES.get(name, (name,)))
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
                says, (why, todo) = f"{version} wrote it, and {there} is to load it", judgement
                yield differs("artifact-library", about, says, wanted=version, found=there, todo=todo, why=why)


def artifact_pickle(wanted: Side, found: Side) -> Iterator[Finding]:
    """What a pickle needs: its protocol, and the modules of its classes."""
    model, environment = (wanted.model, found) if wanted.kind in ("model", "manifest") else (found.model, wanted)
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
    """The libraries that have a rule here; of LightGBM the first release that reads the format."""
    for writer in artifact.written_by:
        if writer.name in _TITLES and numbers(writer.version):
            yield writer.name, writer.version
    lowest = _LIGHTGBM.get(dict(artifact.details).get("version", "")) if artifact.format == "lightgbm" else None
    if lowest:
        yield "lightgbm", lowest


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
        return _Judgement(f"{title} loads what older releases wrote, never what newer ones did.", todo)
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
    first = _PROTOCOLS.get(details.get("protocol", ""))
    python = numbers(environment.python)[:2]
    if first and python and python < first:
        version = ".".join(map(str, first))
        todo = f"load it with Python {version} or later, or save it again with protocol {min(4, 2 + python[0] // 3)}"
        yield f"pickle protocol {details['protocol']}", f"Python {environment.python}", todo
    numpy = _version(environment, ("numpy",))
    if details.get("numpy") == "2" and numpy and numbers(numpy)[:2] < _NUMPY_CORE:
        yield "numpy._core, which NumPy 2 wrote", f"NumPy {numpy}", "install NumPy 2, as the run had, or 1.26"
