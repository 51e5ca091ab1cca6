"""The base's interpreter: taken out of its layers, it runs here, and a hostile base reaches nothing but its folder."""

import importlib.util
import os
import platform
import py_compile
import stat
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.interpreter import find_interpreter, runs_here
from envbuild.base.resolve import KnownFacts, inspect
from envbuild.base.system import read_base_system
from envbuild.errors import BaseError
from envbuild.image.bytecode.compiler import Compiler, Interpreter, Unavailable
from envbuild.lock.model import Target
from envbuild.oci.image import LAYER_TAR, Layer
from envbuild.recipe import Base
from tests.fakes.trees import image_of_layers, layer_of_tree
from tests.unit.compiling import LIBRARY, MINOR, PROGRAM, VERSION, libraries_of, own_interpreter

MACHINE = platform.machine()
LOADER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}[MACHINE]
PLACE = f"usr/local/lib/python{MINOR}"
SOURCES = sorted(LIBRARY.glob("*.py"))[:40]
MODULES = (
    "abc.py",
    "codecs.py",
    "io.py",
    "os.py",
    "encodings/__init__.py",
    "encodings/aliases.py",
    "encodings/utf_8.py",
)


@cache
def own_files() -> dict[str, Any]:
    """The interpreter that runs the tests as an official image has it: in /usr/local, without bytecode."""
    files: dict[str, Any] = {
        LOADER[1:]: Path(LOADER).read_bytes(),
        f"usr/local/bin/python{MINOR}": PROGRAM.read_bytes(),
    }
    for name, path in libraries_of(PROGRAM).items():
        files[f"usr/local/lib/{name}.real"] = path.read_bytes()
        files[f"usr/local/lib/{name}"] = f"-> {name}.real"
    files |= {f"{PLACE}/{name}": (LIBRARY / name).read_bytes() for name in MODULES}
    # other than `tarfile` thinks, folders of a layer have a mode
    folders = sorted({str(parent) for path in files for parent in Path(path).parents if parent.name})
    return {f"{folder}/": 0o755 for folder in folders} | files


@cache
def own_layer() -> Layer:
    return layer_of_tree(own_files(), LAYER_TAR)


def base_of(*upper: dict[str, Any], **changes: Any) -> Base:
    """A base with the interpreter that runs the tests, and what lies in layers above it."""
    values: dict[str, Any] = {
        "name": "own",
        "image": image_of_layers(own_layer(), *map(layer_of_tree, upper)),
        "target": Target(python=VERSION, machine=MACHINE, glibc="2.36"),
        "python_path": f"/usr/local/bin/python{MINOR}",
    }
    return Base(**values | changes)


def found(cache: Path, *upper: dict[str, Any], **changes: Any) -> Interpreter:
    interpreter = find_interpreter(base_of(*upper, **changes), cache)
    assert isinstance(interpreter, Interpreter), interpreter
    return interpreter


def test_it_is_the_base_s_own_and_compiles_the_same_wherever_it_lies(tmp_path, monkeypatch):
    """The state of an interpreter decides bytes: even if a module came from bytecode. So it must always be one state."""
    results = []
    for folder, seed in (("a", "0"), ("a much/longer/päth with spaces", "4242")):
        interpreter = found(tmp_path / folder)
        assert interpreter.build == own_interpreter().build
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        monkeypatch.setenv("PYTHONPATH", str(LIBRARY))
        with Compiler(interpreter, 1) as running:
            results.append(running.compile((f"/opt/env/{path.name}", path.read_bytes()) for path in SOURCES))
    assert results[0] == results[1]
    assert all(isinstance(code, bytes) for code in results[0])


def test_what_is_kept_is_taken_again_only_when_it_is_damaged(tmp_path):
    base = base_of()
    first = find_interpreter(base, tmp_path)
    unreadable = replace(base, image=replace(base.image, layers=()))
    assert find_interpreter(unreadable, tmp_path) == first
    assert isinstance(first, Interpreter)
    damaged = first.home / "lib" / f"python{MINOR}" / "abc.py"
    damaged.write_bytes(damaged.read_bytes() + b"\nraise SystemExit\n")
    assert find_interpreter(base, tmp_path) == first
    assert damaged.read_bytes() == (LIBRARY / "abc.py").read_bytes()


def test_no_layer_is_read_more_than_once_and_then_only_for_what_is_taken(tmp_path):
    opened: list[int] = []

    def counted(place: int, layer: Layer) -> Layer:
        return replace(layer, open=lambda: opened.append(place) or layer.open())  # type: ignore[func-returns-value]

    bottom = {
        "etc/os-release": f"PRETTY_NAME={tmp_path.name}\n".encode(),
        "lib/libc.so.6": b"GNU C Library (GLIBC) stable release version 2.36.\n",
        "usr/local/bin/python3": f"-> python{MINOR}",
    }
    upper: list[dict[str, Any]] = [{"srv/data": b"0"}, {f"{PLACE}/new.py": b"new = 1\n"}]
    layers = [layer_of_tree(bottom), own_layer(), *map(layer_of_tree, upper)]
    image = image_of_layers(*(counted(*it) for it in enumerate(layers)))
    (facts,) = {inspect(image, "own", MACHINE, KnownFacts(tmp_path / name)) for name in ("facts", "elsewhere")}
    assert (facts.distribution, opened) == (tmp_path.name, [0, 1, 2, 3])
    assert read_base_system(image, "own", tmp_path).release == {}
    assert opened[4:] == []
    assert isinstance(find_interpreter(base_of(image=image), tmp_path), Interpreter)
    assert opened[4:] == [1, 3]


def test_the_standard_library_lacks_what_imports_would_not_use(tmp_path):
    def bytecode(name: str, flags: bytes, stamp: bytes) -> dict[str, bytes]:
        code = tmp_path / "code.pyc"
        py_compile.compile(str(LIBRARY / name), str(code))
        return {f"{PLACE}/{importlib.util.cache_from_source(name)}": code.read_bytes()[:4] + flags + stamp + b"code"}

    def stamp(name: str, time: int = 0) -> bytes:
        return time.to_bytes(4, "little") + (LIBRARY / name).stat().st_size.to_bytes(4, "little")

    by_time, by_hash = bytes(4), (3).to_bytes(4, "little")
    layer: dict[str, Any] = {f"{PLACE}/__pycache__/": 0o755}
    layer |= bytecode("abc.py", by_time, stamp("abc.py"))  # the fake layer's times are all 0
    layer |= bytecode("io.py", by_time, stamp("io.py", time=1))
    layer |= bytecode("os.py", by_hash, bytes(8))
    layer[f"{PLACE}/test/x.py"] = b""
    layer[f"{PLACE}/site-packages/x.py"] = b""
    interpreter = found(tmp_path, layer)
    library = f"lib/python{MINOR}"
    assert set(interpreter.lacking) == {f"{library}/{name}" for name in MODULES} - {
        f"{library}/abc.py",
        f"{library}/os.py",
    }


def test_bytecode_that_an_upper_layer_removes_is_lacking(tmp_path):
    name = f"{PLACE}/__pycache__/abc.{sys.implementation.cache_tag}.pyc"
    code = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + b"code"
    library = f"lib/python{MINOR}/abc.py"
    assert library not in found(tmp_path, {name: code}).lacking
    assert library in found(tmp_path, {name: code}, {f"{PLACE}/.wh.__pycache__": b""}).lacking


def test_a_folder_of_another_mode_or_owner_is_left_alone(tmp_path):
    interpreter = found(tmp_path, {f"{PLACE}/encodings/": 0o2775})
    assert not any("encodings" in path for path in interpreter.lacking)
    assert f"lib/python{MINOR}/abc.py" in interpreter.lacking


def test_the_upper_layer_counts_and_what_it_removes_is_gone(tmp_path):
    upper = {f"{PLACE}/.wh.io.py": b"", f"{PLACE}/abc.py": (LIBRARY / "abc.py").read_bytes() + b"\n# patched\n"}
    interpreter = found(tmp_path, upper, {f"{PLACE}/new.py": b"x = 1\n"})
    library = interpreter.home / "lib" / f"python{MINOR}"
    assert not (library / "io.py").exists()
    assert (library / "abc.py").read_bytes().endswith(b"# patched\n")
    assert f"lib/python{MINOR}/new.py" in interpreter.lacking


def test_a_hostile_base_writes_nothing_outside_its_folder_and_gives_no_rights(tmp_path):
    hostile = {
        f"{PLACE}/../../../../../../escaped.py": b"x",
        f"../../{PLACE}/escaped.py": b"x",
        f"{PLACE}/link": f"-> {tmp_path}",
        f"{PLACE}/link/escaped.py": b"x",
        f"{PLACE}/hard.py": "=> etc/passwd",
        f"{PLACE}/linked.py": "-> /etc/passwd",
        "usr/local/lib/libz.so.1": "-> /etc/passwd",
        "usr/local/lib/libm.so.6.0": "-> libm.so.6.0",
        f"{PLACE}/absolute.py": b"x",
    }
    cache = tmp_path / "cache"
    interpreter = found(cache, hostile)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(cache / "interpreters") for path in written)
    assert not Path("/escaped.py").exists()
    for path in cache.rglob("*"):
        assert not path.is_symlink()
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)
    assert interpreter.build == own_interpreter().build
    assert not any("link" in path or "hard" in path for path in interpreter.lacking)


def test_a_base_for_another_machine_has_none_here_and_it_is_said_without_reading(tmp_path):
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    base = base_of(target=Target(python=VERSION, machine=other, glibc="2.36"))
    reason = runs_here(other)
    assert reason is not None
    assert other in reason.why
    assert MACHINE in reason.why
    assert find_interpreter(base, tmp_path) == reason
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(
            ({path: content}, "does not run here")
            for path, content in (
                (f"usr/local/lib/{next(iter(libraries_of(PROGRAM)))}.real", b"no library"),
                (f"{PLACE}/encodings/__init__.py", b"raise SystemExit('broken')\n"),
            )
        ),
        (
            {f"usr/local/bin/python{MINOR}": Path(os.path.realpath("/bin/true")).read_bytes()},
            "does not print its version",
        ),
        ({LOADER[1:]: "-> nowhere"}, "no loader"),
    ],
    ids=["library", "codec", "program", "loader"],
)
def test_an_interpreter_that_does_not_run_is_a_reason_and_nothing_is_kept(tmp_path, changes, says):
    reason = find_interpreter(base_of(changes), tmp_path)
    assert isinstance(reason, Unavailable)
    assert says in reason.why
    assert not any((tmp_path / "interpreters").iterdir())


@pytest.mark.parametrize("limit", ["_LARGEST", "_MOST"])
def test_a_base_that_would_fill_the_disk_is_an_error(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(f"envbuild.base.interpreter.{limit}", 1000)
    with pytest.raises(BaseError, match="cannot copy the base"):
        find_interpreter(base_of(), tmp_path)
