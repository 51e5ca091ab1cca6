"""`envbuild local`: the environment that trained a model, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.command import WORDS, grouped
from envbuild.cli.local_plan import LocalOptions
from envbuild.errors import UsageError

Target = Annotated[
    str,
    typer.Argument(
        help="A stamped model (gs://, a file or folder), a run's manifest, or an image.",
        metavar="TARGET [-- COMMAND...]",
    ),
]


@grouped()
def run(ctx: typer.Context, target: Target, *, options: LocalOptions) -> None:
    """Run the environment that trained a model on this machine.

    Starts a command, a shell or a notebook. The stamped image is pulled by digest where this machine can run it;
    else another variant is pulled, or built from the same lock. Differences are reported before anything is
    downloaded. After -- comes the command, by default a shell; its exit code is passed through.
    """
    command = tuple(ctx.meta.get(WORDS) or ())
    _check(options, command)
    source = ctx.get_parameter_source("data")
    if source is not None and source.name == "DEFAULT_MAP":
        for text in options.data or ():
            if text.endswith(",unsafe"):
                todo = "give it on the command line: a project's file comes with the project"
                raise UsageError("a configuration file cannot allow this", where=f"--data {text}", todo=todo)
    try:
        Path.cwd()
    except FileNotFoundError as error:
        todo = "change into a folder that exists: the command works in it"
        raise UsageError("the current folder has been removed", where="the current folder", todo=todo) from error
    if options.venv is not None:
        from envbuild.cli.local_run import run_in_venv

        code = run_in_venv(target, command, options, options.venv)
    else:
        from envbuild.cli.local_run import run_in_container

        code = run_in_container(target, command, options)
    if code:
        raise typer.Exit(code)


def _check(options: LocalOptions, command: tuple[str, ...]) -> None:
    """Refuse what does not go together, before anything is read."""
    purposes = {
        "--jupyter": options.jupyter,
        "--golden": options.golden,
        "--devcontainer": options.devcontainer,
        "--compose": options.compose,
        "a command": bool(command),
    }
    chosen = [name for name, given in purposes.items() if given]
    if len(chosen) > 1 and chosen != ["--devcontainer", "--compose"]:
        raise UsageError("these do not go together", where=", ".join(chosen), todo="leave all but one of them out")
    for_containers = {
        "--devcontainer": options.devcontainer,
        "--compose": options.compose,
        "--shm-size": options.shm_size,
        "--gpus": options.gpus,
        "--base": options.base,
        "--port": options.port,
    }
    useless = [name for name, given in for_containers.items() if given and options.venv]
    if useless:
        todo = "leave them out, or --venv"
        raise UsageError("these are for containers", where=f"--venv, {', '.join(useless)}", todo=todo)
    if options.as_json and not (options.dry_run or options.golden):
        what = "stdout belongs to the command that runs"
        raise UsageError(what, where="--json", todo="give --dry-run or --golden too")
