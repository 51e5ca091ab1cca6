"""`envbuild inspect`: the images that a model is and was stamped with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.command import WHAT, flag, grouped
from envbuild.cli.console import Progress, one_line, printable
from envbuild.cli.options import AsJson, MinimumRecord, Signed
from envbuild.cli.targets import kind_of, proof_of
from envbuild.errors import StampError

if TYPE_CHECKING:
    from envbuild.stamp.history import History, RecordFile
    from envbuild.stamp.record import StampedImage


_SIGNED = {True: "signed by the key", False: "not signed", None: "signed; --signed KEY checks by whom"}


@grouped()
def run(
    model: Annotated[str, typer.Argument(help="A stamped model: gs://..., a folder, or a file.", metavar="MODEL")],
    *,
    history: bool = flag(WHAT, "Show all records, the newest first, and their changes."),
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    as_json: AsJson = False,
) -> None:
    """Show the images that a model is stamped with.

    By role, variant and platform, each with its environment id, manifest and lock.
    """
    from envbuild.oci.reference import lies_here, split_digest
    from envbuild.stamp.history import read_history

    proof = None
    if signed is not None or minimum_record is not None:
        proof = proof_of((signed,) if signed is not None else (), minimum_record)
    layout = split_digest(model)[0]
    if lies_here(model) and Path(layout).is_dir() and kind_of(layout)[0] == "image":
        todo = f"give the model that is stamped with it; `envbuild verify MODEL {one_line(model)}` compares the two"
        raise StampError("this is an image, and a stamp lies beside its model", where=one_line(model), todo=todo)
    with Progress() as progress:
        found = read_history(model, whole=history, proof=proof, signature=True)
        if not found.records:
            todo = "stamp it: envbuild from-manifest MANIFEST --push REPO --stamp MODEL"
            raise StampError(found.unstamped, where=found.model, todo=todo)
        if not found.current:
            progress.warn(
                "the model was replaced since it was stamped, and the images may not be its own; stamp it again"
            )
    if as_json:
        typer.echo(json.dumps(_json_object(found), indent=2))
    else:
        typer.echo("\n".join(map(printable, _lines(found))))


def _json_object(found: "History") -> dict[str, Any]:
    """Return the records by their own bytes, with keys that this release does not know."""
    newest = found.records[0].stamp
    return {
        "model": found.model,
        "current": found.current,
        "counter": newest.counter if newest else 0,
        "signed": found.signed,
        "records": [
            {"name": it.name, "record": json.loads(it.data)}
            if it.stamp
            else {"name": it.name, "record": None, "fault": it.fault}
            for it in found.records
        ],
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
    if image.zstd:
        yield f"    in zstd: {image.zstd}"
    yield f"    environment {image.environment}"
    if image.relation:
        yield f"    {image.relation}: a runtime of its own, checked against the model"
    if image.gate:
        yield f"    {image.gate}: nothing started it before it was stamped"
    if image.identity:
        yield f"    {image.identity}"
    if image.overrides:
        yield f"    set by hand: {', '.join(f'{name}={value}' for name, value in image.overrides)}"
    yield f"    {manifest_name(image)}"
    yield f"    {lock_name(image)}"


def _record(record: "RecordFile", before: "tuple[RecordFile, ...]", *, whole: bool) -> Iterator[str]:
    from envbuild.stamp.history import changes

    if record.stamp is None:
        yield f"  {record.name}: {record.fault}, so the records before it are unknown"
        return
    by = f", by {record.stamp.by}" if record.stamp.by else ""
    counter = f", record {record.stamp.counter}" if record.stamp.counter else ""
    yield f"  {record.name}: {record.stamp.created}, envbuild {record.stamp.envbuild}{by}{counter}"
    if record.stamp.content and record.stamp.content.forced:
        yield f"    --stamp-anyway: {record.stamp.content.forced}"
    if whole and not (before and before[0].stamp is None):
        for old, new in changes(before[0].stamp if before else None, record.stamp):
            slot = " ".join((new or old).slot)  # type: ignore[union-attr]
            yield f"    {slot}: {old.digest if old else 'nothing'} -> {new.digest if new else 'nothing'}"
