"""What every test starts from: an environment without the developer's settings."""

import os

import pytest

from tests.environ import cleaned


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    for name in os.environ.keys() - cleaned(os.environ).keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "envbuild-cache"))
