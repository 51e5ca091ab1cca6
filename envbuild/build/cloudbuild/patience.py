"""How long one call to Google may be tried again, and how often a build is looked at."""

import os
from collections.abc import Iterator

TIMEOUT = "ENVBUILD_CLOUDBUILD_TIMEOUT"
"""The variable with the seconds that one call may be tried again, 60 without it; all waiting shrinks with it."""
_DEFAULT = 60.0
_SLOWEST = 5.0


def seconds() -> float:
    """How long a call may be tried: from 0.01 s to an hour."""
    try:
        chosen = float(os.environ.get(TIMEOUT, _DEFAULT))
    except ValueError:
        chosen = _DEFAULT
    return min(max(chosen, 0.01), 3600.0)


def pauses() -> Iterator[float]:
    """Yield the seconds between two looks at a build: one at first, later five, as builds that last are many lines."""
    unit = min(1.0, seconds() / _DEFAULT)
    pause = 1.0
    while True:
        yield pause * unit
        pause = min(pause * 1.3, _SLOWEST)
