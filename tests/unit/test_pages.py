"""The pages are as the code has it: generated tables, links, every rule and exit code, and the flow's commands."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.cli import INTERRUPTED, commands
from envbuild.verify.rules.catalogue import TITLES
from tests.fakes.registry import FakeRegistry
from tests.pages import DOCS, GENERATED, render
from tests.running import run_envbuild
from tests.unit.paged import make_site

ROOT = Path(__file__).parents[2]
LOCAL = ("--offline", "--find-links", "wheels", "--base", "base")
ENDS: dict[int, list[str]] = {
    0: ["lock", "manifest.json", *LOCAL, "--out", "lock"],
    2: ["verify", "host"],
    10: ["from-manifest", "broken.json", "--dry-run"],
    11: ["from-manifest", "future.json", "--dry-run"],
    12: ["lock", "manifest.json", *LOCAL, "--extra", "server", "--out", "lock"],
    13: ["from-manifest", "hostile.json", "--offline", "--find-links", "hostile", "--base", "base", "--out", "image"],
    15: ["from-manifest", "manifest.json", *LOCAL, "--out", "image", "--stamp", "absent"],
    16: ["verify", "manifest.json", "newer.json"],
}
"""A command for each exit code that needs neither a registry nor an engine nor a signal."""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The folder of these commands, as the working directory."""
    make_site(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, value in {"ENVBUILD_CACHE": str(tmp_path / "cache"), "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize("page", GENERATED)
def test_generated_tables_are_up_to_date(page):
    """`python -m tests.pages --write` writes them."""
    text = (DOCS / page).read_text()
    assert render(page, text) == text


def test_a_command_ends_with_each_exit_code(site, capsys):
    tried = {1, 14, 17, INTERRUPTED}
    assert set(ENDS) | tried == set(commands.EXIT_CODES)
    for code, arguments in ENDS.items():
        assert commands.run(arguments) == code, capsys.readouterr()


def test_a_registry_without_the_image_ends_with_14(site, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(site))
    with FakeRegistry() as registry:
        assert commands.run(["verify", "manifest.json", f"{registry.host}/ml/churn:7"]) == 14


def test_without_an_engine_it_ends_with_17(site):
    """In a process of its own, as Docker's library leaves its socket open."""
    arguments = ["from-manifest", "manifest.json", *LOCAL, "--builder", "docker", "--out", "image"]
    done = run_envbuild(*arguments, cwd=site, env=os.environ | {"DOCKER_HOST": "unix:///run/nothing.sock"})
    assert (done.returncode, done.stdout) == (17, ""), done.stderr


def test_a_closed_pipe_ends_it_with_1():
    program = f'{sys.executable} -m envbuild capture --script | head -n 1 >/dev/null; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_an_interrupted_command_ends_with_130(tmp_path):
    command, env = [sys.executable, "-m", "envbuild", "convert", "-"], os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdin is not None
        process.stdin.write(b"{" + b" " * (1 << 17))  # more than a pipe holds: it is being read by now
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.decode().strip()) == (INTERRUPTED, "interrupted")


def test_each_rule_of_the_code_has_a_title_or_a_row():
    pages = "".join(
        (DOCS / name).read_text() for name in ("findings.md", "serving.md", "server.md", "artifact-registry.md")
    )
    documented = set(TITLES) | set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", pages))
    assert set(rules_of_code()) - documented == set()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", it.lower()).replace(" ", "-") for it in headings}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))], ids=lambda it: it.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def rules_of_code() -> Iterator[str]:
    """The names of rules that the program gives, be it by `rule=` or to a function that takes a rule."""
    paths = [path for name in ("verify", "serve", "local", "cli") for path in (ROOT / "envbuild" / name).rglob("*.py")]
    texts = {path: text for path in paths if "rule" in (text := path.read_text())}
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): list(ast.walk(ast.parse(it)))
        for path, it in texts.items()
    }
    taking = {f"{name}.{it}" for name, nodes in modules.items() for it in taking_rules(nodes)}
    for name, nodes in modules.items():
        known, names = constants(nodes), imports(nodes)
        for call in (it for it in nodes if isinstance(it, ast.Call)):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            values = [it.value for it in call.keywords if it.arg == "rule"]
            values += call.args[:1] if {f"{name}.{called}", names.get(called)} & taking else []
            for value in values:
                yield from known.get(value.id, ()) if isinstance(value, ast.Name) else texts_of(value)


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
