"""Locking against the real index, and what real installers make of the files."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch
from envbuild.lock.formats import pylock_text, read_pylock, requirements_text
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolvers import PipToolsResolver, UvResolver
from envbuild.lock.settings import uv_program

pytestmark = pytest.mark.real

HERE = Target(python=platform.python_version(), machine=platform.machine(), glibc=platform.libc_ver()[1])
BULLSEYE = Target(python="3.9.2", machine="x86_64", glibc="2.31")
SMALL = ("click==8.1.7", "idna==3.10", "markupsafe==2.1.5", "numpy==1.26.4", "packaging==24.0")


@pytest.fixture(scope="module")
def small() -> Lock:
    return UvResolver().resolve(SMALL, HERE)


def accepted(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_pip_tools_gives_the_lock_of_uv(small):
    assert PipToolsResolver().resolve(SMALL, HERE) == small


def test_locking_twice_gives_the_same_bytes(small):
    again = UvResolver().resolve(SMALL[::-1], HERE)
    assert (pylock_text(again), requirements_text(again)) == (pylock_text(small), requirements_text(small))


def test_an_older_tensorflow_is_locked_for_an_older_python():
    lock = UvResolver().resolve(("tensorflow==2.8.4", "tensorflow-cpu==2.8.4", "numpy==1.22.4"), BULLSEYE)
    assert [wheel.filename for wheel in lock.wheels] == [
        "numpy-1.22.4-cp39-cp39-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "tensorflow-2.8.4-cp39-cp39-manylinux2010_x86_64.whl",
        "tensorflow_cpu-2.8.4-cp39-cp39-manylinux2010_x86_64.whl",
    ]
    assert all(wheel.size > 10_000_000 for wheel in lock.wheels)


def test_everything_that_was_never_released_is_named():
    requirements = ("idna==3.999", "tensorflow==2.5.0", "numpy==1.26.4", "envbuild-has-no-such-project==1")
    with pytest.raises(LockError, match="3 distributions cannot be locked") as caught:
        UvResolver().resolve(requirements, Target(python="3.11.2", machine="x86_64", glibc="2.36"))
    said = str(caught.value)
    assert "idna==3.999: the index does not have this version" in said
    assert "cp39-cp39-manylinux2010_x86_64" in said
    assert "numpy" not in said


def test_installers_accept_both_files(small, tmp_path):
    (tmp_path / "pylock.toml").write_bytes(pylock_text(small))
    (tmp_path / "requirements.txt").write_bytes(requirements_text(small))
    accepted(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    uv = (uv_program(), "pip", "install", "--dry-run", "--python", "venv/bin/python")
    pip = (sys.executable, "-m", "pip", "--python", "venv/bin/python", "install", "--dry-run", "--no-deps")
    said = accepted(*uv, "-r", "pylock.toml", cwd=tmp_path)
    assert "numpy==1.26.4" in said
    accepted(*uv, "--require-hashes", "-r", "requirements.txt", cwd=tmp_path)
    said = accepted(*pip, "--require-hashes", "-r", "requirements.txt", cwd=tmp_path)
    assert "click-8.1.7 idna-3.10 numpy-1.26.4 packaging-24.0" in said
    accepted(*pip, "-r", "pylock.toml", cwd=tmp_path)


def test_locked_wheels_are_downloaded_and_verified(small, tmp_path):
    found = {wheel.name: path.stat().st_size for wheel, path in fetch(small.wheels, tmp_path)}
    assert found == {wheel.name: wheel.size for wheel in small.wheels}
    assert read_pylock(pylock_text(small), "pylock.toml") == small
