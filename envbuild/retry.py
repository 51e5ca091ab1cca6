"""Retries, deadlines, and waiting for threads so that Ctrl-C always gets through."""

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from envbuild.errors import EnvbuildError
from envbuild.report import SILENCE, announce

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")
_SECONDS = 0.5
"""Limit of one wait: a signal between two bytecodes does not wake a lock that is acquired next."""
_TURN = 0.0005
"""Seconds; by default a thread that hashed or inflated waits ten times as long for its next turn."""
_SOON = 0.05
"""Seconds after which the code that swallowed an interrupt has ended."""
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""


class Transient(Exception):  # noqa: N818 - not an error yet: it becomes `error` when all tries are used up
    """A failure that may pass; `Retry.run` catches it."""

    def __init__(self, error: EnvbuildError, *, after: float | None = None) -> None:
        super().__init__(error.what)
        self.error = error
        self.after = after
        """Seconds that the server asked to wait (Retry-After)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and after which pauses something is tried; `Retry(first=0)` does not wait at all."""

    tries: int = 3
    first: float = 1.0
    """Seconds before the second try."""
    factor: float = 3.0
    """Each later pause is so many times as long as the one before."""
    longest: float = 60.0
    """Seconds of the longest pause, whatever Retry-After says: no server may hold a job for hours."""
    jitter: float = 0.25
    """The part of a pause that is random, which keeps parallel clients from coming back in step."""

    def pause(self, tried: int, after: float | None = None) -> float:
        """Seconds to wait after `tried` tries: Retry-After if there is one, else exponential with jitter."""
        if after is not None:
            return min(max(after, 0.0), self.longest)
        exponential = self.first * self.factor ** min(tried - 1, 64)
        return min(exponential, self.longest) * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - no secret

    def run(self, attempt: Callable[[int], _T], *, pause: Callable[[float], object] = time.sleep) -> _T:
        """Call `attempt(number)`, counted from 1, until it returns or raises anything but Transient.

        After the last try the error of Transient is raised, with the number of tries in it.
        """
        for number in range(1, self.tries):
            try:
                return attempt(number)
            except Transient as transient:
                seconds = self.pause(number, transient.after)
                if seconds >= SILENCE:
                    announce(f"waiting {seconds:.0f} s before the next try: {transient.error.what}")
                pause(seconds)
        try:
            return attempt(max(self.tries, 1))
        except Transient as transient:
            error = copy(transient.error)
            error.what = f"{error.what} ({self.tries} tries)"
            raise error from transient


def tune_interpreter() -> None:
    """Switch between threads often, and collect cyclic garbage seldom; for programs, as it changes the process."""
    sys.setswitchinterval(_TURN)
    gc.set_threshold(14_000)  # objects, twenty times the default


def raise_again(lost: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that came where Python raises nothing: in `__del__` or a weak reference's callback.

    For `sys.unraisablehook` of programs, whose signals raise KeyboardInterrupt.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    heeded = callable(signal.getsignal(signal.SIGINT))  # not where a shell started this with `&`
    again = threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGINT if heeded else signal.SIGTERM))
    again.daemon = True
    again.start()


def as_completed(futures: "Iterable[Future[_T]]") -> "Iterator[Future[_T]]":
    """Yield each future when it is done; unlike `concurrent.futures.as_completed` it does not miss such a signal."""
    from concurrent.futures import FIRST_COMPLETED, wait  # noqa: PLC0415 - slow to import

    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_SECONDS, return_when=FIRST_COMPLETED)
        yield from done


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Return the result of `work`; TimeoutError after that many seconds. For libraries without a deadline.

    The work runs in a thread of its own, which is abandoned at the deadline and does not keep the process alive.
    """
    from concurrent.futures import Future, wait  # noqa: PLC0415 - slow to import

    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    end = time.monotonic() + seconds
    while not answer.done() and (left := end - time.monotonic()) > 0:
        wait((answer,), timeout=min(left, _SECONDS))
    return answer.result(timeout=0)
