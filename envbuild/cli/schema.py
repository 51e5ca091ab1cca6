"""`envbuild schema`: the JSON schemas of the training manifest and of the record on a model."""

from importlib import resources
from typing import Annotated

import typer

from envbuild.cli.printed import check_stdout

Record = Annotated[bool, typer.Option("--record", help="Of the record that a model is stamped with, instead.")]


def run(*, record: Record = False) -> None:
    """Print the JSON schema of the manifest, or of a stamp's record."""
    check_stdout()
    package = "envbuild.stamp" if record else "envbuild.manifest"
    typer.echo(resources.files(package).joinpath("schema.json").read_text("utf-8"), nl=False)
