"""Waiting for threads so that Ctrl-C always gets through."""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

_T = TypeVar("_T")
_SECONDS = 0.5
"""A signal that comes between two bytecodes does not wake a lock that is waited for next, so no wait is endless."""


def as_completed(futures: Iterable[Future[_T]]) -> Iterator[Future[_T]]:
    """Yield each future when it is done, as `concurrent.futures.as_completed`, which sleeps through such a signal."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_SECONDS, return_when=FIRST_COMPLETED)
        yield from done
