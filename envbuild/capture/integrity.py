"""What is really installed: files held against their RECORD."""

from __future__ import annotations

from envbuild.capture.reading import Facts


def installation_facts(distributions: dict[str, Facts], deep: bool) -> Facts:
    """Hold every file against its RECORD, and note in each distribution what differs."""
    return {}
