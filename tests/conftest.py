"""What every test starts from: an environment without the developer's settings."""

import gc
import itertools
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from envbuild.retry import raise_again
from tests.environ import UNTRIED, cleaned
from tests.running import remember_costly_results, stop_server

remember_costly_results()
sys.dont_write_bytecode = False  # pytest keeps the test modules that it compiled; what the tests start keeps nothing

# How fast this machine is at the moment decides no test, and what a change is checked with is the same each time:
# examples that nobody tried before are looked for by `tests/run.sh long`.
settings.register_profile("explore", max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("envbuild", settings.get_profile("explore"), max_examples=100, derandomize=True)
settings.load_profile("envbuild")

_NUMBERS = itertools.count()


@pytest.fixture
def interrupts_return(monkeypatch):
    """As in the program: an interrupt that Python swallows, in a weak reference's callback, comes again."""
    monkeypatch.setattr(sys, "unraisablehook", raise_again)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, which looks through the folders of all tests for the next free number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_NUMBERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="session", autouse=True)
def _clean_environment():
    """For the fixtures of a module or session too, which run before those of a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - cleaned(os.environ).keys():
            patch.delenv(name)
        for name, value in UNTRIED.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def _own_cache(_clean_environment, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBERS)}"))


def pytest_collection() -> None:
    gc.disable()  # it would look through all tests again and again, and they stay


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    stop_server()
