"""Modules that the program in a folder imports, as its sources say."""

import ast
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_MOST_SOURCES, _LONGEST = 2000, 1 << 20
"""Sources that are looked at, and bytes of each: the code of a server is much smaller."""
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages"})


def module_name(path: str) -> str:
    """Return the name under which a file or folder of code is imported: `features` of `src/features.py`."""
    return Path(path).name.removesuffix(".py")


def find_imported(folder: Path, name: str) -> list[str]:
    """Return the files and folders of a module's name that other sources below a folder import, from that folder."""
    sources = list(islice(_sources(folder), _MOST_SOURCES))
    places = [it.relative_to(folder) for it in sources]
    called = {it for place in places for it in (place, *place.parents) if it.name in (name, f"{name}.py")}
    if not called:
        return []
    importing = [place for place, source in zip(places, sources, strict=True) if name in _imported(source, name)]
    return sorted(str(it) for it in called if any(it not in (place, *place.parents) for place in importing))


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, without those of environments and of hidden folders."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            it
            for it in folders
            if it not in _FOREIGN and not it.startswith(".") and not Path(parent, it, "pyvenv.cfg").exists()
        )
        yield from (Path(parent, it) for it in sorted(files) if it.endswith(".py"))


def _imported(source: Path, name: str) -> set[str]:
    """Return the parts of all names that a source imports; none of one that does not have the text `name`."""
    try:
        with source.open("rb") as file:
            data = file.read(_LONGEST)
        nodes = list(ast.walk(ast.parse(data))) if name.encode() in data else []
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [it.name for it in node.names]
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return {part for it in found for part in it.split(".")}
