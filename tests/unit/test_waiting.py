"""Interrupts that Python swallows come again, and nothing else does."""

import sys
import time
from typing import Any

import pytest


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
