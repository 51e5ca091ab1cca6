"""`envbuild schema`: the JSON schemas of the training manifest and of the record on a model."""

import typer

from envbuild.cli.command import WHAT, flag, grouped


@grouped()
def run(*, record: bool = flag(WHAT, "Print the schema of a stamp record instead.")) -> None:
    """Print the JSON schema of manifests or stamp records."""
    from importlib import resources

    package = "envbuild.stamp" if record else "envbuild.manifest"
    typer.echo(resources.files(package).joinpath("schema.json").read_text("utf-8"), nl=False)
