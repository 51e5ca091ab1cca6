"""All commands, their examples, and how the program ends: exit codes, and the form of an error."""

import errno
import os
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
    serve,
    verify,
)
from envbuild.cli.command import App, RunCommand, examples, load_configuration
from envbuild.cli.console import err, printable
from envbuild.cli.summary import annotate_error
from envbuild.errors import BuildError, EnvbuildError

_NO_READER: Final = 1
"""The exit code where the reader of stdout has ended."""
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
"""Messages and remedies where the operating system's own message is too short."""

_UNWRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR})
"""The errors of files that this user cannot write; ENOENT is that of /proc and the like."""
_SET_CACHE: Final = (
    "set ENVBUILD_CACHE to a folder that this user may write; a read-only one works only if nothing is missing"
)


def _exit_codes() -> Iterator[tuple[int, str]]:
    yield 0, "Done"
    yield _NO_READER, "The reader of stdout or stderr has ended"
    for kind in EnvbuildError.__subclasses__():
        yield kind.exit_code, (kind.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
    yield INTERRUPTED, "Interrupted"


app = App(
    name="envbuild",
    help="From a finished training run to a pushed image and a stamped model.",
    epilog="\n".join(["\b", "Exit codes:", *(f"  {code:<4} {text}" for code, text in sorted(_exit_codes()))]),
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
    ctx: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback prints
        bool, typer.Option("--version", help="Print the version.", callback=lambda v: _version(wanted=v), is_eager=True)
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", help="Read this configuration, not the nearest envbuild.toml; none if empty.", metavar="FILE"
        ),
    ] = None,
) -> None:
    load_configuration(ctx, os.environ.get("ENVBUILD_CONFIG") if config is None else config)


app.add_typer(base.app, name="base")
app.add_typer(cache.app, name="cache")
app.command(
    "capture",
    cls=RunCommand,
    options_metavar="[OPTIONS] [-- COMMAND...]",
    epilog=examples(
        "envbuild capture --out manifest.json --model gs://acme/churn/7 -- python train.py",
        "envbuild capture --python ./venv/bin/python --out manifest.json",
        "envbuild capture --script > envbuild_capture.py",
    ),
)(capture.run)
app.command("config", epilog=examples("envbuild config", "envbuild config --schema > envbuild.schema.json"))(config.run)
app.command(
    "convert",
    epilog=examples(
        "pip freeze | envbuild convert - --python 3.11.9 --gpu none --out manifest.json",
        "envbuild convert mlruns/0/abc/artifacts/model --out manifest.json",
    ),
)(convert.run)
app.command(
    "deploy-check",
    epilog=examples("envbuild deploy-check gs://acme/churn/7 europe-docker.pkg.dev/acme/ml/churn:serve"),
)(deploy_check.run)
app.command("diff", epilog=examples("envbuild diff churn:6 churn:7 --files", "envbuild diff manifest.json host"))(
    diff.run
)
app.command("doctor", epilog=examples("envbuild doctor", "envbuild doctor gs://acme/churn/7"))(doctor.run)
app.command("eject", epilog=examples("envbuild eject ci/templates"))(eject.run)
app.command(
    "from-manifest",
    epilog=examples(
        "envbuild from-manifest manifest.json --dry-run",
        "envbuild from-manifest manifest.json --push europe-docker.pkg.dev/acme/ml/churn --stamp gs://acme/churn/7",
        "envbuild from-manifest requirements.txt --python 3.11.9 --gpu none --archive image.tar",
        "envbuild from-manifest manifest.json --push ... --builder cloudbuild --cloudbuild region=europe-west1",
    ),
)(from_manifest.run)
app.command(
    "inspect",
    epilog=examples("envbuild inspect gs://acme/churn/7", "envbuild inspect ./model --history --json"),
)(inspect.run)
app.command(
    "local",
    cls=RunCommand,
    epilog=examples(
        "envbuild local gs://acme/churn/7",
        "envbuild local gs://acme/churn/7 --data gs://acme/data=./data -- python evaluate.py",
        "envbuild local manifest.json --venv .venv --jupyter",
    ),
)(local.run)
app.command(
    "lock",
    epilog=examples(
        "envbuild lock manifest.json --out locked",
        "envbuild lock manifest.json --extra 'fastapi==0.115.0' --download wheels",
    ),
)(lock.run)
app.add_typer(profiles.app, name="profiles")
app.command(
    "rebase",
    epilog=examples("envbuild rebase europe-docker.pkg.dev/acme/ml/churn:7 --base python:3.11-slim --push ..."),
)(rebase.run)
app.command("schema", epilog=examples("envbuild schema > manifest.schema.json"))(schema.run)
app.command(
    "serve",
    epilog=examples(
        "envbuild serve gs://acme/churn/7 --server fastapi --push europe-docker.pkg.dev/acme/ml/churn-serve",
        'envbuild serve ./model --app app --cmd "python /app/serve.py" --load churn:serve',
        "envbuild serve gs://acme/churn/7 --server tf-serving --server-version 2.15.1",
    ),
)(serve.run)
app.command(
    "verify",
    epilog=examples(
        "envbuild verify gs://acme/churn/7",
        "envbuild verify gs://acme/churn/7 europe-docker.pkg.dev/acme/ml/churn-serve:7 --golden --run",
        "envbuild verify manifest.json host --python ./venv/bin/python",
        "envbuild verify churn:7 --lock pylock.toml --deep",
    ),
)(verify.run)


def run(arguments: list[str]) -> int:
    """Run one command; every error that the outside can cause becomes a message on stderr and an exit code."""
    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except EnvbuildError as error:
        return _failed(error)
    except BrokenPipeError:
        return _NO_READER
    except OSError as error:
        return _failed(_machine_error(error))
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        todo = "raise the limit: ulimit -u, or the container's number of processes (pids)"
        return _failed(BuildError("no more threads can be started", todo=todo))


def _invoke(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="envbuild", standalone_mode=False) or 0
    except typer.TyperException as error:
        error.message = printable(error.message)  # it quotes the command line
        error.show()  # type: ignore[attr-defined]
        code = error.exit_code
    if code == INTERRUPTED:  # Typer's code for KeyboardInterrupt
        return _interrupted()
    if sys.stdout is not None:
        sys.stdout.flush()  # while an error can still be reported
    return int(code)


def _interrupted() -> int:
    err().print("interrupted")
    return INTERRUPTED


def _failed(error: EnvbuildError) -> int:
    console = err()
    console.print("error: ", style="bold red", end="")
    console.print(printable(str(error)))
    annotate_error(error)
    return error.exit_code


def _machine_error(error: OSError) -> BuildError:
    what, todo = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), "check the path"))
    where = next((str(name) for name in (error.filename2, error.filename) if name), "")
    if error.errno in _UNWRITABLE and _in_cache(where):
        what, todo = f"the cache cannot be written: {what}", _SET_CACHE
    return BuildError(what, where=where, todo=todo)


def _in_cache(where: str) -> bool:
    """Whether a path is in the cache, or is a missing folder above it."""
    from envbuild.files import cache_folder

    try:
        path, cache = Path(where), cache_folder()
        return path.is_relative_to(cache) or (cache.is_relative_to(path) and not path.exists())
    except (EnvbuildError, OSError):
        return False
