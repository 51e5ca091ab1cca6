"""Questions to what others made: any of them may fail, and none may start anything."""

from __future__ import annotations

import numbers
import sys
from typing import Any


def answer(thing: Any, path: str, *arguments: Any) -> Any:
    """Follow a path such as `cuda.device_count()`, calling with the arguments; None where it fails in whatever way."""
    try:
        for step in path.split("."):
            thing = getattr(thing, step.replace("()", ""))
            thing = thing(*arguments) if step.endswith("()") else thing
    except Exception:
        return None
    return thing


def flag_or_none(value: Any) -> bool | None:
    """Return a bool, and None for anything else: a stand-in answers with whatever it likes."""
    return value if isinstance(value, bool) else None


def text_or_none(value: Any) -> str | None:
    """Return a str, and None for anything else."""
    return value if isinstance(value, str) else None


def whole_or_none(value: Any) -> int | None:
    """Return an integer, made an int if it is NumPy's, and None for anything else."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def imported(name: str) -> Any:
    """Return a package that this process has imported; None for one that is not there, half there, or a stand-in."""
    module = sys.modules.get(name)
    # To look into a lazy module would import it.
    lazy = type(module).__name__ == "_LazyModule"
    return None if lazy or text_or_none(answer(module, "__version__")) is None else module
