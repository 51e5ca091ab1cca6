"""Interpreters and recipes for the tests of bytecode."""

import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from envbuild.image.bytecode.compiler import Build, Compiling, Interpreter, Store, ask_build
from envbuild.image.bytecode.layers import Bytecode
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import OpenWheels
from envbuild.image.layers.plan import find_overlaps
from envbuild.image.layers.writer import LayerFile
from envbuild.lock.model import LockedWheel, Target
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from tests.fakes.wheels import FakeWheel
from tests.layers import WheelFiles

PROGRAM = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSION = platform.python_version()
LIBRARY = Path(sys.base_prefix) / "lib" / f"python{MINOR}"
SITE = f"lib/python{MINOR}/site-packages"


@cache
def own_interpreter() -> Interpreter:
    """The interpreter that runs the tests."""
    command, home = (str(PROGRAM),), Path(sys.base_prefix)
    build = ask_build(command, home)
    assert isinstance(build, Build)
    return Interpreter(command=command, home=home, build=build, lacking=())


def locked(wheel: FakeWheel) -> LockedWheel:
    name, version = wheel.filename.split("-")[:2]
    digest = Digest.of(wheel.data)
    return LockedWheel(
        name=name.replace("_", "-"),
        version=version,
        filename=wheel.filename,
        sha256=digest,
        size=len(wheel.data),
        url="",
    )


def recipe_of(*wheels: LockedWheel, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "base_name": "scratch",
        "base_digest": Digest.of(b"base"),
        "python_path": f"/usr/bin/python{MINOR}",
        "target": Target(python=VERSION, machine="x86_64", glibc="2.36"),
        "wheels": tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        "variables": (),
        "labels": (),
    }
    return Recipe(**values | changes)


class Image:
    """Wheels on disk, and the bytecode of the image that they make."""

    def __init__(
        self, stack: ExitStack, folder: Path, *wheels: FakeWheel, find=own_interpreter, **changes: Any
    ) -> None:
        self.stack = stack
        self.recipe = recipe_of(*map(locked, wheels), **changes)
        folder.mkdir(exist_ok=True)
        paths = {}
        for wheel in wheels:
            paths[Digest.of(wheel.data)] = folder / wheel.filename
            (folder / wheel.filename).write_bytes(wheel.data)
        self.opened = OpenWheels(self.stack, self.recipe, WheelFiles(paths))
        overlaps = find_overlaps(
            {wheel: self.opened[wheel].files for wheel in self.recipe.wheels},
            {},
            lambda: [wheel.name for wheel in self.recipe.wheels],
        )
        compiling = Compiling(identity="own", find=find, store=Store(folder / "cache"), processes=2)
        self.bytecode = Bytecode.of(self.recipe, overlaps, compiling, LayerCache(folder / "cache"))

    def contents(self) -> dict[str, dict[str, bytes]]:
        """What lies in each layer, by its label."""
        specs, _ = self.bytecode.specs(self.opened)
        return {it.label: {file.file.path: content_of(file) for file in it.files(self.opened)} for it in specs}


def content_of(item: LayerFile) -> bytes:
    assert item.archive is not None
    assert not isinstance(item.file.source, bytes)
    return item.archive.read(item.file.source)


def libraries_of(program: Path) -> dict[str, Path]:
    """What the loader of this machine finds for a program, by name."""
    lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines()
    pairs = [line.split("=>") for line in lines if "=>" in line]
    return {name.strip(): Path(os.path.realpath(rest.split()[0])) for name, rest in pairs}
