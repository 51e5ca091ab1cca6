"""Files that commit 839437c wrote still work: a manifest, a stamped model and an envbuild.toml are read, verified and built."""

import json
import shutil
from pathlib import Path

import pytest

from envbuild.cli import commands
from envbuild.oci.layout import write_layout
from tests.fakes.trees import BASE, image_of_trees

DATA = Path(__file__).parents[1] / "data/release-839437c"
DIGEST = "sha256:5998cc8c19378cec5a2aa06d74d1936ab59a297e5fc0ed12c280698db4fdf001"
"""The image that the model is stamped with."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The project's folder, as the working directory, and the base that its configuration names."""
    folder = tmp_path / "project"
    shutil.copytree(DATA, folder)
    write_layout(image_of_trees(BASE, config={"Env": ["PATH=/usr/bin"]}), folder / "base")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path / "cache"))
    return folder


def test_the_stamp_is_read(project, capsys):
    assert commands.run(["inspect", "model", "--json"]) == 0
    [image] = json.loads(capsys.readouterr().out)["records"][0]["record"]["images"]
    assert (image["role"], image["variant"], image["platform"], image["digest"]) == (
        "train",
        "cpu",
        "linux/amd64",
        DIGEST,
    )


def test_the_model_agrees_with_its_stamp_and_a_changed_one_does_not(project):
    assert commands.run(["verify", "model"]) == 0
    (project / "model/fingerprint.pb").write_bytes(b"other")
    assert commands.run(["verify", "model"]) == 16


def test_the_manifest_is_built_and_stamped_as_the_configuration_says(project, capsys):
    assert commands.run(["from-manifest", "manifest.json", "--stamp", "model", "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert built["layout"] == str(project / "out")
    assert built["identity"]["summary"] == "2 of 2 identical"
    assert commands.run(["inspect", "model", "--history", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [it["record"]["images"][0]["digest"] for it in records] == [built["digest"], DIGEST]
    assert commands.run(["verify", "model", "out"]) == 0


def test_the_configuration_is_read(project, capsys):
    assert commands.run(["config", "--json"]) == 0
    options = json.loads(capsys.readouterr().out)
    assert "1800" in json.dumps(options)
    assert str(project / "wheels") in json.dumps(options)
