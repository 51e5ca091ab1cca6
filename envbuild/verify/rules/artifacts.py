"""Model files of scikit-learn, XGBoost and CatBoost, ONNX and pickles, against what is to load them."""

from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from envbuild.manifest.model import Artifact, Model
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import agree, differs, listing
from envbuild.verify.rules.model import model_and_environment
from envbuild.verify.rules.packages import minor, numbers
from envbuild.verify.sources import Side

_PICKLES = ("pickle", "joblib")
_TITLES = {
    "scikit-learn": "scikit-learn", "xgboost": "XGBoost", "catboost": "CatBoost", "spacy": "spaCy",
    "transformers": "transformers", "sentence-transformers": "sentence-transformers",
}  # fmt: skip
"""Libraries that say which release wrote a model. LightGBM does not, and 2.3 to 4.7 load each other's models."""
_XGBOOST = ("xgboost", "xgboost-cpu")
_NO_BINARY = (3, 1)
"""XGBoost reads its old binary format before 3.1 only: 3.0.5 loads what 1.7.6 wrote, 3.1.1 does not."""
_PROTOCOL_5 = (3, 8)
_ONNX = (
    ((1, 4), 12, 7, 2), ((1, 6), 13, 7, 2), ((1, 8), 14, 7, 2), ((1, 9), 15, 8, 2), ((1, 11), 16, 8, 3),
    ((1, 12), 17, 8, 3), ((1, 14), 18, 8, 3), ((1, 15), 19, 9, 3), ((1, 17), 20, 9, 4), ((1, 18), 21, 10, 5),
    ((1, 21), 22, 10, 5), ((1, 23), 23, 11, 5), ((1, 24), 25, 13, 5), ((1, 25), 26, 13, 5), ((1, 32), 28, 14, 5),
)  # fmt: skip
"""From which ONNX Runtime on it loads which opset, IR version and opset of ai.onnx.ml; tried with each release."""
_ONNX_TRIED = (1, 32)
_ONNX_NUMBERS = (("opset", "opset"), ("ir_version", "IR version"), ("opset:ai.onnx.ml", "opset of ai.onnx.ml"))
_OTHER_SPACY = "A pipeline of another major version of spaCy has other files, and is not loaded."
_OLDER_SPACY = "An older spaCy may lack what the pipeline names, as 3.7.2 lacks TextCatBOW.v3 of 3.7.5."
_NEWER_SPACY = "spaCy warns of pipelines that were made for other releases, which may predict other numbers."
_NEWER_ONNX = "ONNX Runtime refuses an opset or IR version that is newer than its release."
_NEWER: dict[str, tuple[str, Severity | None]] = {
    "xgboost": ("An older XGBoost loads such a model without an error, and may predict other numbers.", None),
    "catboost": ("CatBoost promises to load what older releases wrote only.", "warning"),
    "transformers": ("An older release does not know architectures that came later, as 4.50 does not Qwen3.", "note"),
    "sentence-transformers": ("sentence-transformers itself warns of models that a newer release made.", "warning"),
}
"""What a library says of a model that a newer release wrote."""
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_OWN = ("catboost", "lightgbm", "skops")
"""Formats that only the distribution of the same name reads."""
_MODULES = {
    "catboost": ("catboost",), "lightgbm": ("lightgbm",), "numpy": ("numpy",), "pandas": ("pandas",),
    "prophet": ("prophet",), "scipy": ("scipy",), "sklearn": ("scikit-learn",), "spacy": ("spacy",),
    "statsmodels": ("statsmodels",), "torch": ("torch",), "transformers": ("transformers",),
    "xgboost": _XGBOOST, "joblib": ("joblib",), "cloudpickle": ("cloudpickle",), "dill": ("dill",), "lz4": ("lz4",),
    "imblearn": ("imbalanced-learn",), "category_encoders": ("category-encoders",), "keras": ("keras", "tensorflow"),
    "feature_engine": ("feature-engine",), "lifelines": ("lifelines",), "umap": ("umap-learn",),
}  # fmt: skip
"""The distributions that bring a module, of those that are met in pickled models."""


_OWN_CLASS = "Only a program that has these classes itself loads it, as the one that saved it did."
_OWN_COLUMNS = "Its ColumnTransformer was fitted on a table; one that selects columns by name takes nothing else."
_TABLES = ("pandas", "polars")
_TRY = (
    "install pandas there, in the version of the run; or record a golden sample of arrays with the run, "
    "and see by `envbuild verify MODEL IMAGE --golden --run` that it does without"
)
_BOUND = {
    "numpy": "NumPy", "scipy": "SciPy", "joblib": "joblib", "cloudpickle": "cloudpickle", "lightgbm": "LightGBM",
    "pandas": "pandas",
}  # fmt: skip
"""Libraries of which capture says the lowest release that loads a pickle."""


class _Judgement(NamedTuple):
    """Why a version does not load what another one wrote, and what to do."""

    why: str
    todo: str
    severity: Severity | None = None


def artifact_library(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each library that wrote a model against the same library there, by the library's own promise."""
    model, environment = model_and_environment(wanted, found)
    for it in artifacts_of(model):
        yield from _of_writers(it, environment)
        yield from _of_reader(it, environment)
        yield from _of_onnx(it, environment)


def _of_writers(it: Artifact, environment: Side) -> Iterator[Finding]:
    for name, version in _writers(it):
        title, about = _TITLES[name], f"{it.path or 'model'} of {_TITLES[name]}"
        there = _version(environment, _XGBOOST if name == "xgboost" else (name,))
        if there is None:
            # What transformers describe can be loaded by others, too.
            if environment.packages is not None and environment.complete and "transformers" not in name:
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


def _of_reader(it: Artifact, environment: Side) -> Iterator[Finding]:
    """A format whose only reader is not there, where no writer says so."""
    name, packages = it.format, environment.packages
    if name not in _OWN or name in dict(_writers(it)) or packages is None or not environment.complete:
        return
    if name not in packages:
        says, todo = f"only {name} reads it, and none is there", f"install {name} there, in the version of the run"
        yield differs("artifact-library", f"{it.path or 'model'} of {name}", says, wanted=name, found="none", todo=todo)


def _of_onnx(it: Artifact, environment: Side) -> Iterator[Finding]:
    """The opset and IR version of a model against what ONNX Runtime loads there."""
    there, details = _version(environment, _RUNTIMES), dict(it.details)
    release = numbers(there)[:2]
    limits = next((row for row in reversed(_ONNX) if row[0] <= release), None)
    if it.format != "onnx" or limits is None or release > _ONNX_TRIED:
        return
    needs = [(title, numbers(details.get(name))) for name, title in _ONNX_NUMBERS]
    if not any(need for _, need in needs):
        return
    about, wanted = f"{it.path or 'model'} of ONNX", ", ".join(f"{title} {need[0]}" for title, need in needs if need)
    loads = ", ".join(f"{title} {limit}" for (title, _), limit in zip(needs, limits[1:], strict=True))
    if all(need <= (limit,) for (_, need), limit in zip(needs, limits[1:], strict=True)):
        yield agree("artifact-library", about, f"it has {wanted}, ONNX Runtime {there} loads up to {loads}")
        return
    enough = (row[0] for row in _ONNX if all(need <= (it,) for (_, need), it in zip(needs, row[1:], strict=True)))
    later = next((f"serve it with ONNX Runtime {'.'.join(map(str, first))} or later, or " for first in enough), "")
    says, todo = f"it has {wanted}, and ONNX Runtime {there} loads up to {loads}", f"{later}export it with these"
    yield differs("artifact-library", about, says, wanted=wanted, found=f"{there}", todo=todo, why=_NEWER_ONNX)


def artifact_pickle(wanted: Side, found: Side) -> Iterator[Finding]:
    """What a pickle needs: its protocol, and the modules of its classes."""
    model, environment = model_and_environment(wanted, found)
    for it in artifacts_of(model):
        if it.format not in _PICKLES:
            continue
        details, about = dict(it.details), f"pickle {it.path or 'of the model'}"
        modules = [name for name in details.get("modules", "").split(",") if name]
        if own := "__main__" in modules:
            classes = [name for name in details.get("classes", "").split(",") if name.startswith("__main__.")]
            needs, there = ", ".join(classes) or "__main__", "no such class, unless the program that loads it has one"
            todo = "define them in a module that is installed where it is loaded, and save it again"
            yield differs(
                "artifact-pickle", about, wanted=needs, found=there, todo=todo, severity="warning", why=_OWN_CLASS
            )
        faults = [*_lacking(environment, modules), *_too_old(environment, details)]
        if tables := "columns" in details and not faults and _lacks(environment, _TABLES):
            needs, there = "tables with named columns", "neither pandas nor polars"
            yield differs(
                "artifact-pickle", about, wanted=needs, found=there, todo=_TRY, severity="warning", why=_OWN_COLUMNS
            )
        for lacks, there, todo in faults:
            yield differs("artifact-pickle", about, wanted=lacks, found=there, todo=todo)
        known = [name for name in modules if name in _MODULES]
        if not (own or tables or faults) and known and environment.packages is not None:
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
    if name == "spacy":
        return _judge_range(artifact, writer, there) if one[:1] == other[:1] else _Judgement(_OTHER_SPACY, same)
    if name == "scikit-learn" or artifact.format in _PICKLES:
        text = f"{title} promises nothing about objects of another minor version; what loads may predict other numbers."
        return _Judgement(text, same) if one != other else None
    if dict(artifact.details).get("encoding") == "binary" and other >= _NO_BINARY:
        todo = f"load it with {title} {minor(writer)} to 3.0, and save it as .ubj or .json"
        return _Judgement(f"{title} 3.1 no longer reads its old binary format.", todo)
    why, severity = _NEWER[name]
    return _Judgement(why, f"serve it with {title} {minor(writer)} or later", severity) if one > other else None


def _judge_range(artifact: Artifact, writer: str, there: str) -> _Judgement | None:
    """Whether a version is in the range that a pipeline of spaCy has in its meta.json."""
    requires = dict(artifact.details).get("requires", "")
    allowed = _allows(requires.removeprefix("spacy"), there)
    older, todo = numbers(there) < numbers(writer), f"install {requires} there, or train it again"
    return None if allowed else _Judgement(_OLDER_SPACY if older else _NEWER_SPACY, todo, None if older else "warning")


def _allows(specifiers: str, version: str) -> bool:
    try:
        return SpecifierSet(specifiers).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _lacking(environment: Side, modules: list[str]) -> Iterator[tuple[str, str, str]]:
    """Modules that the environment has not: what is needed, what is there, what to do."""
    for module in modules:
        names = _MODULES.get(module, ())
        if names and _lacks(environment, names):
            yield f"the module {module}", f"no {names[0]}", f"install {names[0]} there, in the version of the run"


def _lacks(environment: Side, names: tuple[str, ...]) -> bool:
    """Whether it is known that none of these distributions is there."""
    packages = environment.packages
    return packages is not None and environment.complete and packages.keys().isdisjoint(names)


def _too_old(environment: Side, details: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """What is too old there for the pickle: Python for its protocol, or a library for its names."""
    python = numbers(environment.python)[:2]
    if details.get("protocol") == "5" and python and python < _PROTOCOL_5:
        todo = "load it with Python 3.8 or later, or save it again with protocol 4"
        yield "pickle protocol 5", f"Python {environment.python}", todo
    if python and not _allows(needs := details.get("python", ""), ".".join(map(str, python))):
        yield f"Python {needs}, for its code objects", f"Python {environment.python}", "load it with the run's Python"
    for name, title in _BOUND.items():
        there, lowest = _version(environment, (name,)), details.get(name)
        if there and lowest and numbers(there) < numbers(lowest):
            todo = f"install {title} {lowest} or later there, best the version of the run"
            yield f"what {title} has from {lowest} on", f"{title} {there}", todo
