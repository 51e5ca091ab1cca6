"""`envbuild capture`: the manifest of a Python environment."""

import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from envbuild.cli.configured import on_line
from envbuild.cli.printed import check_stdout
from envbuild.errors import UsageError

COMMAND = "envbuild.command"
"""Where the words after `--` are kept."""


class WithCommand(TyperCommand):
    """Keeps the words after `--` apart: they are the run's command, and nothing else may stand without an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before `--`."""
        if "--" in args:
            ctx.meta[COMMAND] = args[args.index("--") + 1 :]
            args = args[: args.index("--")]
        return super().parse_args(ctx, args)


def _many(metavar: str, text: str) -> Any:
    return typer.Option(help=f"{text}; may be repeated.", metavar=metavar)


def run(
    ctx: typer.Context,
    *,
    out: Annotated[
        str | None, typer.Option(help="Write the manifest here, also gs://..., not to stdout.", metavar="FILE")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Where the trained model lies: gs://..., a folder or a file.", metavar="URI")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Capture by this interpreter, not envbuild's own.", metavar="PATH")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Capture in a container of this image; --python is then in it.", metavar="REF")
    ] = None,
    variable: Annotated[list[str] | None, _many("NAME", "Also record this environment variable")] = None,
    requires: Annotated[list[str] | None, _many("NAME", "A variable that the program depends on")] = None,
    data: Annotated[list[str] | None, _many("[NAME=]URI", "A place that the program reads data from")] = None,
    preprocessing: Annotated[list[str] | None, _many("PATH", "Code that serving has to share")] = None,
    load: Annotated[
        list[str] | None, _many("MODULE", "Import this first, so that the libraries it loads are recorded")
    ] = None,
    golden: Annotated[
        str | None, typer.Option(help="A batch of inputs and what the model made of them.", metavar="FILE.npz")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="The run's command; or give its words after --.", metavar="TEXT")
    ] = None,
    config: Annotated[str | None, typer.Option(help="Read these options from a file too.", metavar="FILE")] = None,
    patch: Annotated[bool, typer.Option("--patch", help="Record uncommitted changes, secrets cut out.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hash every installed file, not only those that look changed.")
    ] = False,
    as_script: Annotated[
        bool, typer.Option("--script", help="Print capture as one file that runs anywhere, and stop.")
    ] = False,
) -> None:
    """Record what a Python environment is.

    Distributions and their origins, interpreter, framework, GPU, CPU, code; the model, data and what the program
    depends on. Without --out the manifest goes to stdout, else its path does.
    """
    from envbuild.capture import script

    check_stdout(wanted=out is None)
    if as_script:
        _check_alone(ctx)
        typer.echo(script(), nl=False)
        return
    if out and Path(out).is_dir():
        raise typer.BadParameter(f"{out} is a folder", param_hint="--out")
    given = {
        "variable": variable or [], "requires": requires or [], "data": data or [], "load": load or [],
        "preprocessing": preprocessing or [], "model": model, "golden": golden, "command": command, "config": config,
        "patch": patch, "deep": deep,
    }  # fmt: skip
    typer.echo(_captured(given, ctx.meta.get(COMMAND), out, python, image), nl=False)
    _end()


def _check_alone(ctx: typer.Context) -> None:
    """Refuse what --script would ignore."""
    others = [f"--{name}" for name in ctx.params if name != "as_script" and on_line(ctx, name)]
    if others or COMMAND in ctx.meta:
        what = f"--script prints the file alone, and {', '.join(others) or 'a command'} would be ignored"
        raise UsageError(what, where="envbuild capture", todo="print the file, and give it the options when it runs")


def _captured(
    given: dict[str, Any], command: list[str] | None, out: str | None, python: str | None, image: str | None
) -> str:
    """Capture in one of the three ways; return what belongs on stdout."""
    from envbuild.capture.options import check_options, merge_options
    from envbuild.capture.record import capture
    from envbuild.cli.elsewhere import captured_elsewhere

    try:
        check_options({"python": python, "image": image})
        options = merge_options(given, command)
        if image is None and python is None:
            manifest = capture(out=out, process="fresh", **options)
        else:
            manifest = captured_elsewhere(options, out, python, image)
    except ValueError as error:
        raise UsageError(str(error), where="envbuild capture", todo="see envbuild capture --help") from error
    from envbuild.capture.files import manifest_text

    return manifest_text(manifest) if out is None else f"{out}\n"


def _end() -> None:
    """End here where a module that --load imported left threads, for which the interpreter would wait for ever."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)
