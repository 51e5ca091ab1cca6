"""Thirty real environments, each installed twice by different installers: no verification finds anything wrong.

Manifests by capture, the lock of one of them if it has a framework, and the machine with either environment are held
against one another. Of two environments an image is assembled and held against the run, too.

What is asked for must not bring two TensorFlows, as tensorflow-cpu with tf-keras or the newest tensorflow-hub does: they
lie over each other, each installer leaves other files of them, and that is found, and true.
"""

from pathlib import Path

import pytest

from tests.e2e.twice import INSTALLERS, Twice, interpreter

pytestmark = pytest.mark.real

JAX = ("jax==0.4.30", "jaxlib==0.4.30", "numpy==1.26.4", "scipy==1.13.1")
TENSORFLOW = ("tensorflow-cpu==2.15.1", "pip==24.0")
LIST = Path(__file__).with_name("thirty.txt")


def environments() -> list:
    """Python, requirements and installers of each line; the lines after the first empty one are for the long suite."""
    small, large = ([it.split() for it in part.splitlines() if it[0] != "#"] for part in LIST.read_text().split("\n\n"))
    return [
        pytest.param(
            python, required, INSTALLERS[number % len(INSTALLERS)],
            id=f"{number}-{required[0]}", marks=() if number < len(small) else pytest.mark.slow,
        )
        for number, (python, *required) in enumerate([*small, *large])
    ]  # fmt: skip


@pytest.fixture
def twice(tmp_path, cache, train_env):
    found = Twice(folder=tmp_path / "twice", cache=cache, pip=train_env("3.11", "pip==25.0.1"))
    found.folder.mkdir()
    yield found
    found.remove()


def test_there_are_thirty_and_all_differ():
    asked = {(it.values[0], tuple(it.values[1])) for it in environments()}
    assert (len(environments()), len(asked)) == (30, 30)


@pytest.mark.parametrize(("python", "requirements", "installers"), environments())
def test_an_environment_agrees_with_itself(twice, python, requirements, installers):
    twice.install(interpreter(python), requirements, installers)
    twice.capture()
    assert twice.disagreements() == []


@pytest.mark.slow
@pytest.mark.parametrize("requirements", [JAX, TENSORFLOW], ids=["jax", "tensorflow"])
def test_an_image_agrees_with_the_run_that_it_was_made_of(twice, requirements):
    twice.install("/usr/bin/python3.11", requirements, ("uv", "pip"))
    twice.capture()
    twice.envbuild("from-manifest", "a.json", "--base", "debian:bookworm", "--out", twice.folder / "out")
    found = twice.verify("a.json", "oci:out", "out/context", environment="a")
    assert found + twice.verify("oci:out", "a.json", "lock/pylock.toml", environment="a") == []
