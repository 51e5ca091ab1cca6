"""What the tests of locking share: no settings of this machine, an index on loopback, and runs that had its wheels."""

import io
import platform
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.capture.distributions import record_content
from envbuild.lock.model import Target
from envbuild.lock.run import Options
from envbuild.manifest.packages import Distribution, Origin
from tests.fakes.index import FakeIndex, closed_port
from tests.fakes.wheels import FakeWheel

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")
HERE = Target(python=platform.python_version(), machine=platform.machine(), glibc=platform.libc_ver()[1])
_SETTINGS = ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_INDEX_URL")


def forget_settings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Leave nothing of this machine's settings but an index that is down."""
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.setenv("UV_HTTP_RETRIES", "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{closed_port()}/simple")


def record_of(wheel: FakeWheel) -> str:
    """The RECORD in a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        return archive.read(name).decode()


def installed(wheel: FakeWheel, **facts) -> Distribution:
    """What capture says of a run that installed this wheel from an index."""
    name, version = wheel.filename.split("-")[:2]
    known: dict[str, Any] = {"name": name, "version": version, "origin": Origin(kind="index")}
    return Distribution(**(known | {"content_sha256": record_content(record_of(wheel))} | facts))


def options(folder: Path, **more) -> Options:
    return Options(cache=folder / "cache", **more)


def pin(wheel: FakeWheel) -> str:
    return "{}=={}".format(*wheel.filename.split("-")[:2])


def asked_for(index: FakeIndex, wheel: FakeWheel) -> list[str | None]:
    """The ranges of a wheel's file that were asked for; None for the whole."""
    return [it.range for it in index.requests if it.path == f"/files/{wheel.filename}" and it.method == "GET"]
