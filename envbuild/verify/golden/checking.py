"""The golden check: the recorded sample is run somewhere else, and has to give what was recorded."""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.capture import script
from envbuild.errors import UsageError
from envbuild.manifest.artifact import Array, Golden
from envbuild.manifest.model import TrainingManifest
from envbuild.report import Reporter
from envbuild.verify.findings import Finding
from envbuild.verify.golden import program
from envbuild.verify.golden.arrays import DamagedError
from envbuild.verify.golden.judge import check_sample, judged, not_run
from envbuild.verify.golden.model import HeldModel, held
from envbuild.verify.golden.runners import Ran, Runner

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
_RECORD = "record one when training ends: keras_callback(golden_inputs=...), or envbuild capture --golden FILE.npz"
_SAVE = "record the sample with a model saved as one of these, or serve it once by hand and compare"
_SEE = "see the lines, and what `envbuild verify` finds between the training environment and this one"


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
    What goes wrong in there is a finding. StampError where the model cannot be had.
    """
    if (fault := unfit(manifest)) is not None:
        yield fault
        return
    with held(model_uri, cache, report) as model:
        for runner in runners:
            report.step(f"running the golden sample in {runner.name}")
            for finding in golden_check(manifest, model, runner, seconds=seconds):
                yield finding.held(model.uri, runner.name)


def unfit(manifest: TrainingManifest) -> Finding | None:
    """Why a manifest has no sample that could be run; None where it has one."""
    if manifest.golden is None:
        return not_run("the manifest has no golden sample", todo=_RECORD)
    try:
        check_sample(manifest.golden)
    except DamagedError as error:
        return not_run(f"the manifest's golden sample cannot be used: {error}", todo=_RECORD)
    return None


def golden_check(
    manifest: TrainingManifest, model: HeldModel, runner: Runner, *, seconds: float = SECONDS
) -> tuple[Finding, ...]:
    """Run the sample with a model that lies here in one environment."""
    if (fault := unfit(manifest)) is not None:
        return (fault,)
    assert manifest.golden is not None
    if model.format not in program.FORMATS:
        known = ", ".join(program.FORMATS)
        says = f"a model of the format {model.format or 'unknown'} cannot be run by itself, as {known} can"
        return (not_run(says, todo=_SAVE),)
    try:
        ran = _run(manifest.golden, model, runner, seconds)
    except UsageError as error:
        return (not_run(f"the sample cannot be run: {error.what}", todo=error.todo, wrong=True),)
    return tuple(_with_files(it, model, manifest) for it in _findings(manifest.golden, ran, seconds))


def _run(golden: Golden, model: HeldModel, runner: Runner, seconds: float) -> Ran:
    order = {
        "format": model.format,
        "model": f"model/{model.start}".rstrip("/"),
        "inputs": [{"name": it.name, "dtype": it.dtype, "shape": it.shape, "data": it.data} for it in golden.inputs],
        "outputs": [it.name for it in golden.outputs],
    }
    beside: dict[str, bytes | Path] = {
        "order.json": json.dumps(order).encode(),
        f"{program.CAPTURE}.py": script().encode(),
        **{f"model/{path}": file for path, file in model.files.items()},
    }
    return runner.run(Path(program.__file__).read_text("utf-8"), beside, seconds=seconds)


def _findings(golden: Golden, ran: Ran, seconds: float) -> Iterable[Finding]:
    answer = _answer(ran)
    if answer is None:
        return (not_run(_ended(ran, seconds), todo=_SEE, wrong=True),)
    if "unclear" in answer:
        todo = "record the sample with the model's own names of inputs: golden_sample({NAME: ...}, {NAME: ...})"
        return (not_run(f"the sample does not fit the model: {answer['unclear']}", todo=todo),)
    if "failed" in answer:
        says = _STEPS.get(str(answer["failed"]), "the sample cannot be run")
        return (not_run(_quoted(says, [str(it) for it in answer.get("lines", ())]), todo=_SEE, wrong=True),)
    try:
        found = tuple(_array(it) for it in answer["outputs"])
        return tuple(judged(golden, found))
    except (KeyError, TypeError, ValueError, DamagedError):
        return (not_run(_quoted("what came back is no answer", ran.lines), todo=_SEE, wrong=True),)


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


def _ended(ran: Ran, seconds: float) -> str:
    if ran.late:
        return _quoted(f"the model gave no answer within {seconds:g} s", ran.lines)
    how = _ENDS.get(ran.code, f"exit code {ran.code}")
    return _quoted(f"the sample's run ended without an answer: {how}", ran.lines)


def _quoted(says: str, lines: Iterable[str]) -> str:
    return "".join([says, *(f"\n  | {line[:_LONGEST]}" for line in list(lines)[-_MOST_LINES:])])


def _with_files(finding: Finding, model: HeldModel, manifest: TrainingManifest) -> Finding:
    """Say with a finding that the model is another than the recorded one, where its files say so."""
    other = () if finding.agrees else model.differing(manifest.model)
    if not other:
        return finding
    more = f" and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
    named = ", ".join(other[:_MOST_NAMED]) + more
    return replace(finding, why=f"{finding.why}; and files of the model are not those of the record: {named}")
