"""Virtual environments made for a test, and let go at once."""

from pathlib import Path

from envbuild.local.notebook import held_server
from envbuild.local.venv import held_venv
from envbuild.lock.model import Lock
from envbuild.lock.run import Options
from envbuild.report import Reporter


def make_venv(folder: Path, lock: Lock, python: str, report: Reporter, *, cache: Path) -> Path:
    """Make what `held_venv` yields; return its interpreter."""
    with held_venv(folder, lock, python, report, cache=cache) as found:
        return found


def make_server(environment: Path, below: Lock, options: Options, report: Reporter) -> Path:
    """Make what `held_server` yields; return its interpreter."""
    with held_server(environment, below, options, report) as found:
        return found
