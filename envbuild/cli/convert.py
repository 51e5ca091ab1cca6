"""`envbuild convert`: another tool's record as a manifest."""

import json
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.arguments import import_record
from envbuild.cli.command import WHAT, WHERE, grouped, option
from envbuild.cli.console import Progress
from envbuild.cli.options import FactOptions
from envbuild.errors import UsageError


@grouped()
def run(
    record: Annotated[
        str, typer.Argument(help="A file or folder, - for stdin, or gs://bucket/object.", metavar="RECORD")
    ],
    *,
    options: FactOptions,
    model: str | None = option(WHAT, "Where the trained model is.", "URI"),
    golden: str | None = option(WHAT, "Inputs and the model's predictions, if the record lacks them.", "FILE.npz"),
    out: str | None = option(WHERE, "Write the manifest here, also gs://..., not to stdout.", "FILE"),
) -> None:
    """Convert another tool's record to a manifest.

    Reads what pip freeze, pip list, pip inspect, conda list and conda env export print, requirements.txt,
    pylock.toml, environment.yml, the locks of uv, Poetry, PDM, Pipenv, pixi and conda-lock, MLflow model
    folders, and the folder `files` of a W&B run. Facts that the record lacks are reported; options give them.
    """
    from envbuild.capture.gcs import check_out, write_out

    try:
        check_out(out)
    except ValueError as error:
        raise UsageError(str(error), where="envbuild convert", todo="see envbuild convert --help") from error
    with Progress() as progress:
        name, data, _ = import_record(record, progress, options, model)
        data = data if golden is None else _with_golden(data, name, golden)
    if out is None:
        typer.echo(data, nl=False)
        return
    if name == out or (Path(out).exists() and Path(name).exists() and Path(out).samefile(name)):
        raise UsageError("--out is the record itself", where=f"--out {out}", todo="give the manifest a file of its own")
    write_out(out, data.decode())
    typer.echo(out)


def _with_golden(data: bytes, name: str, path: str) -> bytes:
    """Add a golden sample to a manifest; UsageError where it has one, and for a file without a sample."""
    from envbuild.capture.golden import golden_facts
    from envbuild.manifest.importers.environment import manifest_bytes
    from envbuild.manifest.reader import read_manifest

    facts = json.loads(data)
    if facts.get("golden"):
        raise UsageError("the record has a golden sample", where=f"--golden {path}", todo="leave the option out")
    try:
        facts["golden"] = golden_facts(path)
    except ValueError as error:
        raise UsageError(str(error), where=f"--golden {path}", todo="see docs/golden.md, which makes one") from error
    return manifest_bytes(read_manifest(json.dumps(facts).encode(), name))
