"""Where a file is run: what an image may do to this machine when it is unpacked, and what its variables are."""

import dataclasses
import json
import os
import platform
import sys
import venv
from pathlib import Path

import pytest

from envbuild.cli.console import Progress
from envbuild.errors import BuildError, MissingComponentError, UsageError
from envbuild.image.config import DEFAULT_PATH
from envbuild.verify.golden.runners import in_bubblewrap, in_image, isolated
from tests.unit.comparing import file, folder, image, link

PYTHON = file("usr/bin/python", mode=0o755)


def unpacked(image, cache):
    with in_bubblewrap(image, "an image", cache) as runner:
        return runner


@pytest.mark.parametrize("link_of", ["var", "tmp", "run", "var/tmp", "proc", "dev"])
def test_nothing_is_written_through_a_link_of_an_image_where_a_folder_is_mounted(tmp_path, link_of):
    victim = tmp_path / "victim"
    victim.mkdir()
    for target in (str(victim), "/nowhere/x"):
        with pytest.raises(BuildError, match=f"/{link_of} in the image is a link and no folder"):
            unpacked(image([link(link_of, target), PYTHON]), tmp_path / "cache")
    assert list(victim.iterdir()) == []
    with pytest.raises(BuildError, match="/tmp in the image is a file"):
        unpacked(image([file("tmp"), PYTHON]), tmp_path / "cache")


def test_no_link_of_an_image_is_made_through_another(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    unpacked(image([link("a", str(victim)), link("a/b", "x"), PYTHON]), tmp_path / "cache")
    assert list(victim.iterdir()) == []


def test_an_image_that_no_folder_can_hold_is_refused(tmp_path):
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpacked(image([file("a" * 300), PYTHON]), tmp_path / "cache")


@pytest.mark.parametrize(
    ("entries", "variables"),
    [
        (["PATH=--help:bin:/usr/bin", "A=b=c", "B"], {"PATH": "--help:bin:/usr/bin", "A": "b=c", "B": ""}),
        (["PATH=/usr/bin", 1, "A=\0b", "B=\ud800", "=c"], {"PATH": "/usr/bin"}),
    ],
)
def test_variables_are_what_a_process_can_have(tmp_path, entries, variables):
    made = image([folder("--help"), file("--help/python"), file("bin/python"), PYTHON])
    config = json.loads(made.config) | {"config": {"Env": entries}}
    runner = unpacked(dataclasses.replace(made, config=json.dumps(config).encode()), tmp_path)
    assert (runner.variables, runner.python) == (variables, "/usr/bin/python")
    assert list((tmp_path / "bases").iterdir()) == []


@pytest.mark.parametrize("inner", [None, [], {"Env": 1}, {"Env": None}, {"Env": {"A": 1}}])
def test_an_image_without_python_is_told_when_it_is_run(tmp_path, inner):
    made = image([file("a")])
    made = dataclasses.replace(made, config=json.dumps(json.loads(made.config) | {"config": inner}).encode())
    with pytest.raises(UsageError, match="the image has no Python on its PATH"):
        unpacked(made, tmp_path).run("", {}, seconds=1)


def test_only_a_virtual_environment_is_named_as_one(tmp_path, monkeypatch):
    """Bubblewrap is not needed to see what it would be given."""
    command = tmp_path / "bin/bwrap"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    venv.create(tmp_path / "venv", symlinks=True)
    plain = Path(sys.executable).resolve()
    for python, named in ((tmp_path / "venv/bin/python", {"VIRTUAL_ENV": str(tmp_path / "venv")}), (plain, {})):
        found = isolated(str(python), {"OWN": "1"}, tmp_path)
        assert found
        assert found.variables == {"PATH": DEFAULT_PATH, "OWN": "1", **named}


def test_without_engine_and_bubblewrap_no_image_is_opened(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    name = f"{tmp_path}/none@sha256:{'0' * 64}"
    with (
        Progress() as told,
        pytest.raises(MissingComponentError, match="bubblewrap is not installed"),
        in_image(name, machine=platform.machine(), cache=tmp_path, report=told),
    ):
        pass
    assert "unpacking" not in capsys.readouterr().err
