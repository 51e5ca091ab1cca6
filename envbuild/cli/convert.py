"""`envbuild convert`: another tool's record as a manifest."""

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
    if out is None:
        typer.echo(data, nl=False)
        return
    if name == out or (Path(out).exists() and Path(name).exists() and Path(out).samefile(name)):
        raise UsageError("--out is the record itself", where=f"--out {out}", todo="give the manifest a file of its own")
    write_out(out, data.decode())
    typer.echo(out)
