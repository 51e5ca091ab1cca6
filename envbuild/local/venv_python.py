"""The interpreter that a virtual environment is made from."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from envbuild.errors import MissingComponentError
from envbuild.lock.settings import uv_environment, uv_program, without_credentials
from envbuild.report import Reporter

_ALONE = ("--no-project", "--system")
"""No project's Python, and none of a virtual environment that is active."""
_MOST_LINES = 6


def interpreter(python: str, report: Reporter) -> Path:
    """Find CPython of an exact version here, else have uv download it; then the same for its minor version.

    MissingComponentError where there is none at all.
    """
    minor = ".".join(python.split(".")[:2])
    said = ""
    for version in dict.fromkeys((python, minor)):
        if found := _here(version):
            return found
        said = _downloaded(version, report)
        if found := _here(version):
            return found
    todo = (
        f"install Python {minor}, such as by `apt install python{minor}`, `pyenv install {python}`, or "
        f"`uv python install {python}` where its downloads can be reached; or let a container engine run the image"
    )
    raise MissingComponentError(f"there is no Python {minor} here: {said}", where="--venv", todo=todo)


def _here(version: str) -> Path | None:
    """An interpreter of this machine: the one that runs this, pyenv's, or what uv finds."""
    parts = tuple(version.split("."))
    if platform.python_implementation() == "CPython" and platform.python_version_tuple()[: len(parts)] == parts:
        return Path(sys.executable)
    # Those that pyenv has are on PATH only where they are switched on.
    own = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions", version, "bin", "python")
    if own.exists():
        return own
    found = asked_uv("python", "find", *_ALONE, f"cpython@{version}", environment=uv_environment())
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def _downloaded(version: str, report: Reporter) -> str:
    """Have uv install its own build, where it keeps these; what it says if that fails."""
    allowed = os.environ.get("UV_PYTHON_DOWNLOADS") or "manual"
    environment = uv_environment() | {"UV_PYTHON_DOWNLOADS": allowed}
    if allowed.lower() in {"never", "false", "0"}:
        return "UV_PYTHON_DOWNLOADS forbids a download"
    report.step(f"Python {version} is not on this machine: asking uv for its build")
    done = asked_uv("python", "install", "--no-bin", f"cpython@{version}", environment=environment)
    return last_words(done) if done.returncode else ""


def asked_uv(
    *arguments: str, environment: Mapping[str, str], folder: Path | None = None, key: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run uv, in a folder where no project is found; MissingComponentError where there is none.

    `key` is a locked file's handle: if this process is killed, the lock ends with uv and not before.
    """
    return subprocess.run(
        [uv_program(), *arguments],
        cwd=folder or "/",
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=() if key is None else (key,),
    )


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What uv said of its fault, without credentials, on one line."""
    said = re.split(r"^error: ", without_credentials(done.stderr), flags=re.MULTILINE)[-1]
    lines = [line.strip().removeprefix("cause: ") for line in said.strip().splitlines()]
    return ": ".join(lines[:_MOST_LINES]) or f"exit code {done.returncode}"
