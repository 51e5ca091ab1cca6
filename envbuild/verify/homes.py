"""Which installation an environment says that it is of: its Python finds the standard library by that (PEP 405)."""

import posixpath
import re
from collections.abc import Iterator

from envbuild.capture.reading import decoded
from envbuild.oci.rootfs import Tree, resolve
from envbuild.verify.choices import Pair, fault, node_at
from envbuild.verify.findings import Finding

_PYTHON = re.compile(r"(?:.*/)?bin/python3?[\d.]*")
_FILE = "pyvenv.cfg"


def home_findings(pair: Pair) -> Iterator[Finding]:
    """Whether training's Pythons still belong to the installations that they belonged to."""
    before, after = pair.before.tree, pair.after.tree
    named = {it[1:] for it in pair.train.entries("PATH") if node_at(before, f"{it[1:]}/python3")}
    folders = named | {posixpath.dirname(it) for it in before if _PYTHON.fullmatch(it) and it in after}
    moved = [it for it in sorted(folders) if _home(before, it) != _home(after, it)]
    if moved:
        one, other = (_home(tree, moved[0]) for tree in (before, after))
        says = (
            f"by {_FILE} the Python in /{moved[0]} is of {other or 'no other'} in serving, and of {one or 'no other'}"
        )
        todo = f"leave training's {_FILE} as it is, and add none"
        yield fault(_FILE, f"{says} in training", todo, values=(one or "nothing", other or "nothing"))


def _home(tree: Tree, folder: str) -> str:
    """The installation's folder, and whether its packages count; empty where no file makes an environment.

    It is looked for beside the program and in the folder above (CPython, `getpath` and `site`).
    """
    for place in (folder, posixpath.dirname(folder)):
        node = node_at(tree, posixpath.join(place, _FILE))
        if node and node.kind == "file":
            pairs = [it.partition("=")[::2] for it in decoded(node.text).splitlines()]
            rows = [(key.strip().lower(), value.strip()) for key, value in pairs]
            home = next((value for key, value in rows if key == "home"), "")
            system = dict(rows).get("include-system-site-packages", "true").lower() == "true"
            return f"{resolve(tree, home) or home or 'nothing'}{' with its packages' if system else ''}"
    return ""
