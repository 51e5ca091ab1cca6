"""A page for each exit code and finding: none is missing, none is left over, and their commands print what they show."""

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.cli import INTERRUPTED, commands
from envbuild.verify.rules.catalogue import TITLES
from tests.fakes.registry import FakeRegistry
from tests.tools.shown import agree, shown
from tests.unit.paged import make_site

ROOT = Path(__file__).parents[2]
CODES, FINDINGS = ROOT / "docs" / "exit-codes", ROOT / "docs" / "findings"
PAGES = {int(path.stem): path for path in CODES.glob("[0-9]*.md")}
HOST = "127.0.0.1:5000"
"""The registry of a page; it has nothing."""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The folder of the pages, as the working directory."""
    make_site(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, value in {"ENVBUILD_CACHE": str(tmp_path / "cache"), "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def words(command: str) -> tuple[dict[str, str], list[str]]:
    """The variables before a command, and its arguments."""
    parts = shlex.split(command)
    start = parts.index("envbuild")
    return dict(part.split("=", 1) for part in parts[:start]), parts[start + 1 :]


def test_each_exit_code_has_its_page_and_stands_in_the_list():
    known = {code for code, _ in commands._exit_codes()}
    assert set(PAGES) == known
    index = (CODES / "README.md").read_text()
    for code, page in PAGES.items():
        assert f"| [{code}]({code}.md) |" in index
        assert page.read_text().startswith(f"# Exit code {code}: ")
        assert len(list(shown(page.read_text()))) == 1


@pytest.mark.parametrize("code", sorted(set(PAGES) - {1, 14, 17, INTERRUPTED}))
def test_a_pages_command_ends_with_its_code_and_prints_what_is_shown(code, site, capsys, monkeypatch):
    [example] = shown(PAGES[code].read_text())
    variables, arguments = words(example.command)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert commands.run(arguments) == code
    out, err = capsys.readouterr()
    text = out + err if code == 16 else err + out
    assert agree(example.lines, text.splitlines()), text


def test_a_registry_without_the_image_ends_with_14(site, capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(site))
    [example] = shown(PAGES[14].read_text())
    with FakeRegistry() as registry:
        _, arguments = words(example.command.replace(HOST, registry.host))
        assert commands.run(arguments) == 14
        text = "".join(capsys.readouterr()).replace(registry.host, HOST)
    assert agree(example.lines, text.splitlines()), text


def test_without_an_engine_it_ends_with_17(site):
    """In a process of its own, as Docker's library leaves its socket open."""
    [example] = shown(PAGES[17].read_text())
    variables, arguments = words(example.command)
    env = os.environ | variables | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "envbuild", *arguments], cwd=site, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (17, "")
    assert agree(example.lines, done.stderr.splitlines()), done.stderr


def test_a_reader_that_goes_ends_it_with_1():
    [example] = shown(PAGES[1].read_text())
    head = f'{shlex.quote(sys.executable)} -m {example.command}; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", head], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*example.lines, "1"]


def test_an_interrupted_command_ends_with_130(tmp_path):
    """By a signal of our own, while it waits for the record, instead of after two seconds."""
    [example] = shown(PAGES[INTERRUPTED].read_text())
    assert example.command.endswith(" envbuild convert -")
    command, env = [sys.executable, "-m", "envbuild", "convert", "-"], os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdin is not None
        process.stdin.write(b"{" + b" " * (1 << 17))  # more than a pipe holds: it is being read by now
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said.decode().splitlines()) == (INTERRUPTED, list(example.lines))


def headings() -> list[str]:
    pages = (path.read_text() for path in sorted(FINDINGS.glob("*.md")) if path.stem != "README")
    return [line.removeprefix("## ") for page in pages for line in page.splitlines() if line.startswith("## ")]


def test_each_rule_has_one_section_that_says_what_why_and_what_to_do():
    found = headings()
    assert sorted(found) == sorted(set(found)), "a rule is told twice"
    assert set(found) == set(TITLES) | set(rules_of_code())
    for page in FINDINGS.glob("[!R]*.md"):
        for section in page.read_text().split("\n## ")[1:]:
            marks = re.findall(r"^- \*\*(.+?):\*\* \S", section, re.MULTILINE)
            assert marks == ["Looked at", "Why", "Do"], section


def test_the_list_of_findings_names_each_page():
    index = (FINDINGS / "README.md").read_text()
    assert set(re.findall(r"^\| \[([\w-]+\.md)\]\(\1\)", index, re.MULTILINE)) == {
        path.name for path in FINDINGS.glob("[!R]*.md")
    }


@pytest.mark.parametrize("folder", [CODES, FINDINGS], ids=lambda it: it.name)
def test_what_pages_link_to_is_there(folder):
    for page in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (folder / target).exists(), f"{page.name}: {target}"


def rules_of_code() -> Iterator[str]:
    """The names of rules that the program gives, be it by `rule=` or to a function that takes a rule."""
    paths = [path for name in ("verify", "serve", "local", "cli") for path in (ROOT / "envbuild" / name).rglob("*.py")]
    texts = {path: text for path in paths if "rule" in (text := path.read_text())}
    modules = {name_of(path): list(ast.walk(ast.parse(text))) for path, text in texts.items()}
    taking = {f"{name}.{it}" for name, nodes in modules.items() for it in taking_rules(nodes)}
    for name, nodes in modules.items():
        known, names = constants(nodes), imports(nodes)
        for call in (it for it in nodes if isinstance(it, ast.Call)):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            values = [it.value for it in call.keywords if it.arg == "rule"]
            values += call.args[:1] if {f"{name}.{called}", names.get(called)} & taking else []
            for value in values:
                yield from known.get(value.id, ()) if isinstance(value, ast.Name) else texts_of(value)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def taking_rules(nodes: list[ast.AST]) -> Iterator[str]:
    """The functions whose first argument is a rule's name."""
    for node in (it for it in nodes if isinstance(it, ast.FunctionDef)):
        if [it.arg for it in node.args.args if it.arg != "self"][:1] == ["rule"]:
            yield node.name


def imports(nodes: list[ast.AST]) -> dict[str, str]:
    """The names that a module takes from others, and what they are there."""
    found = [(it, node.module) for node in nodes if isinstance(node, ast.ImportFrom) for it in node.names]
    return {it.asname or it.name: f"{module}.{it.name}" for it, module in found}


def constants(nodes: list[ast.AST]) -> dict[str, list[str]]:
    """The texts that a name is given anywhere in a module."""
    found: dict[str, list[str]] = {}
    for node in (it for it in nodes if isinstance(it, ast.Assign)):
        pairs = [(node.targets[0], node.value)]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
        for target, value in pairs:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).extend(texts_of(value))
    return found


def texts_of(value: ast.AST) -> list[str]:
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []
