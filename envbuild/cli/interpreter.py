"""Capturing elsewhere: by another interpreter of this machine, or in a container."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envbuild.capture import script
from envbuild.capture.contract import contract_facts, required_names
from envbuild.capture.files import manifest_text
from envbuild.capture.gcs import check_out, write_out
from envbuild.capture.record import complete, tell_disagreements
from envbuild.cli.console import Progress
from envbuild.errors import EnvbuildError, ManifestError, UsageError
from envbuild.manifest.reader import read_manifest

_TODO = "give the path of the interpreter that trained the model, such as ./venv/bin/python"
_OWN_VARIABLES = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables of envbuild's own interpreter, which would mislead another one."""
OLDEST_PYTHON = (3, 7)
USAGE = 2
"""The exit code of the script for wrong arguments."""
_VERSION = "import sys; print('Python %d.%d' % sys.version_info[:2])"


def capture_elsewhere(
    options: dict[str, Any], out: str | None, python: str | None, image: str | None
) -> dict[str, Any]:
    """Capture by `python`, or in `image`; model and data are read here, where the libraries for that are.

    `options` are the arguments of `capture()`; ValueError for wrong ones.
    """
    check_out(out)
    arguments = [f"--variable={name}" for name in options["variables"]]
    arguments += [f"--load={name}" for name in options["load"]]
    arguments += [f"--{name}" for name in ("patch", "deep") if options[name]]
    command = options["command"]
    arguments = ["--environment-only", *arguments, *(["--", *command] if command else [])]
    if image is None:
        environment = other_environment(str(python), script(), arguments)
        contract = contract_facts(options["requires"], options["data"], options["preprocessing"])
        model = options["model_uri"] or os.environ.get("AIP_MODEL_DIR")
    else:
        from envbuild.engine.inspection import image_environment

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
    return manifest


def other_environment(python: str, script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the capture script by `python`; UsageError if that is not Python, ManifestError if it fails."""
    version = _version(python)
    if version is not None and version < OLDEST_PYTHON:  # it would print a syntax error
        what = "this is Python {}.{}, and capture needs 3.7 or later".format(*version)
        raise UsageError(what, where=f"--python {python}", todo=_TODO)
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        # Its folder becomes the first of sys.path, so it has nothing else.
        path, out = Path(folder, "envbuild_capture.py"), Path(folder, "out", "manifest.json")
        path.write_text(script, encoding="utf-8")
        code = _run(python, str(path), "--out", str(out), *arguments)
        try:
            data = out.read_bytes()  # whole or absent, so a crash at the interpreter's end costs nothing
        except OSError as error:
            raise _failed(python, version, code) from error
    read_manifest(data, f"--python {python}")
    environment: dict[str, Any] = json.loads(data)
    return environment


def _run(python: str, *arguments: str) -> int:
    try:
        # sitecustomize may print to stdout; only this process reports Ctrl-C.
        done = subprocess.run(
            [python, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__ or subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"this interpreter cannot be run: {error.strerror}", where=f"--python {python}", todo=_TODO
        ) from error
    return done.returncode


def _environment() -> dict[str, str]:
    """Return the environment without variables of envbuild's own interpreter."""
    environment = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    own = environment.get("VIRTUAL_ENV")
    if own and Path(own).resolve() == Path(sys.prefix).resolve():  # `uv run` sets it
        for name in ("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT"):
            environment.pop(name, None)
    return environment


def _failed(python: str, version: tuple[int, int] | None, code: int) -> EnvbuildError:
    where = f"--python {python}"
    if version is None and code == 0:
        return UsageError("this program captured nothing: it is not Python", where=where, todo=_TODO)
    if version is not None and code == USAGE:
        what = "capture refused the options; its message is above"
        return UsageError(what, where=where, todo="see envbuild capture --help")
    known = f"Python {version[0]}.{version[1]}" if version else "this program, which may be no Python,"
    how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
    todo = "read its message above, and check that it runs: PYTHON -c pass"
    return ManifestError(f"{known} could not capture its environment ({how})", where=where, todo=todo)


def _version(python: str) -> tuple[int, int] | None:
    null = subprocess.DEVNULL
    try:
        text = subprocess.run(
            [python, "-c", _VERSION], stdin=null, stdout=-1, stderr=null, env=_environment(), timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb"Python (\d+)\.(\d+)\s*\Z", text)
    return (int(found[1]), int(found[2])) if found else None
