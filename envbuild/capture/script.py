"""Capture as one file that any Python from 3.7 on can run alone: the modules of this package, joined."""

from __future__ import annotations

import ast
from pathlib import Path

_PACKAGE = "envbuild.capture."
_WAYS_IN = ("callback", "program")
_DOCSTRING = '''"""Record what the running interpreter has, as a training manifest.

One file, standard library only, Python 3.7 and later: `python capture.py --out manifest.json` works without envbuild.
Imported by a training program it offers `capture()`, `keras_callback()` and `golden_sample()`.
"""
'''
_END = '\n\nif __name__ == "__main__":\n    run_alone()\n'


def script() -> str:
    """Join the modules that callback and command line need, each after those that it imports from."""
    folder = Path(__file__).parent
    sources: dict[str, str] = {}
    for name in _WAYS_IN:
        _collect(name, folder, sources)
    imports = sorted({line for source in sources.values() for line in _imports(source)})
    bodies = "".join("\n\n" + _body(source).strip("\n") + "\n" for source in sources.values())
    return _DOCSTRING + "\nfrom __future__ import annotations\n\n" + "\n".join(imports) + "\n" + bodies + _END


def _collect(name: str, folder: Path, sources: dict[str, str]) -> None:
    if name in sources:
        return
    source = folder.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(_PACKAGE):
            _collect(str(node.module)[len(_PACKAGE) :], folder, sources)
    sources[name] = source


def _imports(source: str) -> list[str]:
    """List the imports from the standard library at the top of a module, one for each line."""
    return [
        line
        for node in ast.parse(source).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_ours(node)
        for line in _lines(node)
    ]


def _lines(node: ast.Import | ast.ImportFrom) -> list[str]:
    head = "from %s import " % node.module if isinstance(node, ast.ImportFrom) else "import "
    return [head + alias.name + (" as " + alias.asname if alias.asname else "") for alias in node.names]


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    module = str(getattr(node, "module", ""))
    return module == "__future__" or module.startswith(_PACKAGE)


def _body(source: str) -> str:
    """Return a module without its docstring and its imports at the top."""
    lines = source.split("\n")
    for number, node in reversed(list(enumerate(ast.parse(source).body))):
        docstring = number == 0 and isinstance(node, ast.Expr)
        if docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines)
