"""Bytecode that serving's Python would take in place of training's sources, and which is not of these (PEP 552, 3147).

What is seen is the header. Python itself holds time and size, or a checked hash, against the source; of unchecked
bytecode the hash is held here.
"""

import posixpath
import re
from collections.abc import Iterator

from envbuild.diff.bytecode import is_of, is_unchecked
from envbuild.oci.rootfs import Node, resolve
from envbuild.verify.choices import Pair, node_at, same

_FOLDER = "__pycache__"
_NAME = re.compile(r"([^./]+)\.(?:[^/]+\.)?pyc")


def foreign_bytecode(pair: Pair) -> Iterator[tuple[str, str]]:
    """Bytecode, and links to some, that serving adds or changes, each with the source that it would stand for."""
    prefix = _prefix(pair)
    for path, node in pair.after.tree.items():
        old = pair.before.tree.get(path)
        if node.kind == "directory" or (old and same(old, node)):
            continue
        source = _source(path, prefix)
        if source is not None and (node.kind == "link" or _is_foreign(pair, path, node, source)):
            yield path, source


def _prefix(pair: Pair) -> str:
    """Where all bytecode is looked for instead, without the leading slash; empty for beside each source."""
    value = pair.serve.variables.get("PYTHONPYCACHEPREFIX", "")
    return (resolve(pair.after.tree, posixpath.join("/", pair.serve.folder, value)) or "/")[1:] if value else ""


def _source(path: str, prefix: str) -> str | None:
    """The source, or for a link the folder of sources, that a path is the bytecode of; None where it is of none."""
    folder, _, name = path.rpartition("/")
    match = _NAME.fullmatch(name)
    if prefix and path.startswith(f"{prefix}/"):
        below = path.removeprefix(f"{prefix}/")
        return posixpath.join(posixpath.dirname(below), f"{match[1]}.py") if match else below
    if name == _FOLDER:
        return folder
    if match and posixpath.basename(folder) == _FOLDER:
        return posixpath.join(posixpath.dirname(folder), f"{match[1]}.py")
    return None


def _is_foreign(pair: Pair, path: str, node: Node, source: str) -> bool:
    there = node_at(pair.after.tree, source)
    if there is None or not is_unchecked(node.stamp):
        return False
    known = is_of(node.stamp, there.stamp)
    return path not in pair.vouched if known is None else not known
