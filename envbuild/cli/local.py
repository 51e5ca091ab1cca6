"""`envbuild local`: the environment that trained a model, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import capture
from envbuild.cli.grouped import grouped
from envbuild.cli.local_options import Asked, Container, Mode, Needs, Wanted
from envbuild.cli.printed import check_stdout
from envbuild.errors import UsageError

Target = Annotated[
    str,
    typer.Argument(
        help="A stamped model (gs://, a file or folder), a run's manifest, or an image.",
        metavar="TARGET [-- COMMAND...]",
    ),
]


@grouped
def run(ctx: typer.Context, target: Target, *, wanted: Wanted, mode: Mode, needs: Needs, container: Container) -> None:
    """Run a command, a shell or a notebook in the environment that trained a model.

    The stamped image is pulled by digest where this machine can run it; else the variant that it can is pulled, or
    built from the same lock. What will differ is said before anything is downloaded. After -- comes the command, a
    shell without one; its exit code is passed through.
    """
    check_stdout()
    command = tuple(ctx.meta.get(capture.COMMAND) or ())
    asked = Asked(target=target, wanted=wanted, mode=mode, needs=needs, container=container, command=command)
    _check(asked)
    _check_file(ctx, needs)
    _check_here()
    if mode.venv is not None:
        from envbuild.cli.local_venv import run_in_venv

        code = run_in_venv(asked, mode.venv)
    else:
        from envbuild.cli.local_container import run_in_container

        code = run_in_container(asked)
    if code:
        raise typer.Exit(code)


def _check_file(ctx: typer.Context, needs: Needs) -> None:
    """Refuse a project's own word that home or system folders may be mounted."""
    source = ctx.get_parameter_source("data")
    if source is not None and source.name == "DEFAULT_MAP":
        for text in needs.data or ():
            if text.endswith(",unsafe"):
                todo = "give it on the command line, as a project's file comes with the project"
                raise UsageError("a configuration file cannot allow this", where=f"--data {text}", todo=todo)


def _check_here() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        todo = "change into a folder that is there: it is what the command works in"
        raise UsageError("the current folder has been removed", where="the current folder", todo=todo) from error


def _check(asked: Asked) -> None:
    """Refuse what does not go together, before anything is read."""
    mode, container = asked.mode, asked.container
    ends = {
        "--jupyter": mode.jupyter,
        "--golden": mode.golden,
        "--devcontainer": mode.devcontainer,
        "--compose": mode.compose,
        "a command": bool(asked.command),
    }
    chosen = [name for name, given in ends.items() if given]
    if len(chosen) > 1 and chosen != ["--devcontainer", "--compose"]:
        raise UsageError("these do not go together", where=", ".join(chosen), todo="leave all but one of them out")
    for_containers = {
        "--devcontainer": mode.devcontainer,
        "--compose": mode.compose,
        "--shm-size": container.shm_size,
        "--gpus": container.gpus,
        "--base": asked.wanted.base,
        "--port": container.port,
    }
    useless = [name for name, given in for_containers.items() if given and mode.venv]
    if useless:
        todo = "leave them out, or --venv"
        raise UsageError("these are for containers", where=f"--venv, {', '.join(useless)}", todo=todo)
    if mode.as_json and not (mode.dry_run or mode.golden):
        raise UsageError("stdout belongs to what is run", where="--json", todo="give --dry-run or --golden too")
