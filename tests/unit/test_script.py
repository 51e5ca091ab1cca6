"""The standalone file: what it is made of, and that it is whole."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import envbuild
from envbuild.capture import script
from tests.unit.capturing import script_path

PACKAGE = Path(envbuild.__file__).parent / "capture"
OFFERED = ("capture", "golden_sample", "keras_callback")


def sources() -> dict[str, str]:
    """The modules that are joined, by path."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "script.py"))
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in paths}


def defined(source: str) -> set[str]:
    """The names that a module's own statements make at its top."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= stored(node) - {name for part in ast.walk(node) for name in of_comprehension(part)}
    return names


def stored(node: ast.AST) -> set[str]:
    found = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in found if isinstance(part.ctx, ast.Store)}


def of_comprehension(node: ast.AST) -> set[str]:
    return stored(node.target) if isinstance(node, ast.comprehension) else set()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=script_path().parent)


def test_no_two_modules_define_the_same_name():
    counted = Counter(name for source in sources().values() for name in defined(source))
    assert [name for name, count in counted.items() if count > 1] == []


def test_modules_import_each_other_in_the_one_form_that_can_be_joined():
    for name, source in sources().items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("envbuild") for alias in node.names), name
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("envbuild"):
                assert node.level == 0, name
                assert [alias.asname for alias in node.names] == [None] * len(node.names), name


def test_it_is_syntax_of_python_37():
    ast.parse(script(), feature_version=(3, 7))
    assert re.findall(r"""\bf["'].*\{[^{}"']*=\}.*""", script()) == []


def test_it_uses_nothing_that_came_after_python_37():
    nodes = list(ast.walk(ast.parse(script())))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    modules = {line.split()[1] for line in script().splitlines() if line.startswith(("import ", "from "))}
    assert (
        attributes & {"removeprefix", "removesuffix", "unparse", "is_relative_to", "with_stem", "cached_property"}
        == set()
    )
    assert keywords & {"missing_ok", "dirs_exist_ok", "strict", "encoding_errors", "slots", "kw_only"} == set()
    assert modules & {"graphlib", "zoneinfo", "tomllib", "importlib.metadata"} == set()


def test_every_module_but_the_joiner_is_in_it_with_its_comments():
    text = script()
    lines, names = set(text.splitlines()), defined(text)
    for name, source in sources().items():
        assert [line for line in source.splitlines() if line.lstrip().startswith("#") and line not in lines] == [], name
        assert defined(source) - names == set(), name


def test_its_imports_are_sorted_each_on_a_line_and_none_is_of_the_package():
    text = script()
    nodes = [node for node in ast.parse(text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = [ast.unparse(node) for node in nodes]
    assert lines[0] == "from __future__ import annotations"
    assert lines[1:] == sorted(set(lines[1:]))
    assert "envbuild.capture" not in "\n".join(lines)
    assert {len(node.names) for node in nodes} == {1}


def test_no_line_of_it_names_a_module_of_the_package_as_code():
    assert "from envbuild" not in script()
    assert "import envbuild" not in script()


def test_it_is_the_same_every_time():
    assert script() == script()
    assert script().endswith("    run_alone()\n")


def test_it_runs_alone_without_the_environment_and_without_site():
    done = run("-I", "-S", "-W", "error", str(script_path()))
    assert (done.returncode, done.stderr) == (0, "")
    assert '"distributions": []' in done.stdout


def test_as_a_module_it_offers_what_the_package_offers():
    code = f"import capture; print(*(callable(getattr(capture, name)) for name in {OFFERED!r}))"
    done = run("-W", "error", "-c", code)
    assert (done.stdout, done.stderr) == ("True True True\n", "")
    assert all(callable(getattr(envbuild, name)) for name in OFFERED)
