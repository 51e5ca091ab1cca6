"""`envbuild inspect`: what a model is stamped with, and was before."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.console import Progress, printable
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson
from envbuild.cli.vouching import MinimumRecord, Signed, proof_of
from envbuild.errors import StampError

if TYPE_CHECKING:
    from envbuild.stamp.history import History, RecordFile
    from envbuild.stamp.record import Stamp, StampedImage

Model = Annotated[str, typer.Argument(help="A stamped model: gs://..., a folder, or a file.", metavar="MODEL")]
Whole = Annotated[bool, typer.Option("--history", help="Show all records, the newest first, and what each changed.")]


_SIGNED = {True: "signed by the key", False: "not signed", None: "signed; --signed KEY checks by whom"}


def run(
    model: Model,
    *,
    history: Whole = False,
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    as_json: AsJson = False,
) -> None:
    """Show which images a model is stamped with: by role, variant and platform, with what they were made from."""
    from envbuild.stamp.history import read_history

    check_stdout()
    proof = proof_of((signed,) if signed is not None else (), minimum_record)
    with Progress() as progress:
        found = read_history(model, whole=history, proof=proof, signature=True)
        if not found.records:
            todo = "stamp it with what it was trained in: envbuild from-manifest MANIFEST --push REPO --stamp MODEL"
            raise StampError(found.unstamped, where=found.model, todo=todo)
        if not found.current:
            progress.warn(
                "the model was replaced since it was stamped: the images may not be those of what is there now; "
                "stamp it again with those that are"
            )
    if as_json:
        typer.echo(json.dumps(_shown(found), indent=2))
        return
    for line in _lines(found):
        typer.echo(printable(line))


def _shown(found: "History") -> dict[str, Any]:
    """The records by their own bytes, with what this release does not know."""
    records = [
        {"name": it.name, "record": json.loads(it.data)}
        if it.stamp
        else {"name": it.name, "record": None, "fault": it.fault}
        for it in found.records
    ]
    newest = found.records[0].stamp
    return {
        "model": found.model,
        "current": found.current,
        "counter": newest.counter if newest else 0,
        "signed": found.signed,
        "records": records,
    }


def _lines(found: "History") -> Iterator[str]:
    yield found.model
    newest = found.records[0].stamp
    assert newest is not None
    for image in newest.images:
        yield from _image(image)
    for number, record in enumerate(found.records):
        yield from _record(record, found.records[number + 1 : number + 2], whole=len(found.records) > 1)
        if number == 0:
            yield f"    {_SIGNED[found.signed]}"


def _image(image: "StampedImage") -> Iterator[str]:
    from envbuild.stamp.record import lock_name, manifest_name

    yield f"  {' '.join(image.slot)}: {image.image}"
    yield f"    environment {image.environment}"
    if image.relation:
        yield f"    {image.relation}: a runtime of its own, which was held against the model"
    if image.identity:
        yield f"    {image.identity}"
    if image.overrides:
        yield f"    set by hand: {', '.join(f'{name}={value}' for name, value in image.overrides)}"
    yield f"    {manifest_name(image)}"
    yield f"    {lock_name(image)}"


def _record(record: "RecordFile", before: "tuple[RecordFile, ...]", *, whole: bool) -> Iterator[str]:
    if record.stamp is None:
        yield f"  {record.name}: {record.fault}, so that nobody can say what came before it"
        return
    by = f", by {record.stamp.by}" if record.stamp.by else ""
    counter = f", record {record.stamp.counter}" if record.stamp.counter else ""
    yield f"  {record.name}: {record.stamp.created}, envbuild {record.stamp.envbuild}{by}{counter}"
    if record.stamp.content and record.stamp.content.forced:
        yield f"    --stamp-anyway: {record.stamp.content.forced}"
    if whole and not (before and before[0].stamp is None):
        yield from _changes(before[0].stamp if before else None, record.stamp)


def _changes(before: "Stamp | None", after: "Stamp") -> Iterator[str]:
    from envbuild.stamp.history import changes

    for old, new in changes(before, after):
        slot = " ".join((new or old).slot)  # type: ignore[union-attr]
        yield f"    {slot}: {old.digest if old else 'nothing'} -> {new.digest if new else 'nothing'}"
