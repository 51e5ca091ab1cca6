"""The base's own interpreter, copied out of its layers, so that it runs here: without a container, root or a mount.

Only what it needs to start is copied: the program, the libraries that such programs link, their loader, and the
standard library's sources. They get new places, as plain files without links and with our modes; the base's loader is
then started as a program, and takes libraries from there only.
"""

import platform
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import BaseError, BuildError
from envbuild.image.bytecode.compiler import Build, Compiling, Interpreter, Store, Unavailable, ask_build
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.rootfs import DAMAGED, Tree, contents, read_tree, resolve
from envbuild.recipe import Base
from envbuild.report import SILENT, Reporter

_FORMAT = 1
"""Raised whenever other files would be copied, or into other places."""
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_LINKED = re.compile(r"lib(?:c|m|dl|pthread|util|rt|z|expat|crypt|gcc_s|intl|python3(?:\.\d+)?)\.so(?:\.[\w.]+)?")
_CODECS = re.compile(r"lib-dynload/_(?:codecs|multibytecodec)[\w.-]*\.so")
"""Codecs that a source may name in its first line."""
_TESTS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_LARGEST, _MOST = 64 << 20, 512 << 20
"""Bytes: of one file, and of all."""
_HEAD = 16
_FACTS = "facts.json"


def runs_here(machine: str) -> Unavailable | None:
    """Return why the interpreter of a base for `machine` cannot run here; None if it can."""
    if sys.platform != "linux" or platform.machine() != machine:
        return Unavailable(why=f"the base's interpreter is for {machine}, and this machine is {platform.machine()}")
    return None


def find_interpreter(base: Base, cache: Path) -> Interpreter | Unavailable:
    """Return the base's interpreter, from the cache or copied into it; BaseError for a damaged base."""
    if reason := runs_here(base.target.machine):
        return reason
    key = Digest.of(canonical_json([_FORMAT, str(base.digest), base.python_path]))
    folder = cache / "interpreters" / key.hex
    return _read_cached(folder) or _copy(base, folder)


def _read_cached(folder: Path) -> Interpreter | None:
    """Return the cached interpreter if its files are unchanged and there are no others, as it is about to run."""

    def decode(facts: Any) -> Interpreter:
        if _digests(folder) != facts["files"]:
            raise ValueError("its files have changed")
        texts = (facts["program"], *facts["build"].values(), *facts["lacking"])
        if not all(isinstance(it, str) for it in texts) or f"python/bin/{texts[0]}" not in facts["files"]:
            raise ValueError("its facts are malformed")
        return Interpreter(
            command=_command(folder, facts["program"]),
            home=folder / "python",
            build=Build.from_dict(facts["build"]),
            lacking=tuple(facts["lacking"]),
        )

    return read_entry(folder, _FACTS, decode)


def _digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of all files and links in an interpreter's folder, except its facts."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    names = {str(path.relative_to(folder)): path for path in paths}
    return {name: sha256(path.read_bytes()).hexdigest() for name, path in names.items() if name != _FACTS}


def _copy(base: Base, folder: Path) -> Interpreter | Unavailable:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as name:
        staged = Path(name) / "interpreter"
        try:
            found = _copy_files(base, staged)
        except DAMAGED as error:
            todo = "build with --no-bytecode, or give another --base"
            raise BaseError(f"cannot copy the base's interpreter: {error}", where=base.name, todo=todo) from error
        if isinstance(found, Unavailable):
            return found
        if cached := _read_cached(folder):  # another run was faster
            return cached
        remove(folder)  # it is damaged
        try:
            staged.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(staged)
    cached = _read_cached(folder)
    if cached is None:
        what = "the base's interpreter is not in the cache after it was written"
        raise BaseError(what, where=str(folder), todo="run again")
    return cached


def _copy_files(base: Base, folder: Path) -> Unavailable | None:
    tree = read_tree(base.image, base.name)
    program = base.python_path.rpartition("/")[2]
    places = _places(tree, base)
    if not {"ld.so", f"python/bin/{program}"} <= {place for several in places.values() for place in several}:
        return Unavailable(why="the base has no loader where programs look for it")
    states, heads = _write_files(tree, base, places, folder)
    command = _command(folder, program)
    build = ask_build(command, folder / "python")
    if isinstance(build, Unavailable):
        return build
    facts = {
        "build": build.to_dict(),
        "program": program,
        "lacking": _lacking(tree, base, build, states, heads),
        "files": _digests(folder),
    }
    write_entry(folder, _FACTS, facts)
    return None


def _command(folder: Path, program: str) -> tuple[str, ...]:
    loader = (str(folder / "ld.so"), "--inhibit-cache", "--library-path", str(folder / "libs"))
    return (*loader, str(folder / "python" / "bin" / program))


def _home(base: Base) -> str:
    """Return the prefix of the base's interpreter, relative to the root: `usr/`."""
    home = posixpath.dirname(posixpath.dirname(base.python_path)).strip("/")
    return f"{home}/" if home else ""


def _places(tree: Tree, base: Base) -> dict[str, list[str]]:
    """Return the places for the copied files, by their paths in the image, all links followed."""
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
    """Return the libraries by name, as the loader would find them."""
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


_States = dict[str, tuple[int, int]]
"""Time of change and size of files, by path."""


def _write_files(
    tree: Tree, base: Base, places: Mapping[str, list[str]], folder: Path
) -> tuple[_States, dict[str, bytes]]:
    """Write the files; return their states, and the first bytes of the standard library's bytecode by path."""
    states, heads, size, library = _States(), dict[str, bytes](), 0, _library(base)
    bytecode = {path for path in tree if path.endswith(".pyc") and library.match(path)}
    for path, member, content in contents(base.image, tree, bytecode | places.keys(), base.name):
        if path in bytecode:
            heads[path] = content.read(_HEAD)
            continue
        size += member.size * len(places[path])
        if member.size > _LARGEST or size > _MOST:
            raise ValueError(f"{path} has {member.size} bytes, of {size} in all")
        data = content.read()
        states[path] = (int(member.mtime), member.size)
        for place in places[path]:
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o644 if target.suffix == ".py" else 0o755)
    return states, heads


def _lacking(tree: Tree, base: Base, build: Build, states: _States, heads: Mapping[str, bytes]) -> list[str]:
    """List sources of the standard library without usable bytecode, in folders that a layer can fill."""
    home, library = _home(base), _library(base)
    found = []
    for path in sorted(states):
        folder, _, name = path.rpartition("/")
        if not library.match(path) or not name.endswith(".py") or _TESTS & set(folder.split("/")):
            continue
        bytecode = f"{folder}/__pycache__/{name.removesuffix('.py')}.{build.cache_tag}.pyc"
        usable = _is_usable(heads.get(bytecode, b""), build, states[path])
        if not usable and all(_is_plain(tree, str(parent)) for parent in PurePosixPath(bytecode).parents):
            found.append(path.removeprefix(home))
    return found


def _is_usable(head: bytes, build: Build, state: tuple[int, int]) -> bool:
    """Whether imports use bytecode for a source (PEP 552); bytecode with a hash is assumed to match."""
    if head[:4] != bytes.fromhex(build.magic) or len(head) < _HEAD:
        return False
    stamp = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in state)
    return bool(head[4] & 1) or head[8:16] == stamp


def _is_plain(tree: Tree, folder: str) -> bool:
    """Whether our layers, with their one mode and owner, leave this folder as it is."""
    node = tree.get(folder)
    return node is None or (node.kind, node.mode, node.owner) == ("directory", 0o755, (0, 0))


def compiling_on(base: Base, cache: Path, todo: str, reporter: Reporter = SILENT) -> Compiling:
    """Return the interpreter and store for compiling; both are kept in `cache`.

    BuildError, with `todo`, if the base's interpreter cannot run here; raised by `find` if it fails to start.
    """

    def find() -> Interpreter:
        found = find_interpreter(base, cache)
        if isinstance(found, Unavailable):
            raise BuildError(f"cannot compile bytecode: {found.why}", where=base.name, todo=todo)
        return found

    check_compiles(base.target.machine, base.name, todo)
    return Compiling(identity=base.interpreter, find=find, store=Store(cache), reporter=reporter)


def check_compiles(machine: str, where: str, todo: str) -> None:
    """Check, before anything is read, that the interpreter of a base for `machine` can run here; else BuildError."""
    if reason := runs_here(machine):
        raise BuildError(f"cannot compile bytecode: {reason.why}", where=where, todo=todo)
