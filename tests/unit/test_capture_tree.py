"""Code by its content: the digests are git's, and git is who says so."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.capture.checkout import tree_facts
from envbuild.manifest.model import Tree

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@pytest.fixture(autouse=True)
def _plain_git(monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", tempfile.gettempdir())


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def commit(folder: Path, *options: str) -> None:
    if not (folder / ".git").exists():
        git(folder, "init", "-q", *options)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x", "--allow-empty")


@pytest.fixture
def checkout(tmp_path):
    """A clean checkout with a little of everything."""
    folder = tmp_path / "checkout"
    write(folder, prep__a="1", prep__a_b="22", prep__deep__er__c="", other="x", **{"prep__a.py": "3"})
    (folder / "prep" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "prep" / "run.sh").chmod(0o755)
    (folder / "prep" / "link").symlink_to("../other")
    (folder / "prep" / "folder").symlink_to("deep")
    (folder / "prep" / "empty").mkdir()
    commit(folder)
    return folder


def head(folder: Path, path: str) -> str:
    return git(folder, "rev-parse", f"HEAD:{path}")


def digest(path: Path) -> str:
    facts = tree_facts(str(path))
    assert facts.keys() == {"path", "git_tree", "files"}
    tree: str = facts["git_tree"]
    return tree


@pytest.mark.parametrize("path", ["prep", "prep/deep", "prep/a", "prep/run.sh", "prep/deep/er/c", "other", ""])
def test_of_a_clean_checkout_it_is_git_s_own(checkout, path):
    assert digest(checkout / path) == head(checkout, path)


@pytest.mark.parametrize("path", ["prep", "prep/deep", "prep/a", "prep/run.sh", "prep/deep/er/c", "other", ""])
def test_a_copy_without_git_has_the_same(checkout, path):
    expected = head(checkout, path)
    shutil.rmtree(checkout / ".git")
    assert digest(checkout / path) == expected


names = st.sampled_from(
    ["a", "a.", "a-", "a0", "a.b", "A", "b", "\u00e9", "a b", "-x", "~", "a\n", "\udcff", '"', "*", ":x"]
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(paths, st.tuples(st.binary(max_size=20), st.booleans()), min_size=1, max_size=8))
def test_any_names_are_sorted_as_git_sorts_them(files):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, (data, executable) in files.items():
            try:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
                (folder / path).chmod(0o755 if executable else 0o644)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
        commit(folder)
        expected = git(folder, "rev-parse", "HEAD:")
        assert digest(folder) == expected
        shutil.rmtree(folder / ".git")
        assert digest(folder) == expected


def test_the_files_are_counted(checkout):
    assert tree_facts(str(checkout / "prep"))["files"] == 7
    assert tree_facts(str(checkout / "other"))["files"] == 1
    assert {"path", "git_tree", "files", "unread"} == set(Tree.__dataclass_fields__)


def test_a_file_s_name_is_no_pattern(checkout):
    write(checkout, **{"prep__?": "1", "prep__[": "2"})
    commit(checkout)
    assert tree_facts(str(checkout / "prep" / "?")) == {
        "path": str(checkout / "prep" / "?"),
        "git_tree": head(checkout, "prep/?"),
        "files": 1,
    }


def test_the_path_is_recorded_as_it_was_named(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    assert [tree_facts(path)["path"] for path in ("prep", "./prep/", "../checkout/prep")] == [
        "prep", "./prep/", "../checkout/prep"
    ]  # fmt: skip
    assert len({tree_facts(path)["git_tree"] for path in ("prep", "./prep/", "../checkout/prep")}) == 1


def test_changes_new_files_and_deleted_ones_count(checkout):
    clean = digest(checkout / "prep")
    write(checkout, prep__new="5", prep__a="changed")
    (checkout / "prep" / "a_b").unlink()
    (checkout / "prep" / "run.sh").chmod(0o644)
    changed = digest(checkout / "prep")
    assert changed != clean
    commit(checkout)
    assert changed == head(checkout, "prep") == digest(checkout / "prep")


def test_what_is_staged_but_not_in_the_folder_does_not_count(checkout):
    clean = digest(checkout / "prep")
    write(checkout, prep__a="staged")
    git(checkout, "add", "prep/a")
    write(checkout, prep__a="1")
    assert digest(checkout / "prep") == clean


def test_ignored_files_do_not_count(checkout):
    write(checkout, **{".gitignore": "*.tmp\n/prep/cache/\n"})
    commit(checkout)
    clean = digest(checkout / "prep")
    write(checkout, **{"prep__x.tmp": "1", "prep__cache__y": "2"})
    assert digest(checkout / "prep") == clean == head(checkout, "prep")


def test_a_folder_that_is_ignored_as_a_whole_is_what_lies_in_it(checkout):
    write(checkout, **{".gitignore": "build/\n"})
    shutil.copytree(checkout / "prep", checkout / "build", symlinks=True)
    assert digest(checkout / "build") == head(checkout, "prep")


def test_without_git_what_python_makes_by_itself_does_not_count(checkout):
    expected = head(checkout, "prep")
    shutil.rmtree(checkout / ".git")
    write(checkout, **{"prep____pycache____a.cpython-311.pyc": "1"})
    (checkout / "prep" / "__pycache__").mkdir()
    (checkout / "prep" / "__pycache__" / "x.txt").write_text("1")
    (checkout / "prep" / "old.pyc").write_text("1")
    (checkout / "prep" / ".git").write_text("gitdir: /nowhere")
    assert digest(checkout / "prep") == expected


def test_line_ends_and_filters_are_git_s(checkout):
    write(checkout, **{".gitattributes": "*.txt text eol=crlf\n*.bin filter=upper\n", "prep__t.txt": "a\r\nb\r\n"})
    write(checkout, **{"prep__w.bin": "weights"})
    git(checkout, "config", "filter.upper.clean", "tr a-z A-Z")
    commit(checkout)
    assert git(checkout, "cat-file", "blob", "HEAD:prep/w.bin") == "WEIGHTS"
    assert digest(checkout / "prep") == head(checkout, "prep")
    assert digest(checkout / "prep" / "w.bin") == head(checkout, "prep/w.bin")


def test_a_submodule_is_the_commit_it_stands_at(checkout, tmp_path):
    write(tmp_path / "module", code="1")
    commit(tmp_path / "module")
    git(checkout, "submodule", "--quiet", "add", str(tmp_path / "module"), "prep/module")
    commit(checkout)
    assert digest(checkout / "prep") == head(checkout, "prep")
    write(checkout / "prep" / "module", code="2")
    commit(checkout / "prep" / "module")
    moved = digest(checkout / "prep")
    commit(checkout)
    assert moved == head(checkout, "prep")


def test_a_checkout_with_sha256_has_the_digests_of_one_without(checkout):
    expected = head(checkout, "prep")
    shutil.rmtree(checkout / ".git")
    commit(checkout, "--object-format=sha256")
    assert digest(checkout / "prep") == expected


def test_another_checkout_in_the_environment_is_not_asked(checkout, tmp_path, monkeypatch):
    expected = head(checkout, "prep")
    write(tmp_path / "other", x="1")
    commit(tmp_path / "other")
    (tmp_path / "other" / ".git" / "info" / "exclude").write_text("a_b\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert digest(checkout / "prep") == expected


def test_a_link_to_a_folder_is_the_folder(checkout, tmp_path):
    (tmp_path / "link").symlink_to(checkout / "prep")
    assert digest(tmp_path / "link") == head(checkout, "prep")


def test_an_empty_folder_is_the_empty_tree(tmp_path):
    assert tree_facts(str(tmp_path))["git_tree"] == EMPTY_TREE


def test_pipes_are_not_read(checkout):
    clean = digest(checkout / "prep")
    os.mkfifo(checkout / "prep" / "pipe")
    assert digest(checkout / "prep") == clean
    shutil.rmtree(checkout / ".git")
    assert digest(checkout / "prep") == clean


@pytest.mark.parametrize("name", ["typo", "prep/typo", "pipe", ""])
def test_a_path_that_leads_to_no_code_is_refused(checkout, name, monkeypatch):
    os.mkfifo(checkout / "pipe")
    monkeypatch.chdir(checkout)
    with pytest.raises(ValueError, match="preprocessing: there is no file or folder " + name):
        tree_facts(name)


def test_too_much_is_not_read(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 42)
    for path in (tmp_path, tmp_path / "huge"):
        facts = tree_facts(str(path), seconds=0.2)
        assert facts == {"path": str(path), "unread": "it takes too long to read; name code only"}


def test_what_cannot_be_read_says_so(tmp_path):
    (tmp_path / "x").symlink_to("/proc/self/mem")
    facts = tree_facts(str(tmp_path / "x"))
    assert facts == {"path": str(tmp_path / "x"), "unread": "it cannot be read: Input/output error"}
