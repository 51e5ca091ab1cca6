"""`envbuild convert`: another tool's record as a manifest."""

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import records
from envbuild.cli.console import Progress


def run(
    record: Annotated[
        str, typer.Argument(help="A file or folder, - for stdin, or gs://bucket/object.", metavar="RECORD")
    ],
    kind: records.From = None,
    python: records.Python = None,
    gpu: records.Gpu = None,
    platform: records.Platform = None,
    model: Annotated[str | None, typer.Option(help="Where the trained model lies.", metavar="URI")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the manifest here, not to stdout.", metavar="FILE", dir_okay=False)
    ] = None,
) -> None:
    """Make a manifest of another tool's record.

    Reads what pip freeze, pip inspect, conda list --json and conda env export print, requirements.txt,
    pylock.toml, uv.lock, environment.yml, MLflow model folders, and the folder `files` of a W&B run. What
    such a record does not say is told, and stays unknown unless an option says it.
    """
    from envbuild.files import write_whole
    from envbuild.manifest.formats import Given

    given = Given(python=python, gpu=gpu, platform=platform, model=model)
    with Progress() as progress:
        _, data = records.read_record(record, kind, given, progress)
    if out is None:
        typer.echo(data, nl=False)
    else:
        write_whole(out, data)
        typer.echo(str(out))
