"""When and after which pause a request is tried again."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from envbuild import waiting
from envbuild.errors import RegistryError

TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed."""

_T = TypeVar("_T")


class Transient(Exception):  # noqa: N818 - not an error yet: it becomes `error` when all tries are used up
    """A failure that may pass; never leaves this package."""

    def __init__(self, error: RegistryError, *, after: float | None = None) -> None:
        super().__init__(error.what)
        self.error = error
        self.after = after
        """Seconds that the registry asked to wait (Retry-After)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how patiently; `Retry(first=0, longest=0)` does not wait at all."""

    tries: int = 3
    first: float = 1.0
    """Seconds before the second try; each later pause is three times as long."""
    longest: float = 60.0
    """No pause is longer, whatever Retry-After says: a registry must not be able to hold a job for hours."""

    def delay(self, tried: int, after: float | None = None) -> float:
        """Seconds to wait after `tried` tries: Retry-After when there is one, else exponential with jitter."""
        if after is not None:
            return min(max(after, 0.0), self.longest)
        # Jitter keeps parallel uploads from coming back in step; it decides nothing that is secret.
        return min(self.first * 3.0 ** (tried - 1), self.longest) * random.uniform(0.75, 1.25)  # noqa: S311

    def run(self, attempt: Callable[[int], _T], *, pause: Callable[[float], None]) -> _T:
        """Call `attempt(number)`, counted from 1, until it returns or raises anything but Transient."""
        for number in range(1, self.tries):
            try:
                return attempt(number)
            except Transient as transient:
                seconds = self.delay(number, transient.after)
                if seconds >= waiting.SILENCE:
                    waiting.announce(f"waiting {seconds:.0f} s before the next try: {transient.error.what}")
                pause(seconds)
        try:
            return attempt(max(self.tries, 1))
        except Transient as transient:
            error = transient.error
            what = f"{error.what} ({self.tries} tries)"
            raise RegistryError(what, where=error.where, todo=error.todo, status=error.status) from transient
