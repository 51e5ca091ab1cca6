"""The shared libraries that the process has loaded."""

from __future__ import annotations

from envbuild.capture.reading import Facts


def native_facts(distributions: dict[str, Facts], process: str) -> Facts:
    """Describe what /proc/self/maps holds; `process` is `run` or `fresh`."""
    return {"process": process}
