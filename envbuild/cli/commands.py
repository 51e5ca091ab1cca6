"""All commands, their examples, and how the program ends: exit codes, and the form of an error."""

import errno
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final

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
from envbuild.cli.command import App, Command, RunCommand, examples, load_configuration
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


EXIT_CODES: Final = {
    0: "Done",
    _NO_READER: "The reader of stdout or stderr has ended",
    **{it.exit_code: re.split(r"[;.\n]", it.__doc__ or "")[0] for it in EnvbuildError.__subclasses__()},
    INTERRUPTED: "Interrupted",
}
app = App(
    name="envbuild",
    help="From a finished training run to a pushed image and a stamped model.",
    epilog="\n".join(["\b", "Exit codes:", *(f"  {code:<4} {text}" for code, text in sorted(EXIT_CODES.items()))]),
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


_COMMANDS: Final[dict[str, tuple[Any, ...]]] = {
    "capture": (
        capture.run,
        "envbuild capture --out manifest.json --model gs://acme/churn/7 --command 'python train.py'",
        "envbuild capture --python ./venv/bin/python --out manifest.json",
        "envbuild capture --script > envbuild_capture.py",
    ),
    "config": (config.run, "envbuild config", "envbuild config --schema > envbuild.schema.json"),
    "convert": (
        convert.run,
        "pip freeze | envbuild convert - --python 3.11.9 --gpu none --out manifest.json",
        "envbuild convert mlruns/0/abc/artifacts/model --out manifest.json",
    ),
    "deploy-check": (
        deploy_check.run,
        "envbuild deploy-check gs://acme/churn/7 europe-docker.pkg.dev/acme/ml/churn:serve",
    ),
    "diff": (diff.run, "envbuild diff churn:6 churn:7 --files", "envbuild diff manifest.json host"),
    "doctor": (doctor.run, "envbuild doctor", "envbuild doctor gs://acme/churn/7"),
    "eject": (eject.run, "envbuild eject ci/templates"),
    "from-manifest": (
        from_manifest.run,
        "envbuild from-manifest manifest.json --dry-run",
        "envbuild from-manifest manifest.json --push europe-docker.pkg.dev/acme/ml/churn --stamp gs://acme/churn/7",
        "envbuild from-manifest requirements.txt --python 3.11.9 --gpu none --archive image.tar",
        "envbuild from-manifest manifest.json --push ... --builder cloudbuild --cloudbuild region=europe-west1",
    ),
    "inspect": (inspect.run, "envbuild inspect gs://acme/churn/7", "envbuild inspect ./model --history --json"),
    "local": (
        local.run,
        "envbuild local gs://acme/churn/7",
        "envbuild local gs://acme/churn/7 --data gs://acme/data=./data -- python evaluate.py",
        "envbuild local manifest.json --venv .venv --jupyter",
    ),
    "lock": (
        lock.run,
        "envbuild lock manifest.json --out locked",
        "envbuild lock manifest.json --extra 'fastapi==0.115.0' --download wheels",
    ),
    "rebase": (
        rebase.run,
        "envbuild rebase europe-docker.pkg.dev/acme/ml/churn:7 --base python:3.11-slim --push ...",
    ),
    "schema": (schema.run, "envbuild schema > manifest.schema.json"),
    "serve": (
        serve.run,
        "envbuild serve gs://acme/churn/7 --server fastapi --push europe-docker.pkg.dev/acme/ml/churn-serve",
        'envbuild serve ./model --app app --cmd "python /app/serve.py" --load churn:serve',
        "envbuild serve gs://acme/churn/7 --server tf-serving --server-version 2.15.1",
    ),
    "verify": (
        verify.run,
        "envbuild verify gs://acme/churn/7",
        "envbuild verify gs://acme/churn/7 europe-docker.pkg.dev/acme/ml/churn-serve:7 --golden --run",
        "envbuild verify manifest.json host --python ./venv/bin/python",
        "envbuild verify churn:7 --lock pylock.toml --deep",
    ),
}
"""The function of each command, and its examples."""
for _name, (_command, *_examples) in _COMMANDS.items():
    _class = RunCommand if _name in ("capture", "local") else Command
    _metavar = {"options_metavar": "[OPTIONS] [-- COMMAND...]"} if _name == "capture" else {}
    app.command(_name, cls=_class, epilog=examples(*_examples), **_metavar)(_command)
app.add_typer(base.app, name="base")
app.add_typer(cache.app, name="cache")
app.add_typer(profiles.app, name="profiles")


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
        what, todo = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), "check the path"))
        where = next((str(name) for name in (error.filename2, error.filename) if name), "")
        if error.errno in _UNWRITABLE and _in_cache(where):
            what, todo = f"the cache cannot be written: {what}", _SET_CACHE
        return _failed(BuildError(what, where=where, todo=todo))
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


def _in_cache(where: str) -> bool:
    """Whether a path is in the cache, or is a missing folder above it."""
    from envbuild.files import cache_folder

    try:
        path, cache = Path(where), cache_folder()
        return path.is_relative_to(cache) or (cache.is_relative_to(path) and not path.exists())
    except (EnvbuildError, OSError):
        return False
