"""Shared libraries in a folder, and what the machine's own loader makes of them."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from envbuild.oci.rootfs import Node
from envbuild.verify.cuda.process import Elf, Process, System, read_cache, read_elf

MACHINE = platform.machine()
PYTHON = os.path.realpath(sys.executable)
# What a library opens depends on which library calls dlopen, so each has a function of its own for it.
_SOURCE = "#include <dlfcn.h>\nvoid *reopen(const char *name) { return dlopen(name, RTLD_NOW); }\n"
_CHILD = """
import ctypes, json, os, sys
answers = []
for name, caller in json.loads(sys.argv[1]):
    try:
        if caller is None:
            ctypes.CDLL(name)
        else:
            library = ctypes.CDLL(caller, mode=os.RTLD_NOLOAD)
            library.reopen.restype = ctypes.c_void_p
            if not library.reopen(name.encode()):
                raise OSError
        answers.append(True)
    except OSError:
        answers.append(False)
lines = open("/proc/self/maps").read().splitlines()
print(json.dumps([answers, sorted({line.split(None, 5)[5] for line in lines if sys.argv[2] in line})]))
"""

Asked = Sequence[tuple[str, Path | None]]
"""What is opened, and by which library; by Python where that is None."""
Answers = tuple[list[bool], list[str]]
"""Whether each opening succeeds, and the files of the test that are loaded in the end."""


_FOLDER = tempfile.TemporaryDirectory(prefix="loading-")  # removed when the interpreter ends


@cache
def _object(source: str) -> Path:
    """The source, compiled; most libraries have the same."""
    path = Path(_FOLDER.name) / f"{len(list(Path(_FOLDER.name).iterdir()))}.o"
    subprocess.run(
        ["gcc", "-c", "-fPIC", "-o", str(path), "-x", "c", "-"], input=source, text=True, check=True, timeout=60
    )
    return path


def library(
    path: Path,
    needs: Sequence[Path] = (),
    *,
    runpath: str = "",
    rpath: str = "",
    soname: str = "",
    flags: Sequence[str] = (),
    source: str = _SOURCE,
) -> Path:
    """Link a library that needs others by their soname, and opens what it is asked to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named = [f"-Wl,-soname,{soname or path.name}", "-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    named += [f"-Wl,--enable-new-dtags,-rpath,{runpath}"] if runpath else []
    named += [f"-Wl,--disable-new-dtags,-rpath,{rpath}"] if rpath else []
    command = ["gcc", "-shared", "-o", str(path), *named, *flags, str(_object(source)), *map(str, needs)]
    subprocess.run(command, check=True, timeout=60)
    return path


def loader_says(root: Path, asked: Asked, variables: Mapping[str, str]) -> Answers:
    """What the machine's loader does."""
    wanted = json.dumps([(name, None if caller is None else str(caller)) for name, caller in asked])
    done = subprocess.run(
        [PYTHON, "-c", _CHILD, wanted, f"{root}/"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    answers, files = json.loads(done.stdout)
    return answers, files


def we_say(root: Path, asked: Asked, variables: Mapping[str, str]) -> Answers:
    """The same, told from the files alone."""
    process = process_of(root, variables)
    answers = []
    for name, caller in asked:
        opener = process.find(str(caller)) if caller else process.program
        answers.append(opener is not None and process.open(name, opener)[0] is not None)
    return answers, sorted({it.real for it in process.loaded if it.real.startswith(f"{root}/")})


def process_of(root: Path, variables: Mapping[str, str]) -> Process:
    """A process of this interpreter, among this machine's files."""
    system = System(
        tree=_machine() | _below(root),
        read=read_file,
        machine=MACHINE,
        cache=read_cache(Path("/etc/ld.so.cache").read_bytes(), MACHINE),
        library_path=variables.get("LD_LIBRARY_PATH", ""),
    )
    process = Process(system)
    assert process.start(PYTHON) == ()
    return process


def read_file(path: str) -> Elf | None:
    """Read a file of this machine."""
    with Path(path).open("rb") as file:
        return read_elf(file)


@cache
def _machine() -> dict[str, Node]:
    """Its folders of libraries, and its interpreter's."""
    roots = [Path("/") / it for it in ("lib", "lib64", "usr/lib", "usr/lib64")]
    tree: dict[str, Node] = {}
    for root in roots:
        tree |= _below(root)
    for path in (Path(PYTHON), *Path(sys.base_prefix, "lib").glob("*.so*")):
        tree |= _nodes(path)
    return tree


def _below(root: Path) -> dict[str, Node]:
    tree = _nodes(root)
    for folder, folders, files in os.walk(root) if not root.is_symlink() else ():
        tree |= {str(Path(folder, name))[1:]: _node(Path(folder, name)) for name in (*folders, *files)}
    return tree


def _nodes(path: Path) -> dict[str, Node]:
    """A path and the folders on the way to it."""
    return {str(it)[1:]: _node(it) for it in (path, *path.parents) if it.name}


def _node(path: Path) -> Node:
    if path.is_symlink():
        return Node("link", target=str(path.readlink()))
    return Node("directory" if path.is_dir() else "file")
