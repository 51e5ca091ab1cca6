"""What GitHub Actions is told is what it reads: outputs, a table that nothing breaks out of, annotations."""

import json
from pathlib import Path

import pytest

from envbuild.capture.files import say
from envbuild.cli import commands
from envbuild.cli.summary import annotate_error, annotation, write_github_files
from envbuild.errors import LockError
from tests.tools.run_action import annotations, read_pairs
from tests.unit.test_from_manifest import manifest_of

DIGEST = f"sha256:{'a' * 64}"
RESULT = {"image": f"host/churn@{DIGEST}", "digest": DIGEST, "stamped": "envbuild/record-1.json", "layout": None}


@pytest.fixture
def files(tmp_path, monkeypatch) -> tuple[Path, Path]:
    found = tmp_path / "output", tmp_path / "summary"
    monkeypatch.setenv("GITHUB_OUTPUT", str(found[0]))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(found[1]))
    return found


def test_outputs_are_read_back_and_nothing_inside_a_value_begins_another(files):
    hostile = "a\nend-0\nimage=other\nimage<<x\nother\nx"
    write_github_files({**RESULT, "stamped": hostile})
    assert read_pairs(files[0].read_text()) == {"image": RESULT["image"], "digest": DIGEST, "record": hostile}
    write_github_files(RESULT)
    assert read_pairs(files[0].read_text())["record"] == RESULT["stamped"]


def test_the_summary_is_a_table_that_no_value_breaks_out_of(files):
    cells = ("a|b\n|c", "<img src=x>", "[x](https://example.com) `y` \\| é")
    write_github_files(RESULT, [cells, ("numpy", "", "1.26.4")])
    _, _, head, rule, first, second, _ = files[1].read_text().split("\n")[:7]
    assert [it.count("|") for it in (head, rule, first, second)] == [4, 4, 4, 4]
    assert not set("<>[]`\\é") & set(first)
    assert second == "| numpy |  | 1.26.4 |"


def test_a_long_summary_is_cut_and_says_so(files):
    write_github_files(RESULT, [("name", "", str(number)) for number in range(1000)])
    assert len(files[1].read_text().splitlines()) < 220
    assert "800 more rows" in files[1].read_text()


def test_nothing_is_written_outside_a_step_and_a_file_that_cannot_be_is_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("GITHUB_OUTPUT", "")
    write_github_files(RESULT)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path))
    write_github_files(RESULT)
    assert capsys.readouterr().err == "warning: GITHUB_OUTPUT cannot be written: Is a directory\n"
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_one_annotation_at_its_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "a,b:c.toml").write_text("")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    error = LockError("numpy 1.26.4, 100% pinned\n::error::fake", where=str(tmp_path / "a,b:c.toml"), todo="ask")
    annotate_error(error)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    annotate_error(error)
    said = capsys.readouterr().err
    assert said == annotation(error) + "\n"
    [(properties, text)] = annotations(said)
    assert properties == {"title": "envbuild ends with 12", "file": "a,b:c.toml"}
    assert text == str(error).replace("\n::", "\n\\x3a:")


@pytest.mark.parametrize(
    "line",
    [
        ["from-manifest", "manifest.json", "--role", "serve", "--cmd", "x", "--extra", "no\n ::set-output name=x::y"],
        ["from-manifest", "manifest.json", "--role", "serve", "--cmd", "x", "--extra", "##[add-mask]y"],
        ["lock", "manifest.json", "--extra", "no\n::set-output name=x::y ###[add-mask]y"],
        ["config", "--no##[add-mask]y"],
        ["config", "no ##[add-mask]y"],
    ],
)
def test_no_word_of_the_command_line_becomes_a_command_of_the_runner(line, tmp_path, monkeypatch, capsys):
    """Which takes what begins with ::, white space aside, and ##[ anywhere: ActionCommand.cs of actions/runner."""
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert commands.run(line) == 2
    told = capsys.readouterr()
    for said in (told.out + told.err).splitlines():
        assert "##[" not in said
        assert not said.strip().startswith("::") or said.startswith("::error title=envbuild ends with 2::")


def test_nor_does_what_capture_says(capsys):
    say("warning: a\n ::error::b ##[add-mask]c\n::d")
    assert capsys.readouterr().err == "warning: a\n \\x3a:error::b \\x23#[add-mask]c\n\\x3a:d\n"


def test_an_error_elsewhere_names_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    for where in ("distributions[3].version", "/etc/passwd", "a\0b", ""):
        [(properties, _)] = annotations(annotation(LockError("no", where=where)))
        assert set(properties) == {"title"}
