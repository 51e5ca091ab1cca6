"""`envbuild convert`: another tool's record as a manifest."""

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import records
from envbuild.cli.console import Progress
from envbuild.cli.printed import check_stdout
from envbuild.errors import UsageError


def run(
    record: Annotated[
        str, typer.Argument(help="A file or folder, - for stdin, or gs://bucket/object.", metavar="RECORD")
    ],
    kind: records.From = None,
    python: records.Python = None,
    gpu: records.Gpu = None,
    ran_on: records.RanOn = None,
    framework: records.Framework = None,
    model: Annotated[str | None, typer.Option(help="Where the trained model lies.", metavar="URI")] = None,
    out: Annotated[
        str | None, typer.Option(help="Write the manifest here, also gs://..., not to stdout.", metavar="FILE")
    ] = None,
) -> None:
    """Make a manifest of another tool's record.

    Reads what pip freeze, pip list, pip inspect, conda list and conda env export print, requirements.txt,
    pylock.toml, environment.yml, the locks of uv, Poetry, PDM, Pipenv, pixi and conda-lock, MLflow model
    folders, and the folder `files` of a W&B run. What such a record does not say is told, and stays unknown
    unless an option says it.
    """
    from envbuild.capture.output import write_out
    from envbuild.manifest.importers.environment import RecordOptions

    _check(out)
    given = RecordOptions(python=python, gpu=gpu, platform=ran_on, model=model, framework=framework and framework.value)
    with Progress() as progress:
        name, data = records.read_record(record, kind, given, progress)
    if out is None:
        typer.echo(data, nl=False)
        return
    if name == out or (Path(out).exists() and Path(name).exists() and Path(out).samefile(name)):
        raise UsageError("this is the record itself", where=f"--out {out}", todo="give the manifest a file of its own")
    write_out(out, data.decode())
    typer.echo(out)


def _check(out: str | None) -> None:
    """Refuse where the manifest cannot go, before anything is read."""
    from envbuild.capture.output import check_out

    check_stdout(wanted=out is None)
    try:
        check_out(out)
    except ValueError as error:
        raise UsageError(str(error), where="envbuild convert", todo="see envbuild convert --help") from error
