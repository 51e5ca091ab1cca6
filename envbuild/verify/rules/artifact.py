"""The model's own files against the environment that is to load them."""

from collections.abc import Iterator

from envbuild.manifest.artifact import Model, Writer
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.builds import builds
from envbuild.verify.rules.releases import minor, numbers
from envbuild.verify.rules.saying import agree, differs
from envbuild.verify.sides.side import Side

_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "pytorch": "torch", "keras": "keras"}
"""What a model says it was written by, and the framework that this is."""
_OLDER = "What older releases wrote is loaded; defaults and kernels of the newer one may still give other numbers."
_TENSORFLOW = (
    "TensorFlow 2 promises to load what any earlier 2.x saved (tensorflow.org/guide/versions); its kernels may still "
    "give other numbers."
)
_MAJOR = "A major release may drop what an older one wrote."
_V1 = (
    "load it by tf.compat.v1.saved_model.load in a tf.compat.v1.Session, or call the signatures of "
    "tf.saved_model.load; or serve it with the TensorFlow that trained it"
)
_V1_SAVED = (
    "tf.saved_model.load gives its signatures only; anything else of it runs through tf.compat.v1, and "
    "keras.models.load_model refuses it."
)
_KERAS, _SWITCH = "model of Keras", "TF_USE_LEGACY_KERAS"


def framework(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each writer against the same framework there: a newer writer may not be loaded, an older one is."""
    for name, writer, version in _written(wanted, found):
        one, other = numbers(writer.version), numbers(version)
        if one[0] != other[0] and (name == "keras" or (name == "tensorflow" and one[0] == 1)):
            continue  # rules of their own
        if one[:2] == other[:2]:
            says = f"{writer.version} wrote it, {version} loads it"
            yield agree("artifact-framework", f"model of {name}", says, wanted=writer.version, found=version)
        else:
            yield _newer(name, writer, version) if one[:2] > other[:2] else _older(name, writer, version)


def _newer(name: str, writer: Writer, version: str) -> Finding:
    says = f"{writer.version} wrote the model, and {version} is to load it"
    todo = f"serve it with {name} {minor(writer.version)} or later, best with the very version that trained it"
    return differs("artifact-framework", f"model of {name}", says, wanted=writer.version, found=version, todo=todo)


def _older(name: str, writer: Writer, version: str) -> Finding:
    """Within one major version that is promised, so it is only said."""
    same_major = numbers(writer.version)[0] == numbers(version)[0]
    severity: Severity = "note" if same_major else "warning"
    why = (_TENSORFLOW if name == "tensorflow" else _OLDER) if same_major else _MAJOR
    return differs(
        "artifact-framework",
        f"model of {name}",
        f"{writer.version} wrote the model, and {version} is to load it",
        wanted=writer.version,
        found=version,
        todo="compare predictions with the run's, or serve it with the version that wrote it",
        severity=severity,
        why=why,
    )


def tensorflow_1(wanted: Side, found: Side) -> Iterator[Finding]:
    """A model of TensorFlow 1 where TensorFlow 2 is to load it; as a SavedModel its signatures still run."""
    model, _ = _sides(wanted, found)
    for name, writer, version in _written(wanted, found):
        if name == "tensorflow" and numbers(writer.version)[0] == 1 and numbers(version)[0] > 1:
            saved = model is not None and model.format == "saved_model"
            severity: Severity | None = "warning" if saved else None
            says = f"TensorFlow {writer.version} wrote the model, and {version} is to load it"
            why = _V1_SAVED if saved else ""
            yield differs(
                "artifact-tf1",
                "model of TensorFlow 1",
                says,
                wanted=writer.version,
                found=version,
                todo=_V1,
                severity=severity,
                why=why,
            )


def keras(wanted: Side, found: Side) -> Iterator[Finding]:
    """A model of one generation of Keras where the other one is to load it."""
    model, environment = _sides(wanted, found)
    for name, writer, version in _written(wanted, found):
        older, newer = numbers(writer.version)[0] <= 2, numbers(version)[0] >= 3
        if name == "keras" and older == newer:
            yield from _newer_keras(model, environment, writer, version) if older else _older_keras(writer, version)


def _older_keras(writer: Writer, version: str) -> Iterator[Finding]:
    todo = f"serve it with Keras {minor(writer.version)} or later"
    yield differs("artifact-keras", _KERAS, _loading(writer, version), wanted=writer.version, found=version, todo=todo)


def _newer_keras(model: Model | None, environment: Side, writer: Writer, version: str) -> Iterator[Finding]:
    """Where tf-keras is there and may take the place of Keras 3, it loads what Keras 2 wrote."""
    if environment.packages is None:
        return
    legacy, variables = environment.packages.get("tf-keras"), environment.variables
    if legacy and (variables is None or variables.get(_SWITCH) in ("1", "true", "True")):
        says = f"Keras {writer.version} wrote it, tf-keras {legacy.version} loads it"
        yield agree("artifact-keras", _KERAS, says, wanted=writer.version, found=f"{legacy.version}")
        return
    # A SavedModel can be loaded without Keras.
    mild = legacy is not None or (model is not None and model.format == "saved_model")
    yield differs(
        "artifact-keras",
        _KERAS,
        _loading(writer, version),
        wanted=writer.version,
        found=version,
        todo=_legacy(environment),
        severity="warning" if mild else None,
    )


def _loading(writer: Writer, version: str) -> str:
    return f"Keras {writer.version} wrote the model, and Keras {version} is to load it"


def _legacy(environment: Side) -> str:
    """The way out that Keras itself names (keras.io, Keras 3 migration guide); tf-keras has TensorFlow's versions."""
    tensorflow = builds(environment).get("tensorflow")
    version = f"~={minor(tensorflow.version)}.0" if tensorflow and minor(tensorflow.version) else ""
    install = "" if "tf-keras" in (environment.packages or {}) else f"install tf-keras{version} and "
    return f"{install}set {_SWITCH}=1 before TensorFlow is imported, or serve it with Keras 2"


def artifact_format(wanted: Side, found: Side) -> Iterator[Finding]:
    """The format on record against that of the files now."""
    one, other = (side.model.format if side.model else None for side in (wanted, found))
    if not (one and other):
        return
    if one == other:
        yield agree("artifact-format", "model format", one, wanted=one, found=other)
    else:
        todo = "find out who wrote the files that lie there now, and verify the model that the run wrote"
        yield differs("artifact-format", "model format", wanted=one, found=other, todo=todo)


def _sides(wanted: Side, found: Side) -> tuple[Model | None, Side]:
    """The model that is to be loaded, and where: the first side's in the second, unless the first has no model."""
    if wanted.kind in ("model", "manifest"):
        return wanted.model, found
    return found.model, wanted


def _written(wanted: Side, found: Side) -> Iterator[tuple[str, Writer, str]]:
    """Each framework that wrote the model and is there: its name, the writer, the version there."""
    model, environment = _sides(wanted, found)
    there = builds(environment)
    for writer in model.written_by if model else ():
        name = _FRAMEWORKS.get(writer.name.lower(), "")
        if name in there and numbers(writer.version) and numbers(there[name].version):
            yield name, writer, there[name].version
