"""Capture: the running interpreter's environment as a training manifest.

Standard library only, on Python 3.7 and later, since `script()` joins these modules to one file that runs anywhere.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = ["capture", "golden_sample", "keras_callback", "script"]

_DOCSTRING = '''"""Record the running interpreter's environment as a training manifest.

One file, standard library only, Python 3.7 and later: `python capture.py --out manifest.json` works without envbuild.
A training program can import it and call `capture()`, `keras_callback()` and `golden_sample()`.
"""
'''
_END = '\n\nif __name__ == "__main__":\n    run_alone()\n'


def script() -> str:
    """Join the modules that the command line needs, each after those that it imports from."""
    return joined(Path(__file__).parent, "program", _DOCSTRING, _END)


def joined(folder: Path, name: str, docstring: str, end: str) -> str:
    """Join a module of the package in `folder` and all that it imports from the package, each after its imports."""
    imports, bodies = set[str](), dict[str, str]()
    _add_module(name, folder, imports, bodies)
    head = docstring + "\nfrom __future__ import annotations\n\n" + "\n".join(sorted(imports)) + "\n"
    return head + "".join("\n\n" + body.strip("\n") + "\n" for body in bodies.values()) + end


def _add_module(name: str, folder: Path, imports: set[str], bodies: dict[str, str]) -> None:
    """Add a module's imports and its body, without its docstring and what only type checkers read."""
    if name in bodies:
        return
    package, source = "envbuild.%s." % folder.name, (folder / name).with_suffix(".py").read_text("utf-8")
    lines, statements = source.split("\n"), ast.parse(source).body
    removed = statements[:1]
    for node in statements[1:]:
        module = str(getattr(node, "module", ""))
        if isinstance(node, ast.ImportFrom) and module.startswith(package):
            _add_module(module[len(package) :], folder, imports, bodies)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            head = "from %s import " % module if isinstance(node, ast.ImportFrom) else "import "
            names = [alias.name + (" as " + alias.asname if alias.asname else "") for alias in node.names]
            imports.update(head + name for name in names if module != "__future__" and name != "TYPE_CHECKING")
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        removed.append(node)
    for node in reversed(removed):
        del lines[node.lineno - 1 : node.end_lineno]
    bodies[name] = "\n".join(lines)


def _lazy(module: str, name: str) -> Any:
    """Return a function whose module is imported at the first call: every command imports this package, few capture."""

    def call(*args: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*args, **options)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = "Call `%s.%s`, which documents the arguments." % (module, name)
    return call


if TYPE_CHECKING:
    from envbuild.capture.golden import golden_sample
    from envbuild.capture.record import capture, keras_callback
else:
    capture = _lazy("envbuild.capture.record", "capture")
    golden_sample = _lazy("envbuild.capture.golden", "golden_sample")
    keras_callback = _lazy("envbuild.capture.record", "keras_callback")
