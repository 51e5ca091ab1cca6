"""What the tests on this machine's loopback need not wait for."""

import pytest

from envbuild.lock import index
from envbuild.retry import Retry


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that is asked again is asked soon; how long pauses are is the business of the tests of `Retry`."""
    monkeypatch.setattr(index, "RETRY", Retry(first=0.01, longest=index.RETRY.longest))
