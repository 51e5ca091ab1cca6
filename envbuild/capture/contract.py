"""What the program needs from wherever it runs next."""

from __future__ import annotations

from typing import Iterable

from envbuild.capture.reading import Facts


def contract_facts(requires: Iterable[str], data: Iterable[str], preprocessing: Iterable[str]) -> Facts | None:
    """Describe the variables, data and code that the program depends on."""
    return None
