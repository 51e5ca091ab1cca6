"""Waiting for threads so that Ctrl-C always gets through, and none waits long for another."""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

_T = TypeVar("_T")
_SECONDS = 0.5
"""A signal that comes between two bytecodes does not wake a lock that is waited for next, so no wait is endless."""
_TURN = 0.0005
"""Seconds; by itself an interpreter lets a thread that hashed or inflated wait ten times as long for its next turn."""


def take_turns() -> None:
    """Let the threads of this process give way to each other often; for programs, as it concerns all their threads."""
    sys.setswitchinterval(_TURN)


def as_completed(futures: Iterable[Future[_T]]) -> Iterator[Future[_T]]:
    """Yield each future when it is done, as `concurrent.futures.as_completed`, which sleeps through such a signal."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_SECONDS, return_when=FIRST_COMPLETED)
        yield from done
