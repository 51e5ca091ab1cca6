"""Links in a model's folder that lead to what the model's writer may not read: not embedded, not stamped."""

import os
from pathlib import Path

import pytest

from envbuild.cli.commands import run
from envbuild.errors import StampError
from envbuild.files import open_inside
from envbuild.stamp.history import read_history
from envbuild.stamp.stamping import check_stampable
from envbuild.verify.sources.model import read_model
from tests.unit.test_embed import Told, origin_of, refused
from tests.unit.test_sides_model import InFolder, put_stamp

SECRET = b"a key of the user who builds"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/id_rsa").write_bytes(SECRET)
    return tmp_path / "home/id_rsa"


@pytest.fixture
def model(tmp_path: Path) -> InFolder:
    (tmp_path / "work").mkdir()
    found = InFolder(tmp_path / "work")
    found.put("weights.bin", b"weights")
    return found


def absolute(folder: Path, secret: Path) -> Path:
    (folder / "vocabulary.txt").symlink_to(secret)
    return folder / "vocabulary.txt"


def relative(folder: Path, secret: Path) -> Path:
    (folder / "vocabulary.txt").symlink_to(os.path.relpath(secret, folder))
    return folder / "vocabulary.txt"


def of_a_folder(folder: Path, secret: Path) -> Path:
    (folder / "assets").symlink_to(secret.parent)
    return folder / "assets"


def of_a_link(folder: Path, secret: Path) -> Path:
    (folder / "second").symlink_to(secret)
    (folder / "first").symlink_to("second")
    return folder / "first"


def to_a_neighbour_of_the_same_beginning(folder: Path, secret: Path) -> Path:
    neighbour = Path(f"{folder}-of-others")
    neighbour.mkdir()
    secret.rename(neighbour / "id_rsa")
    (folder / "vocabulary.txt").symlink_to(neighbour / "id_rsa")
    return folder / "vocabulary.txt"


WAYS = [absolute, relative, of_a_folder, of_a_link, to_a_neighbour_of_the_same_beginning]


@pytest.mark.parametrize("way", WAYS)
def test_a_target_outside_of_the_model_is_not_embedded(way, model, secret, tmp_path):
    put_stamp(model.uri)
    way(model.folder, secret)
    said = refused(origin_of(model.uri), tmp_path / "cache", Told(), StampError)
    assert "a link leads out of the folder" in said
    assert "cp -rL" in said


@pytest.mark.parametrize("way", WAYS)
def test_a_target_outside_of_the_model_is_not_stamped(way, model, secret):
    way(model.folder, secret)
    for call in (check_stampable, put_stamp):
        with pytest.raises(StampError, match="a link leads out of the model's folder"):
            call(model.uri)
    assert not (model.folder / "envbuild/pointer.json").exists()


def test_a_stamped_model_whose_files_became_links_is_read(model, tmp_path):
    put_stamp(model.uri)
    links = [it for it in model.folder.iterdir() if it.is_file()]
    for path in links:  # as DVC and Hugging Face keep files
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    found = read_history(model.uri)
    assert (found.current, len(found.records)) == (True, 1)
    assert run(["inspect", model.uri]) == 0
    assert read_model(model.uri).faults == {}
    with pytest.raises(StampError) as caught:
        check_stampable(model.uri)
    assert Path(caught.value.where) in links


@pytest.mark.parametrize("name", ["envbuild", "envbuild/.lock", "envbuild/pointer.json"])
def test_a_stamp_is_written_through_no_link(name, model, tmp_path):
    target = tmp_path / "elsewhere"
    if name == "envbuild":
        target.mkdir()
    else:
        (model.folder / "envbuild").mkdir()
    (model.folder / name).symlink_to(target)
    with pytest.raises(StampError) as caught:
        put_stamp(model.uri)
    assert Path(caught.value.where).is_relative_to(model.folder / name)
    assert not target.exists() or not list(target.iterdir())


def test_a_record_that_is_a_link_is_not_read(model, secret):
    put_stamp(model.uri)
    kept = {model.folder / "envbuild/pointer.json", model.folder / "envbuild/.lock"}
    for place in (it for it in (model.folder / "envbuild").rglob("*") if it.is_file() and it not in kept):
        place.unlink()
        place.symlink_to(secret)
    with pytest.raises(StampError) as caught:
        put_stamp(model.uri)
    assert Path(caught.value.where).is_symlink()
    assert SECRET.decode() not in str(caught.value)


def test_links_within_the_model_are_stamped_and_embedded(model, tmp_path):
    (model.folder / "latest.bin").symlink_to("weights.bin")
    put_stamp(model.uri)
    from envbuild.serve.contents import embedded

    with embedded(origin_of(model.uri), tmp_path / "cache", Told().reporter()) as content:
        assert "/model/latest.bin" in content.files


def test_no_link_is_followed_that_is_put_there_after_the_check(model, secret, monkeypatch):
    path = model.folder / "weights.bin"

    def exchanged(_folder: Path, _path: Path) -> str:
        path.unlink()
        path.symlink_to(secret)
        monkeypatch.setattr(os.path, "realpath", os.path.abspath)  # what it said before
        return ""

    monkeypatch.setattr("envbuild.files.target_outside", exchanged)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_inside(model.folder, path)


def test_a_named_pipe_is_not_waited_for(model):
    os.mkfifo(model.folder / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        open_inside(model.folder, model.folder / "pipe")
