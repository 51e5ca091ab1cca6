"""The files of a base image, and what its loader reads of them; kept by the base's digest once they were read."""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from envbuild.cache import read_entry, write_entry
from envbuild.oci.rootfs import Node, Tree, contents, read_tree
from envbuild.recipe import Base
from envbuild.verify.cache import read_cache
from envbuild.verify.elf import Elf, read_elf

_FORMAT = 1
"""Raised whenever other facts would be read from the same bytes."""
_LIBRARY = re.compile(r".*\.so(\.[\w.]+)?")
_CACHE = "etc/ld.so.cache"
_IN_MEMORY = 16 << 20
_LARGEST_CACHE = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an environment stands on."""

    tree: Tree
    libraries: Mapping[str, Elf]
    """By path without links and without the leading slash: `usr/lib/x86_64-linux-gnu/libz.so.1.2.13`."""
    cache: Mapping[str, str]
    """/etc/ld.so.cache."""


def read_ground(base: Base, facts: Path) -> Ground:
    """Read a base's layers in bounded memory; `facts` is a folder that remembers them. BaseError as `read_tree`."""
    name = f"base-{base.digest.hex}-{_FORMAT}.json"
    if found := read_entry(facts, name, _decode):
        return found
    ground = _read(base)
    write_entry(facts, name, _encode(ground))
    return ground


def _read(base: Base) -> Ground:
    tree = read_tree(base.image, base.name)
    libraries: dict[str, Elf] = {}
    cache: dict[str, str] = {}
    for path, read in _contents(base, tree):
        if path == _CACHE:
            cache = read_cache(read.read(_LARGEST_CACHE), base.target.machine)
        elif elf := read_elf(lambda start, size, file=read: _read_at(file, start, size)):  # type: ignore[misc]
            libraries[path] = elf
    return Ground(tree=tree, libraries=libraries, cache=cache)


def _contents(base: Base, tree: Tree) -> Iterator[tuple[str, IO[bytes]]]:
    """Every library, the interpreter and the loader's cache."""
    wanted = {base.python_path.lstrip("/"), _CACHE, *filter(_LIBRARY.fullmatch, tree)}
    for path, _, content in contents(base.image, tree, wanted, base.name):
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            shutil.copyfileobj(content, file, 1 << 20)
            file.seek(0)
            yield path, cast("IO[bytes]", file)


def _read_at(file: IO[bytes], start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _encode(ground: Ground) -> dict[str, Any]:
    nodes = {path: [node.kind, node.target] for path, node in ground.tree.items()}
    libraries = {path: elf.to_list() for path, elf in ground.libraries.items()}
    return {"nodes": nodes, "libraries": libraries, "cache": dict(ground.cache)}


def _decode(value: Any) -> Ground:
    return Ground(
        tree={path: Node(kind, target=target) for path, (kind, target) in value["nodes"].items()},
        libraries={path: Elf.from_list(elf) for path, elf in value["libraries"].items()},
        cache={str(name): str(path) for name, path in value["cache"].items()},
    )
