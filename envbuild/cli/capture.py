"""`envbuild capture`: the manifest of a Python environment: this one, another interpreter's, or that of an image."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from envbuild.capture import script
from envbuild.cli.command import ADVANCED, HOW, WHAT, WHERE, WORDS, flag, grouped, on_line, option
from envbuild.cli.console import Progress
from envbuild.errors import EnvbuildError, ManifestError, UsageError

_TODO = "give the path of the interpreter that trained the model, such as ./venv/bin/python"
_OPTIONS_TODO = "see envbuild capture --help; docs/golden.md says what --golden takes"
_OWN_VARIABLES = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables of envbuild's own interpreter, which would mislead another one."""
_OLDEST_PYTHON = (3, 7)
_VERSION = "import sys; print('Python %d.%d' % sys.version_info[:2])"


@dataclass(kw_only=True, repr=False, eq=False)
class CaptureOptions:
    """The options of `envbuild capture`."""

    out: str | None = option(WHERE, "Write the manifest here, also gs://..., not to stdout.", "FILE")
    model: str | None = option(WHAT, "Where the trained model is: gs://..., a folder or a file.", "URI")
    python: str | None = option(HOW, "Capture by this interpreter, not envbuild's own.", "PATH")
    image: str | None = option(HOW, "Capture in a container of this image; --python is then in it.", "REF")
    variable: list[str] | None = option(WHAT, "Also record this environment variable; repeatable.", "NAME")
    requires: list[str] | None = option(WHAT, "A variable that the program depends on; repeatable.", "NAME")
    data: list[str] | None = option(WHAT, "A place that the program reads data from; repeatable.", "[NAME=]URI")
    preprocessing: list[str] | None = option(WHAT, "Code that serving has to share; repeatable.", "PATH")
    load: list[str] | None = option(HOW, "Import this first, so that its libraries are recorded; repeatable.", "MODULE")
    golden: str | None = option(WHAT, "A batch of inputs and the model's predictions.", "FILE.npz")
    command: str | None = option(WHAT, "The run's command: recorded, not run. Or give it after --.", "TEXT")
    config: str | None = option(ADVANCED, "Read these options from a file too.", "FILE")
    patch: bool = flag(WHAT, "Record uncommitted changes, without secrets.")
    deep: bool = flag(HOW, "Hash every installed file, not only those that look changed.")
    as_script: bool = flag(ADVANCED, "Print capture as one file that runs anywhere, and stop.", "--script")


@grouped()
def run(ctx: typer.Context, *, options: CaptureOptions) -> None:
    """Record a Python environment.

    Distributions and their origins, interpreter, framework, GPU, CPU, code; the model, its data and the variables that
    the program depends on. Prints the manifest, or with --out its path.
    """
    out = options.out
    if options.as_script:
        others = [f"--{name}" for name in ctx.params if name != "as_script" and on_line(ctx, name)]
        if others or WORDS in ctx.meta:
            what = f"--script prints the file alone, and {', '.join(others) or 'a command'} would be ignored"
            todo = "print the file, and give it the options when it runs"
            raise UsageError(what, where="envbuild capture", todo=todo)
        typer.echo(script(), nl=False)
        return
    if out and Path(out).is_dir():
        raise typer.BadParameter(f"{out} is a folder", param_hint="--out")
    typer.echo(_captured(options, ctx.meta.get(WORDS)), nl=False)


def _captured(options: CaptureOptions, command: list[str] | None) -> str:
    """Capture by an interpreter, by default envbuild's own, or in a container; return the text for stdout.

    It is a process of its own, so that modules that envbuild imports do not count as the run's.
    """
    from envbuild.capture.files import manifest_text
    from envbuild.capture.program import check_options, merge_options

    out, python, image = options.out, options.python, options.image
    given = asdict(options)
    lists = {name: given[name] or [] for name in ("variable", "requires", "data", "load", "preprocessing")}
    plain = {name: given[name] for name in ("model", "golden", "command", "config", "patch", "deep")}
    try:
        check_options({"python": python, "image": image})
        manifest = capture_elsewhere(merge_options(lists | plain, command), out, python, image)
    except ValueError as error:
        raise UsageError(str(error), where="envbuild capture", todo=_OPTIONS_TODO) from error
    text = manifest_text(manifest)
    if manifest.get("model") and not manifest.get("disagreements"):  # which say it in more detail
        _warn_unloadable(text)
    return text if out is None else f"{out}\n"


def _warn_unloadable(manifest: str) -> None:
    """Warn of all that may keep the captured environment from loading its model."""
    from envbuild.manifest.reader import read_manifest
    from envbuild.verify.reports import report_finding
    from envbuild.verify.rules import loading_faults
    from envbuild.verify.sources import side_of_manifest

    run = read_manifest(manifest.encode(), "envbuild capture")
    with Progress() as report:
        for it in loading_faults(run.model, side_of_manifest(run, "the environment")) if run.model else ():
            report_finding(it, report)


def capture_elsewhere(
    options: dict[str, Any], out: str | None, python: str | None, image: str | None
) -> dict[str, Any]:
    """Capture by `python`, envbuild's own if None, or in `image`; model and data are read here, with the libraries.

    `options` are the arguments of `capture()`; ValueError for wrong ones.
    """
    from envbuild.capture.contract import contract_facts, required_names
    from envbuild.capture.files import manifest_text
    from envbuild.capture.gcs import check_out, write_out
    from envbuild.capture.record import complete, tell_disagreements, tell_unset, tell_unused

    check_out(out)
    arguments = [f"--variable={name}" for name in options["variables"]]
    arguments += [f"--load={name}" for name in options["load"]]
    arguments += [f"--{name}" for name in ("patch", "deep") if options[name]]
    command = options["command"]
    arguments = ["--environment-only", *arguments, *(["--", *command] if command else [])]
    if image is None:
        environment = other_environment(python, arguments)
        contract = contract_facts(options["requires"], options["data"], options["preprocessing"])
        model = options["model_uri"] or os.environ.get("AIP_MODEL_DIR")
    else:
        from envbuild.engine.container import image_environment

        arguments = [f"--requires={name}" for name in required_names(options["requires"])] + arguments
        with Progress() as report:
            environment = image_environment(image, arguments, python=python, report=report)
        contract, model = environment.get("contract"), options["model_uri"]
        if options["data"] or options["preprocessing"]:
            ours = contract_facts((), options["data"], options["preprocessing"]) or {}
            theirs = contract or {}
            contract = {name: theirs.get(name, []) + ours.get(name, []) for name in theirs | ours} or None
    manifest = complete(environment, contract, model, options["golden"])
    if out is not None:
        write_out(out, manifest_text(manifest))
    tell_disagreements(manifest)
    tell_unset(manifest)
    tell_unused(manifest)
    return manifest


def other_environment(python: str | None, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the capture script by `python`, envbuild's own if None, in a process.

    UsageError if that is not Python, ManifestError if it fails.
    """
    import tempfile

    from envbuild.manifest.reader import read_manifest

    where = f"--python {python}" if python else "envbuild capture"
    python = python or sys.executable
    version = _version(python)
    if version is not None and version < _OLDEST_PYTHON:  # it would print a syntax error
        what = "this is Python {}.{}, and capture needs 3.7 or later".format(*version)
        raise UsageError(what, where=where, todo=_TODO)
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        # Its folder becomes the first of sys.path, so it has nothing else.
        path, out = Path(folder, "envbuild_capture.py"), Path(folder, "out", "manifest.json")
        path.write_text(script(), encoding="utf-8")
        try:
            # sitecustomize may print to stdout; only this process reports Ctrl-C.
            code = subprocess.run(
                [python, str(path), "--out", str(out), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__ or subprocess.DEVNULL,
                env=_environment(python),
                start_new_session=True,
                check=False,
            ).returncode
        except OSError as error:
            what = f"this interpreter cannot be run: {error.strerror}"
            raise UsageError(what, where=where, todo=_TODO) from error
        try:
            data = out.read_bytes()  # whole or absent, so a crash at the interpreter's end costs nothing
        except OSError as error:
            raise _failed(where, version, code) from error
    read_manifest(data, where)
    environment: dict[str, Any] = json.loads(data)
    return environment


def _environment(python: str) -> dict[str, str]:
    """Return the environment for `python`, without variables of envbuild's own interpreter."""
    environment = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    own = environment.get("VIRTUAL_ENV")
    if python != sys.executable and own and Path(own).resolve() == Path(sys.prefix).resolve():  # `uv run` sets it
        for name in ("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT"):
            environment.pop(name, None)
    return environment


def _failed(where: str, version: tuple[int, int] | None, code: int) -> EnvbuildError:
    if version is None and code == 0:
        return UsageError("this program captured nothing: it is not Python", where=where, todo=_TODO)
    if version is not None and code == UsageError.exit_code:
        what = "capture refused the options; its message is above"
        return UsageError(what, where=where, todo=_OPTIONS_TODO)
    known = f"Python {version[0]}.{version[1]}" if version else "this program, which may be no Python,"
    how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
    todo = "read its message above, and check that it runs: PYTHON -c pass"
    return ManifestError(f"{known} could not capture its environment ({how})", where=where, todo=todo)


def _version(python: str) -> tuple[int, int] | None:
    null = subprocess.DEVNULL
    try:
        command, variables = [python, "-c", _VERSION], _environment(python)
        text = subprocess.run(
            command, stdin=null, stdout=-1, stderr=null, env=variables, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb"Python (\d+)\.(\d+)\s*\Z", text)
    return (int(found[1]), int(found[2])) if found else None
