"""The command line: one file per command, and what they share - exit codes, signals, and how an error looks.

A command's file imports at its top only what `--help` needs; the stages, and their clients, are imported inside `run`.
"""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from envbuild.cli import base, cache, capture, convert, from_manifest, lock, profiles, rebase, schema, verify
from envbuild.cli.console import err, printable
from envbuild.errors import BuildError, EnvbuildError

INTERRUPTED: Final = 130

_OS_ERRORS: Final = {
    errno.ENOSPC: (
        "no space is left on the device",
        "free some space where it writes: --out, the cache (ENVBUILD_CACHE) or the temporary folder (TMPDIR)",
    ),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or set ENVBUILD_CACHE and TMPDIR to another disk"),
    errno.EACCES: ("permission denied", "choose a path that this user may read and write"),
    errno.EPERM: ("operation not permitted", "choose a path that this user may read and write"),
    errno.EROFS: ("the file system is read-only", "choose a path that can be written"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n 4096"),
}
"""What went wrong and what to do, where the operating system's own words say too little."""


def _exit_codes() -> Iterator[tuple[int, str]]:
    yield 0, "Done"
    for kind in EnvbuildError.__subclasses__():
        yield kind.exit_code, (kind.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
    yield INTERRUPTED, "Interrupted"


def _epilog() -> str:
    r"""List the exit codes; `\b` keeps the lines apart."""
    return "\n".join(["\b", "Exit codes:"] + [f"  {code:<4} {text}" for code, text in sorted(_exit_codes())])


app = typer.Typer(
    name="envbuild",
    help="From a finished training run to a pushed image and a stamped model.",
    epilog=_epilog(),
    no_args_is_help=True,
    rich_markup_mode=None,  # help and usage errors as plain text, which is also what the README shows
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(*, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"envbuild {version('envbuild')}")
        except PackageNotFoundError:
            typer.echo("envbuild, from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=lambda v: _version(wanted=v), is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(base.app, name="base")
app.add_typer(cache.app, name="cache")
app.command("capture", cls=capture.WithCommand, options_metavar="[OPTIONS] [-- COMMAND...]")(capture.run)
app.command("convert")(convert.run)
app.command("from-manifest")(from_manifest.run)
app.command("lock")(lock.run)
app.add_typer(profiles.app, name="profiles")
app.command("rebase")(rebase.run)
app.command("schema")(schema.run)
app.command("verify")(verify.run)


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup sees to
        signal.signal(signal.SIGHUP, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; every error that the outside can cause becomes a message on stderr and an exit code."""
    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except EnvbuildError as error:
        return _failed(error)
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        return _failed(_of_the_machine(error))


def _invoke(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="envbuild")
    except SystemExit as done:  # typer exits by itself, with 130 for KeyboardInterrupt
        code = done.code if isinstance(done.code, int) else 1
        if code == INTERRUPTED:
            return _interrupted()
        _flush_stdout()
        return code
    return 0


def _flush_stdout() -> None:
    """Flush where an error of the pipe or disk behind stdout can still be told; the interpreter must not try again."""
    if sys.stdout is None:  # closed by whoever started this
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind as Ctrl-C does, so that temporary files vanish."""
    raise KeyboardInterrupt


def _interrupted() -> int:
    err().print("interrupted")
    return INTERRUPTED


def _failed(error: EnvbuildError) -> int:
    console = err()
    console.print("error: ", style="bold red", end="")
    console.print(printable(str(error)))
    return error.exit_code


def _unread() -> int:
    """Stop quietly when whoever read our stdout has gone; the interpreter must not try to flush it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _of_the_machine(error: OSError) -> BuildError:
    what, todo = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), "see whether the path is right"))
    where = next((str(name) for name in (error.filename2, error.filename) if name), "")
    return BuildError(what, where=where, todo=todo)
