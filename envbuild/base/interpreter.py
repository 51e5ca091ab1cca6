"""The base's own interpreter, taken out of its layers, so that it runs here: without a container, root or a mount.

Only what it needs to start is taken: the program, the libraries that such programs link, their loader, and the standard
library's sources. They get places of our own choosing, as plain files without links and without any mode but our own;
the base's loader is then started as a program, which takes the libraries from there and from nowhere else.
"""

import platform
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import BaseError, BuildError
from envbuild.image.assembler import Compiling
from envbuild.image.bytecode.compiler import Build, Interpreter, Store, Unavailable, ask_build
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.rootfs import DAMAGED, Tree, contents, read_tree, resolve
from envbuild.recipe import Base

_FORMAT = 1
"""Raised whenever other files would be taken, or lie elsewhere."""
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_LINKED = re.compile(r"lib(?:c|m|dl|pthread|util|rt|z|expat|crypt|gcc_s|intl|python3(?:\.\d+)?)\.so(?:\.[\w.]+)?")
_CODECS = re.compile(r"lib-dynload/_(?:codecs|multibytecodec)[\w.-]*\.so")
"""Which a source may name in its first line."""
_TESTS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_LARGEST, _MOST = 64 << 20, 512 << 20
"""Bytes: of one file, and of all."""
_HEAD = 16
_FACTS = "facts.json"


def runs_here(machine: str) -> Unavailable | None:
    """Say why the interpreter of a base for `machine` cannot run on this one; None if it may."""
    if sys.platform != "linux" or platform.machine() != machine:
        return Unavailable(why=f"the base's interpreter is for {machine}, and this machine is {platform.machine()}")
    return None


def find_interpreter(base: Base, cache: Path) -> Interpreter | Unavailable:
    """Return the base's interpreter, kept in the cache since it was first needed; BaseError for a damaged base."""
    if reason := runs_here(base.target.machine):
        return reason
    key = Digest.of(canonical_json([_FORMAT, str(base.digest), base.python_path]))
    folder = cache / "interpreters" / key.hex
    return _kept(folder) or _made(base, folder)


def _kept(folder: Path) -> Interpreter | None:
    """What is in the cache, if each file is as it was put there and no other is there: it is about to run."""

    def decode(facts: Any) -> Interpreter:
        if {path: _sha256(folder / path) for path in _files(folder)} != facts["files"]:
            raise ValueError("its files are not what they were")
        texts = (facts["program"], *facts["build"].values(), *facts["lacking"])
        if not all(isinstance(it, str) for it in texts) or f"python/bin/{texts[0]}" not in facts["files"]:
            raise ValueError("what is noted of it is not what is noted of interpreters")
        return Interpreter(
            command=_command(folder, facts["program"]),
            home=folder / "python",
            build=Build.from_dict(facts["build"]),
            lacking=tuple(facts["lacking"]),
        )

    return read_entry(folder, _FACTS, decode)


def _files(folder: Path) -> list[str]:
    """All that lies in an interpreter's folder, links included, but for what is noted of it."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(name for path in paths if (name := str(path.relative_to(folder))) != _FACTS)


def _sha256(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _made(base: Base, folder: Path) -> Interpreter | Unavailable:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as name:
        staged = Path(name) / "interpreter"
        try:
            found = _taken(base, staged)
        except DAMAGED as error:
            todo = "build with --no-bytecode, or give another --base"
            raise BaseError(f"its interpreter cannot be taken out: {error}", where=base.name, todo=todo) from error
        if isinstance(found, Unavailable):
            return found
        if kept := _kept(folder):  # another run was faster
            return kept
        remove(folder)  # what is damaged
        try:
            staged.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(staged)
    kept = _kept(folder)
    if kept is None:
        raise BaseError(
            "the base's interpreter is not in the cache after it was written", where=str(folder), todo="run again"
        )
    return kept


def _taken(base: Base, folder: Path) -> Unavailable | None:
    tree = read_tree(base.image, base.name)
    program = base.python_path.rpartition("/")[2]
    wanted = _wanted(tree, base)
    if not {"ld.so", f"python/bin/{program}"} <= {place for places in wanted.values() for place in places}:
        return Unavailable(why="the base has no loader where programs look for it")
    sources = _Sources({}, {})
    _take(tree, base, wanted, folder, sources)
    command = _command(folder, program)
    build = ask_build(command, folder / "python")
    if isinstance(build, Unavailable):
        return build
    facts = {
        "build": build.to_dict(),
        "program": program,
        "lacking": _lacking(tree, base, build, sources),
        "files": {path: _sha256(folder / path) for path in _files(folder)},
    }
    write_entry(folder, _FACTS, facts)
    return None


def _command(folder: Path, program: str) -> tuple[str, ...]:
    loader = (str(folder / "ld.so"), "--inhibit-cache", "--library-path", str(folder / "libs"))
    return (*loader, str(folder / "python" / "bin" / program))


def _home(base: Base) -> str:
    """`usr/`: what the base's interpreter has as its prefix, relative to the root."""
    home = posixpath.dirname(posixpath.dirname(base.python_path)).strip("/")
    return f"{home}/" if home else ""


def _wanted(tree: Tree, base: Base) -> dict[str, list[str]]:
    """Places for the files that are taken, by their paths in the image, which have no links in them any more."""
    found: dict[str, list[str]] = {base.python_path[1:]: [f"python/bin/{base.python_path.rpartition('/')[2]}"]}
    if loader := resolve(tree, _LOADERS[base.target.machine]):
        found.setdefault(loader[1:], []).append("ld.so")
    for name, path in _libraries(tree, base).items():
        found.setdefault(path, []).append(f"libs/{name}")
    home, library = _home(base), _library(base)
    for path in tree:
        inside = library.match(path)
        if inside and tree[path].kind == "file" and (path.endswith(".py") or _CODECS.fullmatch(path[inside.end() :])):
            found.setdefault(path, []).append(f"python/{path.removeprefix(home)}")
    return found


def _library(base: Base) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(_home(base))}lib(?:64)?/python{re.escape(base.target.python_minor)}/")


def _libraries(tree: Tree, base: Base) -> dict[str, str]:
    """Libraries by name, from where the loader would take them."""
    candidates = sorted(path for path in tree if _LINKED.fullmatch(path.rpartition("/")[2]))
    found: dict[str, str] = {}
    tops, places = dict.fromkeys((_home(base), "", "usr/")), (f"{base.target.machine}-linux-gnu", "")
    folders = [f"/{top}{lib}/{place}".rstrip("/") for top in tops for lib in ("lib64", "lib") for place in places]
    # The interpreter's own installation comes first, and 64 bits before what may have 32.
    for folder in dict.fromkeys(place for folder in folders if (place := resolve(tree, folder))):
        for path in candidates:
            above, _, name = path.rpartition("/")
            target = resolve(tree, f"/{path}") if f"/{above}" == folder else None
            if target and tree[target[1:]].kind == "file":
                found.setdefault(name, target[1:])
    return found


@dataclass(slots=True)
class _Sources:
    """What was taken, and what decides whether imports would use the bytecode that a base has."""

    states: dict[str, tuple[int, int]]
    """Time of change and size of sources, by path."""
    heads: dict[str, bytes]
    """The first bytes of bytecode files."""
    size: int = 0
    """Bytes that were taken."""


def _take(tree: Tree, base: Base, wanted: Mapping[str, list[str]], folder: Path, sources: _Sources) -> None:
    """Write the files that are wanted, and remember how the standard library's bytecode begins."""
    library = _library(base)
    bytecode = {path for path in tree if path.endswith(".pyc") and library.match(path)}
    for path, member, content in contents(base.image, tree, bytecode | wanted.keys(), base.name):
        if path in bytecode:
            sources.heads[path] = content.read(_HEAD)
            continue
        sources.size += member.size * len(wanted[path])
        if member.size > _LARGEST or sources.size > _MOST:
            raise ValueError(f"{path} has {member.size} bytes, of {sources.size} in all")
        data = content.read()
        sources.states[path] = (int(member.mtime), member.size)
        for place in wanted[path]:
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o644 if target.suffix == ".py" else 0o755)


def _lacking(tree: Tree, base: Base, build: Build, sources: _Sources) -> list[str]:
    """Sources of the standard library that imports would compile each time, and whose folders we may write into."""
    home, library = _home(base), _library(base)
    found = []
    for path in sorted(sources.states):
        folder, _, name = path.rpartition("/")
        if not library.match(path) or not name.endswith(".py") or _TESTS & set(folder.split("/")):
            continue
        bytecode = f"{folder}/__pycache__/{name.removesuffix('.py')}.{build.cache_tag}.pyc"
        used = _used(sources.heads.get(bytecode, b""), build, sources.states[path])
        if not used and all(_plain(tree, parent) for parent in _parents(bytecode)):
            found.append(path.removeprefix(home))
    return found


def _used(head: bytes, build: Build, state: tuple[int, int]) -> bool:
    """Whether imports take bytecode for a source (PEP 552); of one by hash it is believed."""
    if head[:4] != bytes.fromhex(build.magic) or len(head) < _HEAD:
        return False
    by_hash = head[4] & 1
    stamp = (state[0] & 0xFFFFFFFF).to_bytes(4, "little") + (state[1] & 0xFFFFFFFF).to_bytes(4, "little")
    return bool(by_hash) or head[8:16] == stamp


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _plain(tree: Tree, folder: str) -> bool:
    """Whether a layer that brings this folder leaves it as it is: our layers know one mode and one owner."""
    node = tree.get(folder)
    return node is None or (node.kind, node.mode, node.owner) == ("directory", 0o755, (0, 0))


def compiling_on(base: Base, cache: Path, todo: str, told: Callable[[int], object] = lambda _count: None) -> Compiling:
    """Say by what sources are compiled; what was compiled, and the interpreter, are kept in `cache`.

    BuildError, with `todo`, where the base's interpreter cannot run here; from `find` where it turns out not to.
    """

    def find() -> Interpreter:
        found = find_interpreter(base, cache)
        if isinstance(found, Unavailable):
            raise _refused(found, base.name, todo)
        return found

    check_compiles(base.target.machine, base.name, todo)
    return Compiling(identity=base.interpreter, find=find, store=Store(cache), told=told)


def check_compiles(machine: str, where: str, todo: str) -> None:
    """See, before anything is read, that the interpreter of a base for `machine` may run here; BuildError if not."""
    if reason := runs_here(machine):
        raise _refused(reason, where, todo)


def _refused(reason: Unavailable, where: str, todo: str) -> BuildError:
    return BuildError(f"there can be no bytecode: {reason.why}", where=where, todo=todo)
