"""Progress and notes to a person: the one interface by which all packages report, and lines about silent servers."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

SILENCE = 10.0
"""Seconds of silence after which a line says what the program waits for."""
_listeners: list[Callable[[str], None]] = []


class Reporter(Protocol):
    """Shows progress and notes to a person; every method may be called from any thread."""

    def step(self, text: str, /) -> None:
        """Announce a stage."""

    def note(self, text: str, /) -> None:
        """Show a decision or a detail of the stage."""

    def warn(self, text: str, /) -> None:
        """Show what the reader must not miss."""

    def progress(self, label: str, done: int, total: int | None, /) -> None:
        """Show `done` of `total` bytes under `label`; the total may be unknown."""


class SilentReporter:
    """A reporter that shows nothing."""

    def note(self, text: str, /) -> None:
        """Show nothing."""

    step = warn = note

    def progress(self, label: str, done: int, total: int | None, /) -> None:
        """Show nothing."""


SILENT = SilentReporter()


class OnceReporter:
    """A reporter that shows each line once: both images of one environment have the same."""

    def __init__(self, report: Reporter) -> None:
        self.step, self.note, self.warn = cache(report.step), cache(report.note), cache(report.warn)
        self.progress = report.progress


@contextmanager
def announcing(listener: Callable[[str], None]) -> Iterator[None]:
    """Send what `announce` gets to the listener within the block, from any thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def announce(text: str) -> None:
    """Report what the program waits for to the newest listener, if there is one."""
    for listener in _listeners[-1:]:
        listener(text)


def count(report: Reporter, what: str) -> Callable[[int, int], None]:
    """Return a function of (done, total) that notes `1 of 3 {what}`, at most every SILENCE seconds."""
    last = [time.monotonic()]

    def note(done: int, total: int) -> None:
        if time.monotonic() - last[0] >= SILENCE:
            last[0] = time.monotonic()
            report.note(f"{done} of {total} {what}")

    return note
