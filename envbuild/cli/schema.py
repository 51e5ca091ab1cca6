"""`envbuild schema`: the JSON schema of the training manifest."""

from importlib import resources

import typer

from envbuild.cli.printed import check_stdout


def run() -> None:
    """Print the JSON schema of the manifest."""
    check_stdout()
    typer.echo(resources.files("envbuild.manifest").joinpath("schema.json").read_text("utf-8"), nl=False)
