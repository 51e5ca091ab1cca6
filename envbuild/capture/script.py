"""Capture as one file that any Python from 3.7 on can run alone: the modules of this package, joined."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

_WAYS_IN = ("callback", "program")
_TYPES = "TYPE_CHECKING"
_DOCSTRING = '''"""Record what the running interpreter has, as a training manifest.

One file, standard library only, Python 3.7 and later: `python capture.py --out manifest.json` works without envbuild.
Imported by a training program it offers `capture()`, `keras_callback()` and `golden_sample()`.
"""
'''
_END = '\n\nif __name__ == "__main__":\n    run_alone()\n'


def script() -> str:
    """Join the modules that callback and command line need, each after those that it imports from."""
    return joined(Path(__file__).parent, _WAYS_IN, _DOCSTRING, _END)


def joined(folder: Path, ways_in: Sequence[str], docstring: str, end: str) -> str:
    """Join the modules of a package in `folder` that these ones need, each after those that it imports from."""
    package, sources = "envbuild.%s." % folder.name, dict[str, str]()
    for name in ways_in:
        _collect(name, package, folder, sources)
    imports = sorted({line for source in sources.values() for line in _imports(source, package)})
    bodies = "".join("\n\n" + _body(source).strip("\n") + "\n" for source in sources.values())
    return docstring + "\nfrom __future__ import annotations\n\n" + "\n".join(imports) + "\n" + bodies + end


def _collect(name: str, package: str, folder: Path, sources: dict[str, str]) -> None:
    if name in sources:
        return
    source = folder.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(package):
            _collect(str(node.module)[len(package) :], package, folder, sources)
    sources[name] = source


def _imports(source: str, package: str) -> list[str]:
    """List the imports from the standard library at the top of a module, one for each line."""
    return [
        line
        for node in ast.parse(source).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_left_out(node, package)
        for line in _lines(node)
    ]


def _lines(node: ast.Import | ast.ImportFrom) -> list[str]:
    head = "from %s import " % node.module if isinstance(node, ast.ImportFrom) else "import "
    return [head + alias.name + (" as " + alias.asname if alias.asname else "") for alias in node.names]


def _is_left_out(node: ast.Import | ast.ImportFrom, package: str) -> bool:
    module = str(getattr(node, "module", ""))
    return module == "__future__" or module.startswith(package) or [it.name for it in node.names] == [_TYPES]


def _body(source: str) -> str:
    """Return a module without its docstring, its imports at the top, and what only type checkers read."""
    lines = source.split("\n")
    for number, node in reversed(list(enumerate(ast.parse(source).body))):
        docstring = number == 0 and isinstance(node, ast.Expr)
        types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == _TYPES
        if docstring or types or isinstance(node, (ast.Import, ast.ImportFrom)):
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines)
