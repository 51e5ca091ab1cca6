"""`envbuild schema`: the JSON schemas of the training manifest and of the record on a model."""

from importlib import resources
from typing import Annotated

import typer

from envbuild.cli.command import what_option
from envbuild.cli.console import check_stdout

Record = Annotated[bool, what_option("--record", help="Print the schema of a stamp record instead.")]


def run(*, record: Record = False) -> None:
    """Print the JSON schema of manifests or stamp records."""
    check_stdout()
    package = "envbuild.stamp" if record else "envbuild.manifest"
    typer.echo(resources.files(package).joinpath("schema.json").read_text("utf-8"), nl=False)
