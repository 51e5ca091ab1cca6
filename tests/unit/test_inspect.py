"""`envbuild inspect`: what a model is stamped with, its history, and what is told where that cannot be read."""

import json

import pytest

from envbuild.cli.commands import run
from envbuild.stamp.history import changes, read_history
from tests.unit.attesting import NO_STAMP
from tests.unit.test_stamp import InBucket, InFolder, entry, gcs, model, write  # noqa: F401 - fixtures

ALL = (("train", b"one"), ("serve", b"two"), ("train", b"three"))


def stamped_thrice(uri: str) -> list[str]:
    return [write(uri, entry(role, content=content)).record for role, content in ALL]


def test_the_history_goes_back_to_the_first_record(model):  # noqa: F811
    names = stamped_thrice(model.uri)
    found = read_history(model.uri)
    assert [it.name for it in found.records] == names[::-1]
    assert found.current
    assert [it.name for it in read_history(model.uri, whole=False).records] == names[-1:]


def test_each_record_says_what_it_changed(model):  # noqa: F811
    stamped_thrice(model.uri)
    newest, second, first = (it.stamp for it in read_history(model.uri).records)
    assert newest
    assert second
    assert first

    def said(before, after):
        return [tuple(image and (image.role, image.digest) for image in pair) for pair in changes(before, after)]

    one, two, three = ((role, entry(content=content).digest) for role, content in ALL)
    assert (said(None, first), said(first, second), said(second, newest)) == (
        [(None, one)],
        [(None, two)],
        [(two, None), (one, three)],  # what serves was built on the training image that was replaced
    )


def test_a_record_that_is_gone_ends_the_history(tmp_path):
    model = InFolder(tmp_path)  # noqa: F811
    names = stamped_thrice(model.uri)
    (model.folder / names[0]).unlink()
    records = read_history(model.uri).records
    assert [(it.name, it.stamp is None) for it in records] == [(names[2], False), (names[1], False), (names[0], True)]


def test_the_command_shows_images_and_history(tmp_path, capsys):
    model = InFolder(tmp_path)  # noqa: F811
    names = stamped_thrice(model.uri)
    assert run(["inspect", model.uri]) == 0
    told = capsys.readouterr().out
    assert f"train cpu linux/amd64: {entry(content=b'three').reference}" in told
    assert (names[2] in told, names[1] in told) == (True, False)
    assert run(["inspect", model.uri, "--history"]) == 0
    told = capsys.readouterr().out
    assert f"train cpu linux/amd64: {entry(content=b'one').digest} -> {entry(content=b'three').digest}" in told
    assert f"serve cpu linux/amd64: nothing -> {entry(content=b'two').digest}" in told
    (model.folder / names[0]).unlink()
    assert run(["inspect", model.uri, "--history"]) == 0
    told = capsys.readouterr().out
    assert f"{names[0]}: not there any more" in told
    assert "nothing -> " not in told


def test_the_command_says_that_nothing_started_an_image(tmp_path, capsys):
    model = InFolder(tmp_path)  # noqa: F811
    write(model.uri, entry())
    write(model.uri, entry("serve", content=b"two", gate="untried"))
    assert run(["inspect", model.uri]) == 0
    assert capsys.readouterr().out.count("    untried: nothing started it before it was stamped\n") == 1


def test_json_has_the_records_as_they_are(tmp_path, capsys):
    model = InFolder(tmp_path)  # noqa: F811
    names = stamped_thrice(model.uri)
    assert run(["inspect", model.uri, "--history", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [it["name"] for it in shown["records"]] == names[::-1]
    assert shown["records"][0]["record"] == json.loads((model.folder / names[2]).read_bytes())
    assert shown["current"]


def test_a_model_that_was_replaced_with_its_metadata_is_told(gcs, capsys):  # noqa: F811
    model = InBucket(gcs)  # noqa: F811
    stamped_thrice(model.uri)
    gcs.put("models", "runs/1/saved_model.pb", b"another graph", metadata=model.metadata())
    assert not read_history(model.uri).current
    assert run(["inspect", model.uri]) == 0
    assert "the model was replaced since it was stamped" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["bare", "nowhere"])
def test_without_a_stamp_it_says_how_to_make_one(tmp_path, capsys, where):
    InFolder(tmp_path)
    assert run(["inspect", str(tmp_path / "model") if where == "bare" else str(tmp_path / where)]) == 15
    said = capsys.readouterr()
    assert said.out == ""
    assert (NO_STAMP if where == "bare" else "there is no model") in said.err
    assert "do:" in said.err


@pytest.mark.parametrize("image", ["out", f"out@sha256:{'0' * 64}", f"./out@sha256:{'0' * 64}"])
def test_an_image_is_told_to_have_no_stamp(tmp_path, monkeypatch, capsys, image):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/oci-layout").touch()
    assert run(["inspect", image]) == 15
    assert f"envbuild verify MODEL {image}" in capsys.readouterr().err
