"""What the tests on this machine's loopback and its own disk need not wait for."""

import os

import pytest

from envbuild.lock import index
from envbuild.retry import Retry


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that is asked again is asked soon; how long pauses are is the business of the tests of `Retry`."""
    monkeypatch.setattr(index, "RETRY", Retry(first=0.01, longest=index.RETRY.longest))


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power: a build syncs some thirty files, 6 ms each."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
