"""The model's files, and the frameworks that wrote them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envbuild.errors import counted
from envbuild.manifest.model import Model, ModelFile, Writer
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import agree, differs
from envbuild.verify.rules.packages import builds, minor, numbers
from envbuild.verify.sources import Side

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
_KERAS_3 = {
    "hdf5": "Keras 3 loads HDF5 of Keras 2 with compile=False, but no recurrent, attention or depthwise layers.",
    "keras": "Keras 3 loads no functional .keras model of Keras 2, and few sequential ones.",
}
"""What it loads of Keras 2.15, by format: 3.8 and 3.15 were tried on 50 models of all kinds of layers."""
_TRY = "run the golden sample there: envbuild verify MODEL IMAGE --golden --run; if it does not load, "
_SHOWN = 5
_TODO = "find out which of the two is to be served, and give that model and the manifest of its own run"
_PLAIN = "put the model's files themselves into /model of the image, as --embed-model does, and leave out links"
_LEAVE = "leave AIP_STORAGE_URI and ENVBUILD_MODEL_FOLDER out of the image, and give them when it is started"
_TWO_RUNS = "Each of the two runs saved a model of its own, and two trainings seldom end in the same weights."
Files = Mapping[str, ModelFile]


def framework(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each writer against the same framework there: a newer writer may not be loaded, an older one is."""
    for name, writer, version in _written(wanted, found):
        one, other = numbers(writer.version), numbers(version)
        if one[0] != other[0] and (name == "keras" or (name == "tensorflow" and one[0] == 1)):
            continue  # rules of their own
        rule, about, says = "artifact-framework", f"model of {name}", f"{writer.version} wrote it, {version} loads it"
        if one[:2] == other[:2]:
            yield agree(rule, about, says, wanted=writer.version, found=version)
            continue
        says = f"{writer.version} wrote the model, and {version} is to load it"
        if one[:2] > other[:2]:
            todo = f"serve it with {name} {minor(writer.version)} or later, best with the version that trained it"
            yield differs(rule, about, says, wanted=writer.version, found=version, todo=todo)
            continue
        # within one major version it is promised that older models load
        why = (_TENSORFLOW if name == "tensorflow" else _OLDER) if one[0] == other[0] else _MAJOR
        todo = "compare predictions with the run's, or serve it with the version that wrote it"
        severity: Severity = "note" if one[0] == other[0] else "warning"
        yield differs(rule, about, says, wanted=writer.version, found=version, todo=todo, severity=severity, why=why)


def tensorflow_1(wanted: Side, found: Side) -> Iterator[Finding]:
    """A model of TensorFlow 1 where TensorFlow 2 is to load it; as a SavedModel its signatures still run."""
    model, _ = model_and_environment(wanted, found)
    saved = model is not None and model.format == "saved_model"
    for name, writer, version in _written(wanted, found):
        if name == "tensorflow" and numbers(writer.version)[0] == 1 and numbers(version)[0] > 1:
            says = f"TensorFlow {writer.version} wrote the model, and {version} is to load it"
            severity: Severity | None = "warning" if saved else None
            yield differs(
                "artifact-tf1", "model of TensorFlow 1", says, wanted=writer.version, found=version, todo=_V1,
                severity=severity, why=_V1_SAVED if saved else "",
            )  # fmt: skip


def keras(wanted: Side, found: Side) -> Iterator[Finding]:
    """A model of one generation of Keras where the other one is to load it.

    Where tf-keras is there and may take the place of Keras 3, it loads what Keras 2 wrote.
    """
    model, environment = model_and_environment(wanted, found)
    packages, variables = environment.packages, environment.variables
    legacy = (packages or {}).get("tf-keras")
    for name, writer, version in _written(wanted, found):
        older, newer = numbers(writer.version)[0] <= 2, numbers(version)[0] >= 3
        if name != "keras" or older != newer or (older and packages is None):
            continue
        if older and legacy and (variables is None or variables.get(_SWITCH) in ("1", "true", "True")):
            says = f"Keras {writer.version} wrote it, tf-keras {legacy.version} loads it"
            yield agree("artifact-keras", _KERAS, says, wanted=writer.version, found=f"{legacy.version}")
            continue
        kind = model.format if model and older else None
        # A SavedModel can be loaded without Keras, and of HDF5 nothing but a trial says whether it loads.
        mild = older and (legacy is not None or kind in ("saved_model", "hdf5"))
        why, todo = _KERAS_3.get(kind or "", ""), _TRY if kind == "hdf5" else ""
        says = f"Keras {writer.version} wrote the model, and Keras {version} is to load it"
        todo += _legacy(environment) if older else f"serve it with Keras {minor(writer.version)} or later"
        severity: Severity | None = "warning" if mild else None
        yield differs(
            "artifact-keras", _KERAS, says, wanted=writer.version, found=version, todo=todo, severity=severity, why=why
        )


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


def model_and_environment(wanted: Side, found: Side) -> tuple[Model | None, Side]:
    """The model that is to be loaded, and where: the first side's in the second, unless the first has no model."""
    if wanted.kind in ("model", "manifest"):
        return wanted.model, found
    return found.model, wanted


def _written(wanted: Side, found: Side) -> Iterator[tuple[str, Writer, str]]:
    """Each framework that wrote the model and is there: its name, the writer, the version there."""
    model, environment = model_and_environment(wanted, found)
    there = builds(environment)
    for writer in model.written_by if model else ():
        name = _FRAMEWORKS.get(writer.name.lower(), "")
        if name in there and numbers(writer.version) and numbers(there[name].version):
            yield name, writer, there[name].version


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has become of the files of a model; paths are sorted."""

    old: Files
    new: Files
    common: tuple[str, ...]
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    """Empty where the newer list was cut and nobody looked the files up by name."""
    extra: tuple[str, ...]
    """Empty where the older list is not known to its end."""

    @property
    def by_size(self) -> int:
        """Of how many only the size could be compared."""
        return sum(not digests(self.old[path], self.new[path]) for path in self.common)


def compare_files(before: Model, now: Model, *, by_name: bool) -> Changes:
    """Compare two lists of files; a single file may have another name.

    Files that are listed under one name, as their own is hidden, count as different.

    `by_name`: each file of `before` was looked up, so that what `now` does not list is missing.
    """
    old, new = ({file.path: file for file in model.files} for model in (before, now))
    counts = (Counter(file.path for file in model.files) for model in (before, now))
    twice = {path for count in counts for path, times in count.items() if times > 1}
    alone = _is_one_file(before), _is_one_file(now)
    if all(alone):
        new = dict(zip(old, new.values(), strict=True))
    common = sorted(old.keys() & new.keys())
    alike = alone[0] == alone[1]
    gone = by_name or (alike and _is_listed(now))
    added = alike and _is_listed(before) and before.unread in (None, now.unread) and _is_listed(now)
    return Changes(
        old=old,
        new=new,
        common=tuple(common),
        changed=tuple(path for path in common if path in twice or not _is_same(old[path], new[path])),
        missing=tuple(sorted(old.keys() - new.keys())) if gone or not common else (),
        extra=tuple(sorted(new.keys() - old.keys())) if added or not common else (),
    )


def model_files(wanted: Side, found: Side) -> Iterator[Finding]:
    """The files of both models, as far as both list them; another format has a rule of its own."""
    one, other = wanted.model, found.model
    if one and other and "image" in (wanted.kind, found.kind) and not (one.files and other.files):
        yield from _model_of_image(wanted, found) if found.kind == "image" else _model_of_image(found, wanted)
        return
    if not (one and other and one.files and other.files) or (
        one.format and other.format and one.format != other.format
    ):
        return
    alike = _is_one_file(one) == _is_one_file(other)  # else the files beside the one that was given are not known
    if wanted.kind == "model" and found.kind == "manifest":  # the files that are there now stand first
        it = compare_files(other, one, by_name=alike)
        it = replace(it, old=it.new, new=it.old, missing=it.extra, extra=it.missing)
    else:
        it = compare_files(one, other, by_name=alike and found.kind == "model")
    paths = (*it.changed, *it.missing, *it.extra)
    if paths:
        groups = ((it.changed, "not the same"), (it.missing, "not there"), (it.extra, "there besides"))
        says = "; ".join(being(names, how) for names, how in groups if names)
        here, there = (listed([describe_file(path, files.get(path)) for path in paths]) for files in (it.old, it.new))
        severity: Severity | None = None if it.changed or it.missing else "note"
        # different runs that saved to different places have different weights
        two_runs = wanted.kind == found.kind and one.uri != other.uri
        severity, why = ("warning", _TWO_RUNS) if two_runs else (severity, "")
        yield differs(
            "model-files", "model files", says, wanted=here, found=there, todo=_TODO, severity=severity, why=why
        )
    elif it.common:
        yield agree(
            "model-files", "model files", f"{counted(len(it.common), 'file')} with the same content{size_note(it)}"
        )


def _model_of_image(wanted: Side, image: Side) -> Iterator[Finding]:
    """Of an image that has no files of a model where its server looks: why, or where it takes the model from."""
    model, inside = wanted.model, image.model
    if wanted.kind not in ("model", "manifest") or not (model and inside) or inside.files:
        return
    rule, about, says = "model-files", "model files", f"the image takes its model from {inside.uri}"
    elsewhere = not inside.uri.startswith(f"{image.name}:/")
    severity: Severity | None = None if elsewhere and wanted.kind == "model" else "warning"
    if inside.unread:
        says = f"the image's model is not known: {inside.unread}"
        yield differs(rule, about, says, wanted=model.uri, found=inside.uri, todo=_PLAIN)
    elif inside.uri.rstrip("/") == model.uri.rstrip("/"):
        yield agree(rule, about, says)
    else:
        says += ", another place" if elsewhere else ", where nothing lies"
        yield differs(rule, about, says, wanted=model.uri, found=inside.uri, todo=_LEAVE, severity=severity)


def being(paths: tuple[str, ...], how: str) -> str:
    """`a is missing`, `a, b are missing`."""
    return f"{listed(paths)} {'is' if len(paths) == 1 else 'are'} {how}"


def listed(texts: tuple[str, ...] | list[str]) -> str:
    """As many as a sentence has room for."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def describe_file(path: str, file: ModelFile | None) -> str:
    """A file by its size and the digest that there is."""
    if file is None:
        return f"no {path}"
    digest = f"sha256 {file.sha256[:12]}" if file.sha256 else f"crc32c {file.crc32c}" if file.crc32c else ""
    return " ".join(filter(None, (path, f"{file.size} bytes", digest)))


def size_note(it: Changes) -> str:
    """What an agreement adds where only the sizes of some files could be compared; else nothing."""
    return f"; of {it.by_size} only the size could be compared" if it.by_size else ""


def digests(before: ModelFile, now: ModelFile) -> list[tuple[str, str]]:
    """The digests that both have: a local file's is another than an object's. Generations change with every copy."""
    pairs = ((before.sha256, now.sha256), (before.crc32c, now.crc32c))
    return [(one, other) for one, other in pairs if one and other]


def has_digest(file: ModelFile) -> bool:
    """Whether anything tells its content."""
    return bool(file.sha256 or file.crc32c)


def _is_same(before: ModelFile, now: ModelFile) -> bool:
    return before.size == now.size and all(one == other for one, other in digests(before, now))


def _is_listed(model: Model) -> bool:
    """Whether the list was not cut at its end."""
    return model.file_count == len(model.files)


def _is_one_file(model: Model) -> bool:
    """Whether the model is one file, whatever else lies in the folder around it."""
    return [file.path for file in model.files] == [model.uri.rpartition("/")[2]]
