"""What capture says of a git checkout, whatever state it is in, and that nothing in it runs."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from envbuild.capture import checkout as checkout_module
from envbuild.capture.checkout import checkout_facts, code_facts
from tests.unit.capturing import Environment

SECRET = "ghp_hunter2SuperSecretValue99hunter2Supe"
ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
FOREIGN = "GIT_TEST_ASSUME_DIFFERENT_OWNER"
"""git's own switch for its tests: every checkout counts as another user's."""


@pytest.fixture
def repo(tmp_path, monkeypatch):
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "repo"
    (folder / "project").mkdir(parents=True)
    (folder / "train.py").write_text("one\n" * 20)
    (folder / "project" / "code.py").write_text("one\n")
    git(folder, "init", "-q")
    commit_all(folder)
    return folder


def git(folder: Path, *arguments: str, environment: dict | None = None) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    allowed = ["-c", "protocol.file.allow=always"]
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder), **ALONE, **(environment or {})}
    command = ["git", *identity, *allowed, *arguments]
    return subprocess.run(command, cwd=folder, env=plain, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


def facts_of(folder: Path, *, patch: bool = False, whole: bool = True) -> dict:
    facts = checkout_facts(str(folder), patch, whole)
    assert facts is not None
    return {key: value for key, value in facts.items() if value is not None}


def diff_digest(folder: Path, *arguments: str) -> str:
    return hashlib.sha256(git(folder, "diff", "HEAD", "--binary", "--full-index", *arguments).encode()).hexdigest()


def test_a_clean_checkout_is_its_commit(repo):
    assert facts_of(repo) == {"commit": head(repo), "dirty": False, "untracked": 0}


def test_changes_are_told_by_the_digest_of_the_diff(repo):
    (repo / "train.py").write_text("two\n")
    (repo / "project" / "new.bin").write_bytes(bytes(range(256)))
    git(repo, "add", "project/new.bin")
    expected = {"commit": head(repo), "dirty": True, "untracked": 0, "diff_sha256": diff_digest(repo)}
    assert facts_of(repo) == expected


def test_files_that_git_does_not_know_are_counted_and_make_nothing_dirty(repo):
    (repo / ".gitignore").write_text("*.log\n")
    commit_all(repo)
    (repo / "new.py").write_text("")
    (repo / "run.log").write_text("")
    (repo / "outputs").mkdir()
    for number in range(3):
        (repo / "outputs" / f"{number}.bin").write_text("")
    assert (facts_of(repo)["dirty"], facts_of(repo)["untracked"]) == (False, 2)


def test_a_patch_brings_the_changes_back(repo, tmp_path):
    (repo / "train.py").write_text("two\n" + "one\n" * 20)
    (repo / "project" / "code.py").write_bytes(bytes(range(256)))
    git(repo, "clone", "-q", ".", str(tmp_path / "other"))
    assert "patch" not in facts_of(repo)
    (tmp_path / "changes.patch").write_text(facts_of(repo, patch=True)["patch"])
    git(tmp_path / "other", "apply", str(tmp_path / "changes.patch"))
    for name in ("train.py", "project/code.py"):
        assert (tmp_path / "other" / name).read_bytes() == (repo / name).read_bytes()


def test_secrets_are_cut_out_of_patch_and_remote(repo):
    git(repo, "remote", "add", "origin", f"https://u:{SECRET}@git.example.com/x.git")
    (repo / "train.py").write_text(f'token = "{SECRET}"\n')
    facts = facts_of(repo, patch=True)
    assert facts["remote"] == "https://git.example.com/x.git"
    assert "+token" in facts["patch"]
    assert SECRET not in str(facts)


def test_a_patch_of_more_than_a_mebibyte_is_left_out_but_not_its_digest(repo):
    (repo / "train.py").write_text("x" * (1 << 20))
    facts = facts_of(repo, patch=True)
    assert ("patch" in facts, facts["diff_sha256"]) == (False, diff_digest(repo))


def test_a_folder_answers_for_itself_alone(repo):
    (repo / "train.py").write_text("two\n")
    (repo / "new.py").write_text("")
    project = repo / "project"
    assert facts_of(project, whole=False) == {
        "commit": head(repo), "dirty": False, "untracked": 0, "subdirectory": "project",
    }  # fmt: skip
    (project / "code.py").write_text("two\n")
    facts = facts_of(project, whole=False)
    assert (facts["dirty"], facts["diff_sha256"]) == (True, diff_digest(project, "--", "."))
    assert facts_of(project)["diff_sha256"] == diff_digest(repo)


LINES = "=\n" * 20
BEFORE = "    /*\n     * one\n     */\n    a\n" + LINES + "p\n" + LINES[:16] + "q\n" + LINES + "w\nz\ny\nx\nz\nz\ny\n"
AFTER = (
    "    /*\n     * zero\n     */\n    b\n\n    /*\n     * one\n     */\n    a\n"
    + LINES + "P\n" + LINES[:16] + "Q\n" + LINES + "z\ny\nw\ny\nz\nw\nx\n"
)  # fmt: skip
"""Changes that git writes down differently by how it is configured."""


@pytest.mark.parametrize(
    ("key", "value", "matters"),
    [
        ("diff.noprefix", "true", True), ("diff.mnemonicPrefix", "true", True), ("diff.context", "9", True),
        ("color.ui", "always", True), ("diff.renames", "false", True), ("diff.algorithm", "patience", True),
        ("diff.interHunkContext", "99", True), ("diff.indentHeuristic", "false", True), ("diff.relative", "true", True),
        ("diff.orderFile", "order", True), ("core.pager", "false", False), ("core.abbrev", "40", False),
        ("status.showUntrackedFiles", "no", False),
    ],
)  # fmt: skip
def test_the_digest_does_not_depend_on_configuration(repo, key, value, matters):
    (repo / "order").write_text("train.py\nproject/*\n")
    (repo / "train.py").write_text(BEFORE)
    commit_all(repo)
    git(repo, "mv", "project/code.py", "project/other.py")
    (repo / "train.py").write_text(AFTER)
    (repo / "new.py").write_text("")
    project = repo / "project"
    before, digest = (facts_of(repo), facts_of(project, whole=False)), diff_digest(project)
    git(repo, "config", key, value)
    assert (diff_digest(project) != digest) == matters
    assert (facts_of(repo), facts_of(project, whole=False)) == before
    assert before[0]["diff_sha256"] == digest


@pytest.fixture
def alarm(tmp_path):
    """A program that leaves a line in the file `marks` each time that it is run."""
    program = tmp_path / "alarm"
    program.write_text(f"#!/bin/sh\necho x >>{tmp_path}/marks\ncat\n")
    program.chmod(0o755)
    (tmp_path / "marks").touch()
    return program


def marks(alarm: Path) -> int:
    return len(alarm.with_name("marks").read_text().split())


def planted(repo: Path, alarm: Path) -> None:
    """Configure everything that a checkout can make git run while it compares."""
    (repo / ".gitattributes").write_text("*.py diff=planted\n*.bin diff=outside\n")
    (repo / "data.bin").write_text("one")
    commit_all(repo)
    for key in ("core.fsmonitor", "core.pager", "diff.external", "diff.planted.textconv", "diff.outside.command"):
        git(repo, "config", key, str(alarm))
    for name in ("post-index-change", "pre-commit", "post-checkout"):
        (repo / ".git" / "hooks").mkdir(exist_ok=True)
        (repo / ".git" / "hooks" / name).symlink_to(alarm)
    (repo / "train.py").write_text("two\n")
    (repo / "data.bin").write_text("two")
    os.utime(repo / "project" / "code.py", (1, 1))


def test_nothing_in_a_checkout_is_run(repo, alarm, monkeypatch):
    planted(repo, alarm)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(alarm))
    monkeypatch.setenv("GIT_PAGER", str(alarm))
    index = (repo / ".git" / "index").stat().st_mtime_ns
    facts = facts_of(repo, patch=True)
    assert (facts["dirty"], marks(alarm)) == (True, 0)
    assert (repo / ".git" / "index").stat().st_mtime_ns == index
    assert "-one" in facts["patch"]
    git(repo, "status")
    git(repo, "diff", "HEAD")
    assert marks(alarm) > 1, "the trap does not work"


def test_another_user_s_checkout_is_described_and_its_filters_do_not_run(repo, alarm, monkeypatch):
    planted(repo, alarm)
    for key in ("filter.planted.clean", "filter.planted.process", "filter.a b.smudge", "filter.a b.clean"):
        git(repo, "config", key, str(alarm))
    git(repo, "config", "filter.planted.required", "true")
    (repo / ".gitattributes").write_text('*.py filter=planted\n*.bin filter="a b"\n')
    monkeypatch.setenv(FOREIGN, "1")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        git(repo, "status", environment={FOREIGN: "1"})
    assert "dubious ownership" in refused.value.stderr
    facts = facts_of(repo, patch=True)
    assert (facts["commit"], facts["dirty"], marks(alarm)) == (head(repo), True, 0)
    assert "-one" in facts["patch"]


def test_filters_that_cannot_be_switched_off_leave_changes_unknown(repo, alarm, monkeypatch):
    git(repo, "config", "filter.a=b.clean", str(alarm))
    (repo / ".gitattributes").write_text("*.py filter=a=b\n")
    os.utime(repo / "train.py", (1, 1))
    monkeypatch.setenv(FOREIGN, "1")
    assert (facts_of(repo), marks(alarm)) == ({"commit": head(repo)}, 0)
    monkeypatch.chdir(repo)
    assert (code_facts(False) or {})["dirty"] is True


def test_one_s_own_filters_do_run(repo):
    git(repo, "config", "filter.upper.clean", "tr a-z A-Z")
    (repo / ".gitattributes").write_text("*.py filter=upper\n")
    git(repo, "add", "--renormalize", ".")
    commit_all(repo)
    os.utime(repo / "train.py", (1, 1))
    assert facts_of(repo)["dirty"] is False


def with_submodule(repo: Path) -> Path:
    git(repo, "clone", "-q", ".", "../other")
    git(repo, "submodule", "--quiet", "add", "../other", "module")
    commit_all(repo)
    return repo / "module"


def test_a_changed_submodule_is_a_change(repo):
    module = with_submodule(repo)
    assert facts_of(repo)["dirty"] is False
    (module / "train.py").write_text("two\n")
    assert (facts_of(repo)["dirty"], facts_of(repo)["diff_sha256"]) == (True, diff_digest(repo))
    assert facts_of(module)["commit"] == head(module)


def test_submodules_of_another_user_run_nothing(repo, alarm, monkeypatch):
    module = with_submodule(repo)
    git(module, "config", "filter.planted.clean", str(alarm))
    (module / ".gitattributes").write_text("*.py filter=planted\n")
    os.utime(module / "train.py", (1, 1))
    monkeypatch.setenv(FOREIGN, "1")
    assert (facts_of(repo)["dirty"], marks(alarm)) == (False, 0)
    commit_all(module)
    monkeypatch.setenv(FOREIGN, "1")
    assert facts_of(repo)["dirty"] is True


def test_a_worktree_is_a_checkout(repo):
    git(repo, "worktree", "add", "-q", "-b", "side", "../side")
    (repo.parent / "side" / "train.py").write_text("two\n")
    assert (facts_of(repo.parent / "side")["dirty"], facts_of(repo)["dirty"]) == (True, False)


def test_variables_that_point_elsewhere_are_not_followed(repo, monkeypatch):
    other = repo.parent / "other"
    git(repo, "clone", "-q", ".", str(other))
    (other / "train.py").write_text("two\n")
    commit_all(other)
    elsewhere = {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": repo.parent / "nowhere"}
    for name, value in elsewhere.items():
        with monkeypatch.context() as patches:
            patches.setenv(name, str(value))
            assert facts_of(repo) == {"commit": head(repo), "dirty": False, "untracked": 0}


def broken(repo: Path, how: str) -> Path:
    if how == "bare":
        git(repo, "clone", "-q", "--bare", ".", "../bare/.git")
        return repo.parent / "bare"
    if how == "no commits":
        git(repo.parent, "init", "-q", "empty")
        return repo.parent / "empty"
    if how == "inside":
        return repo / ".git"
    if how == "link to nowhere":
        shutil.rmtree(repo / ".git")
        (repo / ".git").write_text("gitdir: ../nowhere\n")
    if how == "no objects":
        shutil.rmtree(repo / ".git" / "objects")
    if how == "garbage":
        (repo / ".git" / "config").write_text("[core\n")
    if how == "none":
        shutil.rmtree(repo / ".git")
    return repo


@pytest.mark.parametrize(
    "how", ["bare", "no commits", "inside", "link to nowhere", "no objects", "garbage", "none"]
)  # fmt: skip
def test_what_is_no_checkout_says_nothing(repo, how, capfd):
    assert checkout_facts(str(broken(repo, how)), True, True) is None
    assert capfd.readouterr() == ("", "")


def test_without_git_nothing_is_said(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert checkout_facts(str(repo), True, True) is None


def test_a_working_directory_that_is_gone_is_no_checkout(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert code_facts(True) is None
    assert checkout_facts(str(tmp_path / "gone"), True, True) is None


def test_a_damaged_index_leaves_changes_unknown(repo, monkeypatch):
    (repo / ".git" / "index").write_bytes(b"damaged")
    assert facts_of(repo) == {"commit": head(repo)}
    monkeypatch.chdir(repo)
    assert (code_facts(True) or {})["dirty"] is True


@pytest.mark.parametrize("instead", ["exit 1", "sleep 60", "echo x; sleep 60", "echo x; exit 1"])
def test_a_diff_that_fails_or_does_not_end_has_no_digest(repo, tmp_path, monkeypatch, instead):
    (repo / "train.py").write_text("two\n")
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    real = shutil.which("git")
    program.write_text(f'#!/bin/sh\ncase "$*" in *" diff "*) {instead} ;; *) exec {real} "$@" ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(checkout_module, "TIMEOUT", 0.5)
    assert facts_of(repo, patch=True) == {"commit": head(repo), "dirty": True, "untracked": 0}


def test_a_patch_that_is_too_large_is_missed_aloud(tmp_path):
    env = Environment(tmp_path)
    (env.folder / "data.txt").write_text("1\n")
    env.git("init", "-q")
    env.git("add", ".")
    env.git("commit", "-qm", "x")
    assert env.run("--patch").stderr == ""
    (env.folder / "data.txt").write_text("two\n" * 300_000)
    done = env.run("--patch")
    manifest = json.loads(done.stdout)
    assert ("patch" in manifest["code"], manifest["code"]["dirty"]) == (False, True)
    (note,) = manifest["source"]["notes"]
    assert note.startswith("the uncommitted changes of the code are not recorded: ")
    assert done.stderr == f"warning: {note}\n"
    assert env.run().stderr == ""


def test_a_patch_loses_what_a_program_says_of_secrets(repo):
    (repo / "train.py").write_text('def f(user: str, password: str = "hunter22"):\n    pass\n')
    patch = facts_of(repo, patch=True)["patch"]
    assert '+def f(user: str, password: str = "[redacted]"):\n' in patch
    assert "hunter22" not in patch
