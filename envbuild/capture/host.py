"""Where the run ran: machine, job, pod, container."""

from __future__ import annotations

from envbuild.capture.reading import Facts


def host_facts() -> Facts | None:
    """Describe the surroundings of the process."""
    return None
