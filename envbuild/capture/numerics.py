"""What the running frameworks were told that changes numbers."""

from __future__ import annotations

from envbuild.capture.reading import Facts


def numerics_facts() -> list[Facts]:
    """Ask the frameworks that the process has imported."""
    return []
