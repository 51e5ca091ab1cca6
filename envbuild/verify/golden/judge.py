"""What a model answered, held against what it answered when it was recorded."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from envbuild.errors import counted
from envbuild.manifest.artifact import Array, Golden
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.golden.arrays import DamagedError, Deviation, content, deviation

RULE = "golden"
_NUMBERED = re.compile(r"output_(\d+)")
"""What Keras 3 calls the outputs of a list when it exports them."""
_WHY = "the model does not predict here what it predicted where it was trained"
_TODO = "see in what the environments differ (envbuild verify, envbuild diff), and that this is the model of the sample"
_UNKNOWN = "nobody has seen that the model predicts here what it predicted where it was trained"


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
    held = [_held(wanted, came, golden) for wanted, came in pairs]
    faults = [fault for _, those in held for fault in those]
    yield from faults
    if not any(it.severity == "error" or it.id != RULE for it in faults):
        sample = counted(len(golden.outputs), "output")
        numbers = counted(sum(math.prod(array.shape) for array in golden.outputs), "number")
        near = _near([far for far, _ in held if far is not None], golden)
        yield Finding(about=RULE, agrees=True, says=f"the model gives what was recorded: {sample}, {numbers}, {near}")


def _near(found: Sequence[Deviation], golden: Golden) -> str:
    """How near outputs are that agree."""
    largest = max((it.largest for it in found), default=0.0)
    if not largest:
        return "exactly"
    return f"within {_tolerance(golden)}; the largest difference is {largest:.2g}"


def paired(wanted: Sequence[Array], found: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Put each recorded output beside the one that came for it; LookupError where that is not certain."""
    if len(wanted) == len(found) == 1:
        return [(wanted[0], found[0])]
    names = [array.name for array in wanted]
    for known in (_named(found), _numbered(found)):
        if known.keys() >= set(names):
            return [(array, known[array.name]) for array in wanted]
    raise LookupError(f"outputs {_list(names)} were recorded, and the model gives {_list([it.name for it in found])}")


def _named(arrays: Sequence[Array]) -> Mapping[str, Array]:
    return {array.name: array for array in arrays}


def _numbered(arrays: Sequence[Array]) -> Mapping[str, Array]:
    return {number[1]: array for array in arrays if (number := _NUMBERED.fullmatch(array.name))}


def _held(wanted: Array, found: Array, golden: Golden) -> tuple[Deviation | None, list[Finding]]:
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
    far, wrong = _numbers(name, wanted, found, golden)
    return far, faults + wrong


def _numbers(name: str, wanted: Array, found: Array, golden: Golden) -> tuple[Deviation | None, list[Finding]]:
    try:
        far = deviation(wanted, found, rtol=golden.rtol, atol=golden.atol)
    except DamagedError as error:
        if wanted.data == found.data:
            return None, []
        return None, [not_run(f"{name} cannot be compared: {error}", todo="record the sample anew, as float32")]
    return far, [_wrong(_said(name, far, golden), far.wanted, far.found)] if far.beyond else []


def _said(name: str, far: Deviation, golden: Golden) -> str:
    where = f" at {list(far.place)}" if far.place else ""
    are = "is" if far.beyond == 1 else "are"
    return (
        f"{far.beyond} of {counted(far.count, 'number')} of {name} {are} further off than {_tolerance(golden)}; the "
        f"largest deviation is {far.largest:.6g}{where}: {far.found}, and {far.wanted} was recorded"
    )


def _wrong(says: str, wanted: str, found: str, *, severe: bool = True) -> Finding:
    severity: Severity = "error" if severe else "warning"
    why = _WHY if severe else "what reads the predictions gets another type"
    return Finding(
        about=RULE, agrees=False, says=says, severity=severity, wanted=wanted, found=found, why=why, todo=_TODO
    )


def _tolerance(golden: Golden) -> str:
    return f"{golden.atol:g} + {golden.rtol:g} * |recorded|"


def _kind(array: Array) -> str:
    """`float` for float32 and bfloat16."""
    return re.sub(r"\d.*", "", array.dtype).removeprefix("b") if array.dtype != "bool" else "bool"


def _list(names: Sequence[str]) -> str:
    return ", ".join(name or "(without a name)" for name in names)


def check_sample(golden: Golden) -> None:
    """See that a sample is whole; DamagedError."""
    for array in (*golden.inputs, *golden.outputs):
        try:
            content(array)
        except DamagedError as error:
            raise DamagedError(f"{array.name or 'an array'} is damaged: {error}") from error
