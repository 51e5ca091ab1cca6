"""`envbuild capture`: the manifest of a Python environment."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from envbuild.errors import ManifestError, UsageError


def run(
    out: Annotated[
        Path | None, typer.Option(help="Write the manifest here, not to stdout.", metavar="FILE", dir_okay=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Where the trained model lies: gs://..., or a folder.", metavar="URI")
    ] = None,
    variable: Annotated[
        list[str] | None, typer.Option(help="Also record this environment variable; may be repeated.", metavar="NAME")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Capture this interpreter's environment, not envbuild's own.", metavar="PATH")
    ] = None,
    *,
    as_script: Annotated[
        bool, typer.Option("--script", help="Print capture as one file that runs anywhere, and stop.")
    ] = False,
) -> None:
    """Record what a Python environment is.

    Distributions and their origins, interpreter, framework, GPU, CPU, code. Without --out the manifest
    goes to stdout, else its path does.
    """
    if as_script:
        from envbuild.capture import script

        typer.echo(script(), nl=False)
        return
    variables = tuple(variable or ())
    if python is not None:
        typer.echo(_elsewhere(python, out, model, variables), nl=False)
        return
    from envbuild.capture import capture

    manifest = capture(model_uri=model, out=out, variables=variables)
    typer.echo(json.dumps(manifest, indent=2, sort_keys=True) if out is None else str(out))


def _elsewhere(python: str, out: Path | None, model: str | None, variables: tuple[str, ...]) -> str:
    """Run the one file of `envbuild.capture` by another interpreter; return what belongs on stdout."""
    from envbuild.capture import script

    options = ["--out", str(out)] if out else []
    options += ["--model", model] if model else []
    options += [part for name in variables for part in ("--variable", name)]
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        path = Path(folder) / "capture.py"
        path.write_text(script(), encoding="utf-8")
        done = _run_python(python, str(path), *options)
    if done.returncode != 0:
        raise ManifestError(
            f"the interpreter could not capture its environment (exit code {done.returncode})",
            where=f"--python {python}",
            todo="its own message is above; Python has to be 3.7 or later",
        )
    if not (out.is_file() if out else done.stdout.startswith("{")):
        todo = "give the path of the interpreter that trained the model, such as ./venv/bin/python"
        raise UsageError("this program captured nothing: it is no Python", where=f"--python {python}", todo=todo)
    return done.stdout if out is None else f"{out}\n"


def _run_python(python: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run([python, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise UsageError(
            f"this interpreter cannot be run: {error.strerror}",
            where=f"--python {python}",
            todo="give the path of the interpreter that trained the model, such as ./venv/bin/python",
        ) from error
