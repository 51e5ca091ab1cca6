"""The files of a base image, and what its loader reads of them; kept by the base's digest once they were read."""

import gzip
import json
import posixpath
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, BinaryIO, cast

from envbuild.base.tree import Node, Tree, read_tree
from envbuild.files import write_whole
from envbuild.oci.image import LAYER_GZIP, Layer, canonical_json
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
    known = facts / f"base-{base.digest.hex}-{_FORMAT}.json"
    try:
        return _from_json(known.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ground = _read(base)
    write_whole(known, _to_json(ground))
    return ground


def _read(base: Base) -> Ground:
    tree = read_tree(base.image, base.name)
    libraries: dict[str, Elf] = {}
    cache: dict[str, str] = {}
    # The tree says which of these are visible; of the layers that have a path the last one has its content.
    for path, read in _contents(base):
        if path == _CACHE:
            cache = read_cache(read.read(_LARGEST_CACHE), base.target.machine)
        elif elf := read_elf(lambda start, size, file=read: _read_at(file, start, size)):  # type: ignore[misc]
            libraries[path] = elf
        else:
            libraries.pop(path, None)
    visible = {path: elf for path, elf in libraries.items() if path in tree and tree[path].kind == "file"}
    return Ground(tree=tree, libraries=visible, cache=cache if _CACHE in tree else {})


def _contents(base: Base) -> Iterator[tuple[str, IO[bytes]]]:
    """Every library, the interpreter and the loader's cache, of all layers, lowest first."""
    program = base.python_path.lstrip("/")
    for layer in base.image.layers:
        with _archive(layer) as archive:
            for member in archive:
                path = posixpath.normpath(member.name).lstrip("/")
                wanted = path in (program, _CACHE) or _LIBRARY.fullmatch(path)
                content = archive.extractfile(member) if wanted and member.isreg() else None
                if content:
                    with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
                        shutil.copyfileobj(content, file, 1 << 20)
                        file.seek(0)
                        yield path, cast("IO[bytes]", file)


@contextmanager
def _archive(layer: Layer) -> Iterator[tarfile.TarFile]:
    with layer.open() as blob, ExitStack() as stack:
        packed = layer.descriptor.media_type == LAYER_GZIP
        file: BinaryIO | gzip.GzipFile = stack.enter_context(gzip.GzipFile(fileobj=blob)) if packed else blob
        yield stack.enter_context(tarfile.open(fileobj=cast("IO[bytes]", file), mode="r|", bufsize=1 << 20))


def _read_at(file: IO[bytes], start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _to_json(ground: Ground) -> bytes:
    nodes = {path: [node.kind, node.target] for path, node in ground.tree.items()}
    libraries = {path: elf.to_list() for path, elf in ground.libraries.items()}
    return canonical_json({"nodes": nodes, "libraries": libraries, "cache": dict(ground.cache)})


def _from_json(data: bytes) -> Ground:
    value = json.loads(data)
    return Ground(
        tree={path: Node(kind, target=target) for path, (kind, target) in value["nodes"].items()},
        libraries={path: Elf.from_list(elf) for path, elf in value["libraries"].items()},
        cache={str(name): str(path) for name, path in value["cache"].items()},
    )
