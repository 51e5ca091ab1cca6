"""A few inputs and what the model made of them."""

from __future__ import annotations

from typing import Any

from envbuild.capture.reading import Facts


def golden_facts(golden: Any) -> Facts | None:
    """Encode a golden sample."""
    return None
