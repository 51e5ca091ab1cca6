"""The golden check: the recorded sample runs in another environment, and has to give what was recorded."""

import base64
import json
import math
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuild.cache import workplace
from envbuild.capture import script
from envbuild.capture.gcs import Unread
from envbuild.capture.golden import NUMERIC
from envbuild.capture.model import read_artifacts
from envbuild.capture.places import STAMP_FOLDER, LocalPlace, place_of
from envbuild.errors import StampError, UsageError, counted
from envbuild.manifest.model import Array, Golden, Model, TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.report import Reporter
from envbuild.stamp.store import ModelUri, parse_model_uri
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.golden import program
from envbuild.verify.golden.arrays import CODES, DamagedError, Deviation, categories, content, deviation, elements
from envbuild.verify.golden.runners import InInterpreter, Ran, Runner

_NO_MODEL = "give the URI of the model's file or folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model whose files lie on a disk here."""

    uri: str
    format: str | None
    """As the manifest names formats; None where nothing fits."""
    folder: Path
    """What it lies in, and what no link of it may lead out of where it is embedded."""
    files: Mapping[str, Path]
    """Where each file lies, by its path inside the model."""
    start: str
    """What is loaded: the path of a file inside the model, or of a folder; empty for the model's own."""
    size: int
    """Bytes."""
    digests: Mapping[str, str]
    """Hex sha256 of the files, by their paths inside the model."""
    generations: Mapping[str, int]
    """Of the objects that were downloaded, by their paths inside the model."""

    def differing(self, recorded: Model | None) -> tuple[str, ...]:
        """Files that are not those of a record, as far as it has digests."""
        known = {file.path: file.sha256 for file in recorded.files} if recorded else {}
        return tuple(
            path for path, digest in known.items() if digest and path in self.digests and digest != self.digests[path]
        )


@contextmanager
def open_model(model_uri: str, cache: Path, report: Reporter) -> Iterator[LocalModel]:
    """Yield a model; one in Cloud Storage lies on the cache's disk meanwhile.

    StampError where it cannot be read, UsageError for an invalid URI.
    """
    uri = parse_model_uri(model_uri)
    if uri.bucket is None:
        yield _read(str(uri), uri.path, {})
        return
    with workplace(cache) as folder:
        path, generations = _downloaded(uri, folder, report)
        yield _read(str(uri), str(path), generations)


def _read(uri: str, path: str, generations: Mapping[str, int]) -> LocalModel:
    try:
        place = place_of(path)
    except Unread as error:
        raise StampError(f"the model cannot be read: {error}", where=uri, todo=_NO_MODEL) from error
    if not isinstance(place, LocalPlace) or not place.files:
        raise StampError(f"the model cannot be read: {'; '.join(place.faults)}", where=uri, todo=_NO_MODEL)
    files = {str(file["path"]): file for file in place.files}
    artifacts, _ = read_artifacts(place)
    main = artifacts[0] if artifacts else {}
    path = str(main.get("path", ""))
    return LocalModel(
        uri=uri,
        format=main.get("format"),
        folder=Path(place.folder),
        files={name: Path(place.folder, name) for name in files},
        start=path.rpartition("/")[0] if main.get("format") == "saved_model" else path,
        size=sum(int(file["size"]) for file in place.files),
        digests={name: str(file["sha256"]) for name, file in files.items() if file.get("sha256")},
        generations=generations,
    )


def _downloaded(uri: ModelUri, folder: Path, report: Reporter) -> tuple[Path, dict[str, int]]:
    """Download a model's objects at the generations that they have now; return its file or folder, and those."""
    from envbuild.stamp.gcs import connected, storage_errors  # noqa: PLC0415 - Google's client takes a second to load

    assert uri.bucket is not None
    with connected() as client, storage_errors(str(uri), uri.bucket, "storage.objects.get"):
        blobs = dict(_blobs(client, uri.bucket, uri))
        total, done = sum(int(blob.size or 0) for blob in blobs.values()), 0
        _check(blobs, total, uri, folder)
        report.note(f"downloading the model: {len(blobs)} files, {total} bytes")
        for path, blob in blobs.items():
            target = folder / "model" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            blob.download_to_filename(str(target), if_generation_match=blob.generation)
            done += int(blob.size or 0)
            report.progress("model", done, total)
    whole = folder / "model"
    alone = set(blobs) == {uri.name} and not uri.folder
    return whole / uri.name if alone else whole, {path: int(blob.generation) for path, blob in blobs.items()}


def _blobs(client: Any, bucket: str, uri: ModelUri) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a model by their paths inside it; of a single object by its name."""
    blob = None if uri.folder else client.bucket(bucket).get_blob(uri.path)
    if blob is not None:
        yield uri.name, blob
        return
    prefix = f"{uri.path}/"
    for blob in client.list_blobs(bucket, prefix=prefix):
        path = blob.name.removeprefix(prefix)
        if path and not path.endswith("/") and not path.startswith(STAMP_FOLDER):
            yield path, blob


def _check(blobs: Mapping[str, Any], total: int, uri: ModelUri, folder: Path) -> None:
    if not blobs:
        raise StampError("there is no model here: no object", where=str(uri), todo=_NO_MODEL)
    for path in blobs:
        if path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
            todo = "copy the model to a folder whose objects have plain names"
            raise StampError(f"an object's name is not the path of a file: {path!r}", where=str(uri), todo=todo)
    free = shutil.disk_usage(folder).free
    if total > free:
        todo = "free space there, or set ENVBUILD_CACHE to a folder on another disk"
        raise StampError(f"the model has {total} bytes, and {free} are free", where=str(folder), todo=todo)


RULE = "golden"
_NUMBERED = re.compile(r"output_(\d+)")
"""What Keras 3 calls the outputs of a list when it exports them."""
_WHY = "the model does not predict here what it predicted where it was trained"
_TODO = "see in what the environments differ (envbuild verify, envbuild diff), and that this is the model of the sample"
_PICKLE = "the model is a pickle, which runs any code when it is loaded, so that envbuild loads it only in isolation"
_UNKNOWN = "it is not known whether the model predicts here what it predicted where it was trained"
SECONDS = 900.0
"""For loading the model and one call of it."""
_MOST_NAMED = 5
_MOST_LINES, _LONGEST = 12, 300
"""Keras says a whole model in one line."""
_STEPS = {
    "import": "the model's framework cannot be imported",
    "load": "the model cannot be loaded",
    "run": "the model cannot be called",
}
_ENDS = {
    132: "an instruction that this CPU does not have (SIGILL)",
    134: "it aborted (SIGABRT)",
    137: "it was killed (SIGKILL), most often for want of memory",
    139: "it crashed (SIGSEGV)",
}
_RECORD = (
    "record one when training ends: golden_sample(...), keras_callback(golden_inputs=...) or capture --golden FILE; "
    "or add one: `envbuild convert RECORD --golden FILE`, and build with the manifest that it prints"
)
_SAVE = "record the sample with a model saved as one of these, or serve it once by hand and compare"
_ISOLATED = (
    "run it in an image, where a container engine or bubblewrap isolates it: `envbuild verify MODEL IMAGE --golden "
    "--run`; without both, `envbuild local MODEL --venv DIR --golden` prints the line by which you start it yourself"
)
_SEE = "see the lines, and what `envbuild verify` finds between the training environment and this one"


def not_run(says: str, *, todo: str, wrong: bool = False) -> Finding:
    """A finding that there is nothing to compare: an error if it is the environment's fault, else a warning."""
    rule = "golden-run" if wrong else "golden-sample"
    severity: Severity = "error" if wrong else "warning"
    why = "what serves this model here would end in the same way" if wrong else _UNKNOWN
    return Finding(about=RULE, rule=rule, agrees=False, says=says, severity=severity, why=why, todo=todo)


def judged(golden: Golden, found: Sequence[Array]) -> Iterator[Finding]:
    """Yield what differs, one finding for each output; where nothing does, one that says so and how near it is."""
    try:
        pairs = paired(golden.outputs, found)
    except LookupError as error:
        yield Finding(about=RULE, agrees=False, says=str(error.args[0]), why=_WHY, todo=_TODO)
        return
    results = [_compare(wanted, came, golden) for wanted, came in pairs]
    faults = [fault for _, those in results for fault in those]
    yield from faults
    if not any(it.severity == "error" or it.id != RULE for it in faults):
        sample = counted(len(golden.outputs), "output")
        noun = "number" if all(NUMERIC.fullmatch(array.dtype) for array in golden.outputs) else "value"
        count = counted(sum(math.prod(array.shape) for array in golden.outputs), noun)
        largest = max((far.largest for far, _ in results if far), default=0.0)
        near = f"within {_tolerance(golden)}; the largest difference is {largest:.2g}" if largest else "exactly"
        yield Finding(about=RULE, agrees=True, says=f"the model gives what was recorded: {sample}, {count}, {near}")


def paired(wanted: Sequence[Array], found: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Pair each recorded output with the one that came for it; LookupError where that is not certain."""
    if len(wanted) == len(found) == 1:
        return [(wanted[0], found[0])]
    names = [array.name for array in wanted]
    numbered = {number[1]: array for array in found if (number := _NUMBERED.fullmatch(array.name))}
    for known in ({array.name: array for array in found}, numbered):
        if known.keys() >= set(names):
            return [(array, known[array.name]) for array in wanted]
    recorded, came = (", ".join(it.name or "(without a name)" for it in those) for those in (wanted, found))
    raise LookupError(f"outputs {recorded} were recorded, and the model gives {came}")


def _compare(wanted: Array, found: Array, golden: Golden) -> tuple[Deviation | None, list[Finding]]:
    """How far an output is from the recorded one, where its numbers can be compared, and what is wrong with it."""
    name = f"output {wanted.name or found.name}".strip()
    if wanted.shape != found.shape:
        says = f"{name} has the shape {list(found.shape)}, and {list(wanted.shape)} was recorded"
        return None, [_wrong(says, str(list(wanted.shape)), str(list(found.shape)))]
    faults: list[Finding] = []
    if wanted.dtype != found.dtype:
        says = f"{name} has the type {found.dtype}, and {wanted.dtype} was recorded"
        other = _kind(wanted) != _kind(found)
        faults = [_wrong(says, wanted.dtype, found.dtype, severe=other)]
        if other:
            return None, faults
    try:
        far = deviation(wanted, found, rtol=golden.rtol, atol=golden.atol)
    except DamagedError as error:
        if wanted.data != found.data:
            faults.append(not_run(f"{name} cannot be compared: {error}", todo="record the sample again, as float32"))
        return None, faults
    if far.beyond:
        where = f" at {list(far.place)}" if far.place else ""
        are = "is" if far.beyond == 1 else "are"
        if _kind(wanted) == "text":
            says = f"{far.beyond} of {counted(far.count, 'value')} of {name} {are} not what was recorded; the first is"
        else:
            says = f"{far.beyond} of {counted(far.count, 'number')} of {name} {are} further off than "
            says += f"{_tolerance(golden)}; the largest deviation is {far.largest:.6g}"
        says += f"{where}: {far.found}, and {far.wanted} was recorded"
        faults.append(_wrong(says, far.wanted, far.found))
    return far, faults


def _wrong(says: str, wanted: str, found: str, *, severe: bool = True) -> Finding:
    severity: Severity = "error" if severe else "warning"
    why = _WHY if severe else "what reads the predictions gets another type"
    return Finding(
        about=RULE, agrees=False, says=says, severity=severity, wanted=wanted, found=found, why=why, todo=_TODO
    )


def _tolerance(golden: Golden) -> str:
    return f"{golden.atol:g} + {golden.rtol:g} * |recorded|"


def _kind(array: Array) -> str:
    """`float` for float32 and bfloat16, `text` for other types than numbers."""
    if not NUMERIC.fullmatch(array.dtype):
        return "text"
    return re.sub(r"\d.*", "", array.dtype).removeprefix("b") if array.dtype != "bool" else "bool"


def check(
    manifest: TrainingManifest,
    model_uri: str,
    runners: Iterable[Runner],
    *,
    cache: Path,
    report: Reporter,
    seconds: float = SECONDS,
) -> Iterator[Finding]:
    """Run a manifest's sample with a model in each environment; yield what differs, and one finding where nothing does.

    The model is fetched once, and only if there is something to run. `seconds` is the patience with one environment.
    What goes wrong in there is a finding. StampError where the model cannot be read.
    """
    if (fault := unfit(manifest)) is not None:
        yield fault
        return
    with open_model(model_uri, cache, report) as model:
        for runner in runners:
            report.step(f"running the golden sample in {runner.name}")
            for finding in golden_check(manifest, model, runner, seconds=seconds):
                yield finding.with_targets(model.uri, runner.name)


def unfit(manifest: TrainingManifest) -> Finding | None:
    """Why a manifest has no sample that could be run; None where it has one."""
    if manifest.golden is None:
        return not_run("the manifest has no golden sample", todo=_RECORD)
    for array in (*manifest.golden.inputs, *manifest.golden.outputs):
        try:
            content(array) if NUMERIC.fullmatch(array.dtype) else (*elements(array), *categories(array))
        except DamagedError as error:
            says = f"the manifest's golden sample cannot be used: {array.name or 'an array'} is damaged: {error}"
            return not_run(says, todo=_RECORD)
    return None


def golden_check(
    manifest: TrainingManifest, model: LocalModel, runner: Runner, *, seconds: float = SECONDS
) -> tuple[Finding, ...]:
    """Run the sample with a model that lies here in one environment; a pickle only where something isolates it."""
    if model.format in program.PICKLES and isinstance(runner, InInterpreter) and runner.sandbox:
        isolated = golden_check(manifest, model, runner.sandbox, seconds=seconds)
        if all(it.rule != "golden-run" for it in isolated):
            return isolated
        return _add_reason(golden_check(manifest, model, replace(runner, sandbox=None), seconds=seconds), isolated[0])
    if (fault := unfit(manifest) or _refuse(model, runner)) is not None:
        return (fault,)
    golden = manifest.golden
    assert golden is not None
    try:
        golden = fitted(golden, model.format)
    except DamagedError as error:
        return (not_run(f"a model of the format {model.format} takes no table: {error}", todo=_SAVE),)
    order = {
        "format": model.format,
        "model": f"model/{model.start}".rstrip("/"),
        "inputs": [_input(it, golden.table) for it in golden.inputs],
        "outputs": [{"name": it.name, "shape": it.shape} for it in golden.outputs],
    }
    beside: dict[str, bytes | Path] = {
        "order.json": json.dumps(order).encode(),
        f"{program.CAPTURE}.py": script().encode(),
        **{f"model/{path}": file for path, file in model.files.items()},
    }
    text = Path(program.__file__).read_text("utf-8")
    by_user = runner if model.format in program.PICKLES and isinstance(runner, InInterpreter) else None
    found: Iterable[Finding]
    try:
        if by_user is not None:
            found = _by_hand(golden, model, by_user, text, beside)
        else:
            found = _findings(golden, runner.run(text, beside, seconds=seconds), seconds)
    except UsageError as error:  # a folder that cannot be written says nothing of the environment
        return (not_run(f"the sample cannot be run: {error.what}", todo=error.todo, wrong=by_user is None),)
    return tuple(_with_files(it, model, manifest) for it in found)


def _add_reason(found: tuple[Finding, ...], isolated: Finding) -> tuple[Finding, ...]:
    """Say with a pickle that was not run why it cannot be run under bubblewrap either.

    That is no fault of the environment: the interpreter sees more, such as an editable install.
    """
    says, *lines = isolated.says.split("\n  | ")
    why = f"{_UNKNOWN}; under bubblewrap, where it sees its own folders alone, {': '.join([says, *lines[-1:]])}"
    return tuple(replace(it, why=why) if it.says == _PICKLE else it for it in found)


def _by_hand(
    golden: Golden, model: LocalModel, runner: InInterpreter, text: str, beside: Mapping[str, bytes | Path]
) -> Iterable[Finding]:
    """Judge what came of the user's own run, once; the line for a new one where there was none that says anything."""
    if unknown := sorted(model.files.keys() - model.digests.keys()):
        says = f"the file {unknown[0]} of the model has no digest, so that no answer would be known to be its own"
        return (not_run(says, todo=_ISOLATED),)
    written = sorted((name, str(Digest.of(it))) for name, it in beside.items() if isinstance(it, bytes))
    key = [text, written, sorted(model.digests.items())]
    ran, todo = runner.run_by_user(text, beside, key)
    if ran is None:
        return (not_run(_PICKLE, todo=todo),)
    found = tuple(_findings(golden, ran, 0))
    if all(it.id == RULE for it in found):
        return found
    _, todo = runner.run_by_user(text, beside, key)
    return tuple(replace(it, todo=f"{it.todo}; then {todo}") for it in found)


def _refuse(model: LocalModel, runner: Runner) -> Finding | None:
    """Say why a model cannot be run at all, if it cannot."""
    if model.format not in program.FORMATS:
        known = ", ".join(program.FORMATS)
        says = f"a model of the format {model.format or 'unknown'} cannot be run by itself, as {known} can"
        return not_run(says, todo=_SAVE)
    if model.format in program.PICKLES and isinstance(runner, InInterpreter) and runner.kept is None:
        return not_run(_PICKLE, todo=_ISOLATED)
    return None


def fitted(golden: Golden, format_: str | None) -> Golden:
    """Return a sample as a model takes it: the columns of a table as one array, if no model of the format takes tables.

    DamagedError where they are not numbers.
    """
    entry = program.FORMATS.get(format_ or "")
    if not golden.table or entry is None or entry[2] is program.call_estimator:
        return golden
    for it in golden.inputs:
        if it.dtype not in CODES or len(it.shape) != 1 or it.shape != golden.inputs[0].shape:
            raise DamagedError(f"its column {it.name} has the type {it.dtype} and the shape {list(it.shape)}")
    types = {it.dtype for it in golden.inputs}
    dtype, columns = types.pop() if len(types) == 1 else "float64", [elements(it) for it in golden.inputs]
    values = [value for row in zip(*columns, strict=True) for value in row]
    data = base64.b64encode(struct.pack(f"<{len(values)}{CODES[dtype]}", *values)).decode()
    array = Array(name="", dtype=dtype, shape=(len(columns[0]), len(columns)), data=data)
    return replace(golden, inputs=(array,), table=False)


def _input(array: Array, table: bool) -> dict[str, Any]:
    """An input for the program: numbers as they are recorded, all else as its values."""
    found = {"name": array.name, "dtype": array.dtype, "shape": array.shape, "table": table}
    if NUMERIC.fullmatch(array.dtype):
        return found | {"data": array.data}
    return found | {"values": elements(array), "categories": categories(array)}


def _findings(golden: Golden, ran: Ran, seconds: float) -> Iterable[Finding]:
    answer = _answer(ran)
    if answer is None:
        how = _ENDS.get(ran.code, f"exit code {ran.code}")
        says = f"the sample's run ended without an answer: {how}"
        says = f"the model gave no answer within {seconds:g} s" if ran.late else says
        return (not_run(_quoted(says, ran.lines), todo=_SEE, wrong=True),)
    if "unclear" in answer:
        todo = "record the sample with the model's own names of inputs: golden_sample({NAME: ...}, {NAME: ...})"
        return (not_run(f"the sample does not fit the model: {answer['unclear']}", todo=todo),)
    if "failed" in answer:
        says = _STEPS.get(str(answer["failed"]), "the sample cannot be run")
        return (not_run(_quoted(says, [str(it) for it in answer.get("lines", ())]), todo=_SEE, wrong=True),)
    try:
        return tuple(judged(golden, [_array(it) for it in answer["outputs"]]))
    except (KeyError, TypeError, ValueError, DamagedError):
        return (not_run(_quoted("the answer cannot be read", ran.lines), todo=_SEE, wrong=True),)


def _answer(ran: Ran) -> dict[str, Any] | None:
    """What the program wrote, whatever an image's Python made of it."""
    try:
        value = json.loads(ran.answer or b"")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not ran.late else None


def _array(value: dict[str, Any]) -> Array:
    shape, data = tuple(int(it) for it in value["shape"]), str(value["data"])
    base64.b64decode(data, validate=True)
    return Array(name=str(value["name"]), dtype=str(value["dtype"]), shape=shape, data=data)


def _quoted(says: str, lines: Iterable[str]) -> str:
    return "".join([says, *(f"\n  | {line[:_LONGEST]}" for line in list(lines)[-_MOST_LINES:])])


def _with_files(finding: Finding, model: LocalModel, manifest: TrainingManifest) -> Finding:
    """Say with a finding that the model is another than the recorded one, where its files say so."""
    other = () if finding.agrees else model.differing(manifest.model)
    if not other:
        return finding
    more = f" and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
    named = ", ".join(other[:_MOST_NAMED]) + more
    return replace(finding, why=f"{finding.why}; and files of the model are not those of the record: {named}")
