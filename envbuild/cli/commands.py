"""All commands, and what they share: exit codes, and how an error looks."""

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuild.cli import (
    INTERRUPTED,
    base,
    cache,
    capture,
    config,
    convert,
    deploy_check,
    diff,
    doctor,
    eject,
    from_manifest,
    inspect,
    local,
    lock,
    profiles,
    rebase,
    schema,
    verify,
)
from envbuild.cli.configured import Configured
from envbuild.cli.console import err, printable
from envbuild.cli.github import tell_error
from envbuild.errors import BuildError, EnvbuildError

_GONE: Final = 1
"""The exit code of what nobody reads any longer."""
_OS_ERRORS: Final = {
    errno.ENOSPC: (
        "no space is left on the device",
        "free some space where it writes: standard output, --out, the cache (ENVBUILD_CACHE), temporary files (TMPDIR)",
    ),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or set ENVBUILD_CACHE and TMPDIR to another disk"),
    errno.EACCES: ("permission denied", "choose a path that this user may read and write"),
    errno.EPERM: ("operation not permitted", "choose a path that this user may read and write"),
    errno.EROFS: ("the file system is read-only", "choose a path that can be written"),
    errno.ENOMEM: ("there is not enough memory", "free some, or raise the limit: ulimit -v, or the container's"),
    errno.EFBIG: ("a file would be larger than it may be", "raise the limit: ulimit -f unlimited"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n 4096"),
}
"""What went wrong and what to do, where the operating system's own words say too little."""

_SHUT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR})
"""What making or writing a file ends with where this user cannot; ENOENT is that of /proc and the like."""
_ANOTHER_CACHE: Final = (
    "set ENVBUILD_CACHE to a folder that this user may write; one that cannot be written serves only where all is in it"
)


def _exit_codes() -> Iterator[tuple[int, str]]:
    yield 0, "Done"
    yield _GONE, "Whoever read stdout or stderr has gone"
    for kind in EnvbuildError.__subclasses__():
        yield kind.exit_code, (kind.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
    yield INTERRUPTED, "Interrupted"


def _epilog() -> str:
    r"""List the exit codes; `\b` keeps the lines apart."""
    return "\n".join(["\b", "Exit codes:"] + [f"  {code:<4} {text}" for code, text in sorted(_exit_codes())])


app = typer.Typer(
    name="envbuild",
    cls=Configured,
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
    config: Annotated[
        str | None,
        typer.Option(
            "--config", help="Read this configuration, not the nearest envbuild.toml; none if empty.", metavar="FILE"
        ),
    ] = None,
) -> None:
    pass


app.add_typer(base.app, name="base")
app.add_typer(cache.app, name="cache")
app.command("capture", cls=capture.WithCommand, options_metavar="[OPTIONS] [-- COMMAND...]")(capture.run)
app.command("config")(config.run)
app.command("convert")(convert.run)
app.command("deploy-check")(deploy_check.run)
app.command("eject")(eject.run)
app.command("diff")(diff.run)
app.command("doctor")(doctor.run)
app.command("inspect")(inspect.run)
app.command("from-manifest")(from_manifest.run)
app.command("local", cls=capture.WithCommand)(local.run)
app.command("lock")(lock.run)
app.add_typer(profiles.app, name="profiles")
app.command("rebase")(rebase.run)
app.command("schema")(schema.run)
app.command("verify")(verify.run)


def run(arguments: list[str]) -> int:
    """Run one command; every error that the outside can cause becomes a message on stderr and an exit code."""
    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except EnvbuildError as error:
        return _failed(error)
    except BrokenPipeError:
        return _GONE  # quietly, as nobody listens
    except OSError as error:
        return _failed(_of_the_machine(error))
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        todo = "raise the limit: ulimit -u, or the container's number of processes (pids)"
        return _failed(BuildError("no more threads can be started", todo=todo))


def _invoke(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="envbuild")
    except SystemExit as done:  # typer exits by itself, with 130 for KeyboardInterrupt
        code = done.code if isinstance(done.code, int) else 1
        if code == INTERRUPTED:
            return _interrupted()
        if sys.stdout is not None:  # closed by whoever started this
            sys.stdout.flush()  # while a fault can still be told
        return code
    return 0


def _interrupted() -> int:
    err().print("interrupted")
    return INTERRUPTED


def _failed(error: EnvbuildError) -> int:
    console = err()
    console.print("error: ", style="bold red", end="")
    console.print(printable(str(error)))
    tell_error(error)
    return error.exit_code


def _of_the_machine(error: OSError) -> BuildError:
    what, todo = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), "see whether the path is right"))
    where = next((str(name) for name in (error.filename2, error.filename) if name), "")
    if error.errno in _SHUT and _in_cache(where):
        what, todo = f"the cache cannot be written: {what}", _ANOTHER_CACHE
    return BuildError(what, where=where, todo=todo)


def _in_cache(where: str) -> bool:
    """Whether it lies in the cache, or is a folder that the cache would lie in if it could be made."""
    from envbuild.files import cache_folder

    try:
        path, cache = Path(where), cache_folder()
        return path.is_relative_to(cache) or (cache.is_relative_to(path) and not path.exists())
    except (EnvbuildError, OSError):
        return False
