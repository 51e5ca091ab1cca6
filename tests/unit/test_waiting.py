"""Interrupts that Python swallows come again, and nothing else does."""

import sys
import threading
import time
from typing import Any

import pytest

from envbuild.retry import within


class Last:
    """Something that an interrupt, or another fault, befalls when it is gone."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


@pytest.mark.usefixtures("interrupts_return")
def test_an_interrupt_in_the_end_of_an_object_is_raised_all_the_same():
    def lose() -> None:
        Last(KeyboardInterrupt)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        lose()


@pytest.mark.usefixtures("interrupts_return")
def test_another_fault_is_told_as_python_tells_it(monkeypatch):
    told: list[Any] = []
    monkeypatch.setattr(sys, "__unraisablehook__", told.append)
    Last(ValueError)
    time.sleep(0.2)
    assert [it.exc_type for it in told] == [ValueError]


def test_what_is_done_in_time_returns_and_raises_as_it_is():
    assert within(5, lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_what_never_ends_is_left_alone():
    with pytest.raises(TimeoutError):
        within(0.1, threading.Event().wait)
