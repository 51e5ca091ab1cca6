"""Capturing by another interpreter of this machine."""

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

from envbuild.errors import EnvbuildError, ManifestError, UsageError
from envbuild.manifest import read_manifest

_TODO = "give the path of the interpreter that trained the model, such as ./venv/bin/python"
_OWN = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables that tell envbuild's interpreter where it lies, and would tell another the same."""
OLDEST = (3, 7)
"""What the one file runs on."""
USAGE = 2
"""The exit code of the one file for arguments that cannot be meant."""
_VERSION = "import sys; print('Python %d.%d' % sys.version_info[:2])"


def other_environment(python: str, script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the one file by `python`; UsageError if that is no Python, ManifestError if it fails or writes nonsense."""
    version = _version(python)
    if version is not None and version < OLDEST:
        # It would print a fault of syntax above whatever we say.
        what = "this is Python {}.{}, and capture needs 3.7 or later".format(*version)
        raise UsageError(what, where=f"--python {python}", todo=_TODO)
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        # Its folder becomes the first of sys.path, where only this name lies.
        path, out = Path(folder, "envbuild_capture.py"), Path(folder, "out", "manifest.json")
        path.write_text(script, encoding="utf-8")
        code = _run(python, str(path), "--out", str(out), *arguments)
        try:
            # Whole or not there at all, so a crash while the interpreter ends costs nothing.
            data = out.read_bytes()
        except OSError as error:
            raise _failed(python, version, code) from error
    read_manifest(data, f"--python {python}")
    environment: dict[str, Any] = json.loads(data)
    return environment


def _run(python: str, *arguments: str) -> int:
    try:
        # Interpreters print at their start what is no manifest (sitecustomize); of Ctrl-C only we should speak.
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
    """Return the environment that the user's shell would give: without what is envbuild's own."""
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    own = environment.get("VIRTUAL_ENV")
    if own and Path(own).resolve() == Path(sys.prefix).resolve():  # `uv run` sets it
        for name in ("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT"):
            environment.pop(name, None)
    return environment


def _failed(python: str, version: tuple[int, int] | None, code: int) -> EnvbuildError:
    where = f"--python {python}"
    if version is None and code == 0:
        return UsageError("this program captured nothing: it is no Python", where=where, todo=_TODO)
    if version is not None and code == USAGE:
        return UsageError(
            "capture cannot do what the options say; its own words are above",
            where=where,
            todo="see envbuild capture --help",
        )
    known = f"Python {version[0]}.{version[1]}" if version else "this program, which does not say that it is a Python,"
    how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
    return ManifestError(
        f"{known} could not capture its environment ({how})",
        where=where,
        todo="see its own message above, if it gave one, and whether it runs: PYTHON -c pass",
    )


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
