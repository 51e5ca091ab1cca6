"""Files that appear whole or not at all, and what they may take the place of."""

import os
import pwd
import stat
from pathlib import Path

import pytest

from envbuild.errors import BuildError, UsageError
from envbuild.files import cache_folder, home_folder, staged_folder, write_whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_can_be_read_by_all_and_one_that_is_there_keeps_its_mode(tmp_path):
    path = tmp_path / "a" / "file"
    write_whole(path, b"1")
    assert (path.read_bytes(), mode(path)) == (b"1", 0o644)
    path.chmod(0o600)
    write_whole(path, b"2")
    assert (path.read_bytes(), mode(path)) == (b"2", 0o600)


def test_what_is_no_file_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "folder", "null"):
        with pytest.raises(BuildError, match="not a regular file") as caught:
            write_whole(tmp_path / name, b"1")
        assert caught.value.where.endswith(name)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "null", "pipe"]


def test_a_folder_with_a_pipe_in_the_place_of_a_file_gets_none_of_the_files(tmp_path):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "b")

    def stage() -> None:
        with staged_folder(tmp_path / "out") as staged:
            for name in ("a", "b"):
                (staged / name).write_text("1")

    with pytest.raises(BuildError) as caught:
        stage()
    assert caught.value.where == str(tmp_path / "out/b")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "b"]
    assert stat.S_ISFIFO((tmp_path / "out" / "b").lstat().st_mode)


def test_what_comes_into_a_folder_is_made_on_the_same_file_system(tmp_path):
    place = tmp_path / "out"
    for expected in (tmp_path, place):
        with staged_folder(place) as staged:
            (staged / "a").write_text(str(expected))
            assert staged.parent.parent == expected, (
                "a folder that is there may be mounted, in one that cannot be written"
            )
        assert [path.name for path in tmp_path.rglob("*")] == ["out", "a"]
        assert (place / "a").read_text() == str(expected)


def test_a_user_without_a_home_has_to_say_where_the_cache_lies(tmp_path, monkeypatch):
    def nobody(_user):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "ENVBUILD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="no home") as caught:
        cache_folder()
    assert "ENVBUILD_CACHE" in caught.value.todo
    assert not home_folder(os.environ).exists()
    monkeypatch.setenv("ENVBUILD_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
