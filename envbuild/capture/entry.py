"""How the run was started."""

from __future__ import annotations

from typing import Sequence

from envbuild.capture.reading import Facts


def entry_facts(command: Sequence[str] | None, process: str) -> Facts | None:
    """Describe the command, secrets cut out; that of a fresh process is not the run's."""
    return None
