"""The model of a run."""

from __future__ import annotations

from envbuild.capture.reading import Facts


def model_facts(uri: str) -> Facts:
    """Read what the files of a model say."""
    return {"uri": uri}
