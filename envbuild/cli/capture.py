"""`envbuild capture`: the manifest of a Python environment."""

import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.command import WORDS, advanced_option, grouped, how_option, on_line, what_option, where_option
from envbuild.cli.console import check_stdout
from envbuild.errors import UsageError


@dataclass(kw_only=True, repr=False, eq=False)
class CaptureOptions:
    """The options of `envbuild capture`."""

    out: Annotated[
        str | None, where_option(help="Write the manifest here, also gs://..., not to stdout.", metavar="FILE")
    ] = None
    model: Annotated[
        str | None, what_option(help="Where the trained model is: gs://..., a folder or a file.", metavar="URI")
    ] = None
    python: Annotated[
        str | None, how_option(help="Capture by this interpreter, not envbuild's own.", metavar="PATH")
    ] = None
    image: Annotated[
        str | None, how_option(help="Capture in a container of this image; --python is then in it.", metavar="REF")
    ] = None
    variable: Annotated[
        list[str] | None, what_option(help="Also record this environment variable; repeatable.", metavar="NAME")
    ] = None
    requires: Annotated[
        list[str] | None, what_option(help="A variable that the program depends on; repeatable.", metavar="NAME")
    ] = None
    data: Annotated[
        list[str] | None,
        what_option(help="A place that the program reads data from; repeatable.", metavar="[NAME=]URI"),
    ] = None
    preprocessing: Annotated[
        list[str] | None, what_option(help="Code that serving has to share; repeatable.", metavar="PATH")
    ] = None
    load: Annotated[
        list[str] | None,
        how_option(help="Import this first, so that its libraries are recorded; repeatable.", metavar="MODULE"),
    ] = None
    golden: Annotated[
        str | None, what_option(help="A batch of inputs and the model's predictions.", metavar="FILE.npz")
    ] = None
    command: Annotated[
        str | None, what_option(help="The run's command; or give its words after --.", metavar="TEXT")
    ] = None
    config: Annotated[str | None, advanced_option(help="Read these options from a file too.", metavar="FILE")] = None
    patch: Annotated[bool, what_option("--patch", help="Record uncommitted changes, without secrets.")] = False
    deep: Annotated[bool, how_option("--deep", help="Hash every installed file, not only those that look changed.")] = (
        False
    )
    as_script: Annotated[
        bool, advanced_option("--script", help="Print capture as one file that runs anywhere, and stop.")
    ] = False


@grouped()
def run(ctx: typer.Context, *, options: CaptureOptions) -> None:
    """Record a Python environment.

    Distributions and their origins, interpreter, framework, GPU, CPU, code; the model, its data and the variables that
    the program depends on. Prints the manifest, or with --out its path.
    """
    from envbuild.capture import script

    out = options.out
    check_stdout(wanted=out is None)
    if options.as_script:
        _check_alone(ctx)
        typer.echo(script(), nl=False)
        return
    if out and Path(out).is_dir():
        raise typer.BadParameter(f"{out} is a folder", param_hint="--out")
    typer.echo(_captured(options, ctx.meta.get(WORDS)), nl=False)
    _end()


def _check_alone(ctx: typer.Context) -> None:
    """Refuse options that --script would ignore."""
    others = [f"--{name}" for name in ctx.params if name != "as_script" and on_line(ctx, name)]
    if others or WORDS in ctx.meta:
        what = f"--script prints the file alone, and {', '.join(others) or 'a command'} would be ignored"
        raise UsageError(what, where="envbuild capture", todo="print the file, and give it the options when it runs")


def _captured(options: CaptureOptions, command: list[str] | None) -> str:
    """Capture here, by another interpreter or in a container; return the text for stdout."""
    from envbuild.capture.program import check_options, merge_options
    from envbuild.capture.record import capture

    out, python, image = options.out, options.python, options.image
    given = asdict(options)
    lists = {name: given[name] or [] for name in ("variable", "requires", "data", "load", "preprocessing")}
    plain = {name: given[name] for name in ("model", "golden", "command", "config", "patch", "deep")}
    try:
        check_options({"python": python, "image": image})
        arguments = merge_options(lists | plain, command)
        if image is None and python is None:
            manifest = capture(out=out, process="fresh", **arguments)
        else:
            from envbuild.cli.interpreter import capture_elsewhere

            manifest = capture_elsewhere(arguments, out, python, image)
    except ValueError as error:
        raise UsageError(str(error), where="envbuild capture", todo="see envbuild capture --help") from error
    from envbuild.capture.files import manifest_text

    return manifest_text(manifest) if out is None else f"{out}\n"


def _end() -> None:
    """Exit where a module of --load left threads, which the interpreter would wait for without end."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)
