"""Facts of one manifest that do not fit together."""

from __future__ import annotations

from envbuild.capture.reading import Facts


def find_disagreements(manifest: Facts) -> list[Facts]:
    """Compare what the model says with what is installed."""
    return []
