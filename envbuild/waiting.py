"""Waiting for threads so that Ctrl-C always gets through, and none waits long for another."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")
_SECONDS = 0.5
"""A signal that comes between two bytecodes does not wake a lock that is waited for next, so no wait is endless."""
_TURN = 0.0005
"""Seconds; by itself an interpreter lets a thread that hashed or inflated wait ten times as long for its next turn."""
_NEW = 14_000
"""Objects, twenty times what an interpreter lets come before it looks through them."""
_SOON = 0.05
"""Seconds, after which what swallowed an interrupt is over."""
SILENCE = 10.0
"""Seconds of silence after which a line says what is waited for."""
_listeners: list[Callable[[str], None]] = []
"""Where those lines go."""


@contextmanager
def announcing(listener: Callable[[str], None]) -> Iterator[None]:
    """Let what `announce` says go to the listener within the block, from any thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def announce(text: str) -> None:
    """Say what is waited for, to the newest listener if there is one."""
    for listener in _listeners[-1:]:
        listener(text)


def take_turns() -> None:
    """Let the threads of this process give way to each other often; for programs, as it concerns all their threads."""
    sys.setswitchinterval(_TURN)


def collect_seldom() -> None:
    """Look for garbage in cycles a twentieth as often: what programs of ours make by the ten thousand is in none."""
    gc.set_threshold(_NEW)


def raise_again(lost: "sys.UnraisableHookArgs") -> None:
    """Let an interrupt come once more that came where Python raises nothing: `__del__`, a weak reference's callback.

    For `sys.unraisablehook` of programs, whose signals raise KeyboardInterrupt.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    heeded = callable(signal.getsignal(signal.SIGINT))  # not where a shell started this with `&`
    number = signal.SIGINT if heeded else signal.SIGTERM
    again = threading.Timer(_SOON, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def as_completed(futures: Iterable[Future[_T]]) -> Iterator[Future[_T]]:
    """Yield each future when it is done, as `concurrent.futures.as_completed`, which sleeps through such a signal."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_SECONDS, return_when=FIRST_COMPLETED)
        yield from done


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Return what `work` returns; TimeoutError after that many seconds. For libraries that have no deadline.

    The work runs in a thread of its own, which is abandoned at the deadline and does not keep the process alive.
    """
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
