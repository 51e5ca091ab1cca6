"""The cache as a whole: what is in it, what leaves first, and that nothing in use does."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.cache import KINDS, kinds, prune, read_size
from envbuild.errors import UsageError
from tests.running import run_envbuild

OLD, NEW, MIDDLE = "0a" * 32, "0b" * 32, "0c" * 32
BASE = "debian-bookworm-x86_64-0123456789ab"
NOW = 1_700_000_000.0
HOUR = 3600
FOREIGN = {"somebody/else.txt", "notes/diary.txt", "wheels/deep/bike.jpg", "bases/mine/x"}
"""The folder may be one that somebody has for other things too."""


def put(folder: Path, name: str, size: int, hours: float) -> Path:
    """A file that was used so many hours ago."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (NOW - hours * HOUR,) * 2)
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    put(tmp_path, f"wheels/aa/{OLD}.whl", 100, 50)
    put(tmp_path, f"wheels/bb/{NEW}.whl", 100, 2)
    put(tmp_path, f"blobs/sha256/{MIDDLE}", 100, 20)
    put(tmp_path, f"bases/{BASE}/index.json", 10, 90)
    put(tmp_path, f"bases/{BASE}/blobs/layer", 90, 30)
    put(tmp_path, "bases/.new-debian/half", 7, 25)
    put(tmp_path, "blobs/.new-running", 5, 1)
    for place in FOREIGN:
        put(tmp_path, place, 1000, 500)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_it_holds_is_counted_by_kind(folder):
    found = kinds(folder)
    assert found == dict.fromkeys(KINDS, (0, 0)) | {"wheels": (2, 200), "blobs": (2, 105), "bases": (2, 107)}
    assert set(kinds(folder / "absent").values()) == {(0, 0)}


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (1000, set()),
        (405, set()),
        (404, {f"wheels/aa/{OLD}.whl"}),
        (300, {f"wheels/aa/{OLD}.whl", f"bases/{BASE}"}),
        (205, {f"wheels/aa/{OLD}.whl", f"bases/{BASE}"}),
        (0, {f"wheels/aa/{OLD}.whl", f"bases/{BASE}", f"blobs/sha256/{MIDDLE}", f"wheels/bb/{NEW}.whl"}),
    ],
)
def test_what_was_not_used_for_the_longest_time_leaves_first(folder, keep, gone):
    # the remains of a killed run always go; what is being written and what is not ours stays
    leaving = prune(folder, keep=keep, now=NOW)
    assert {str(it.path.relative_to(folder)) for it in leaving} == gone | {"bases/.new-debian"}
    assert {"blobs/.new-running", *FOREIGN} <= names(folder)
    assert not {name for name in names(folder) if any(name.startswith(it) for it in gone)}


def test_what_a_killed_run_left_leaves_before_what_is_of_use(tmp_path):
    put(tmp_path, f"wheels/aa/{OLD}.whl", 100, 50)
    put(tmp_path, "blobs/.new-killed", 50, 2)
    assert [it.path.name for it in prune(tmp_path, keep=100, now=NOW)] == [".new-killed"]
    assert names(tmp_path) == {f"wheels/aa/{OLD}.whl"}


def test_what_was_used_in_the_last_hour_stays(tmp_path):
    put(tmp_path, f"wheels/aa/{NEW}.whl", 100, 0.5)
    assert prune(tmp_path, keep=0, now=NOW) == ()


def test_a_dry_run_removes_nothing(folder):
    before = names(folder)
    assert len(prune(folder, keep=0, now=NOW, dry_run=True)) == 5
    assert names(folder) == before


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("20GB", 20 * 10**9), ("1.5 MB", 1_500_000), ("3k", 3000), ("2tb", 2 * 10**12), ("0", 0)],
)
def test_sizes(text, size):
    assert read_size(text, "--keep") == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "20 apples", "1GBB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="is not a size"):
        read_size(text, "--keep")


def envbuild(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_envbuild("cache", *arguments, env=os.environ | {"ENVBUILD_CACHE": str(folder)} | variables)


def test_the_command_shows_and_prunes(folder):
    shown = json.loads(envbuild(folder, "info", "--json").stdout)
    assert (shown["folder"], shown["size"], shown["limit"]) == (str(folder), 412, None)
    assert "wheels from indexes" in envbuild(folder, "info").stdout
    assert "would remove" in envbuild(folder, "prune", "--dry-run").stdout
    done = envbuild(folder, "prune", "--json", ENVBUILD_CACHE_LIMIT="1GB")
    assert {Path(it).name for it in json.loads(done.stdout)["removed"]} == {".new-debian", ".new-running"}
    done = envbuild(folder, "prune", "--keep", "0")
    assert done.returncode == 0
    assert names(folder) == FOREIGN
    for keep in ("much", "", " "):
        refused = envbuild(folder, "prune", "--keep", keep)
        assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.parametrize("place", ["file", "file/below", "nowhere"])
@pytest.mark.parametrize("command", ["info", "prune"])
def test_a_cache_that_is_no_folder_is_an_error_with_advice(tmp_path, place, command):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to("absent")
    done = envbuild(tmp_path / place, command)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"where: {tmp_path / place}\n  do: set ENVBUILD_CACHE" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_cache_that_is_not_there_yet_is_empty(tmp_path):
    assert json.loads(envbuild(tmp_path / "a/b", "info", "--json").stdout)["size"] == 0
    assert not (tmp_path / "a").exists()


def test_a_folder_goes_again_after_a_removal_that_was_killed(folder):
    put(folder, f"bases/.new-{BASE}/left by a killed run", 1, 0)
    assert f"bases/{BASE}" in {str(it.path.relative_to(folder)) for it in prune(folder, keep=0, now=NOW)}
    assert not (folder / "bases" / BASE).exists()


def test_only_what_went_is_said_to_be_gone(folder, monkeypatch):
    def refuse(path: Path, _target: Path) -> Path:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "rename", refuse)  # root may rename all that it finds
    gone = prune(folder, keep=0, now=NOW)
    assert f"bases/{BASE}" not in {str(it.path.relative_to(folder)) for it in gone}
    assert f"bases/{BASE}/index.json" in names(folder)


def test_a_cache_where_none_can_be_made_is_named_with_advice():
    program = "from envbuild.cli import commands, main\nfrom envbuild.files import cache_folder, write_whole\n"
    program += "commands.app.command('keep')(lambda: write_whole(cache_folder() / 'notes/x', b''))\nmain()"
    env = os.environ | {"ENVBUILD_CACHE": "/proc/nowhere", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program, "keep"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (13, "")
    assert done.stderr.startswith("error: the cache cannot be written: ")
    assert "where: /proc/nowhere" in done.stderr
    assert "do: set ENVBUILD_CACHE to a folder that this user may write" in done.stderr
