"""A hundred widely used wheels: the assembled environment against the one that pip installs."""

import csv
import hashlib
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from envbuild.assemble import Assembled, LayerCache, assemble
from envbuild.lock.download import fetch
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.uv import UvResolver
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json, manifest_bytes
from envbuild.recipe import Base, Recipe
from tests.e2e import parts

pytestmark = pytest.mark.real

LIST = Path(__file__).with_name("hundred.txt")
TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


class Installed(NamedTuple):
    """A file that an installer wrote."""

    content: str | frozenset[str]
    """Hexadecimal sha256; of a RECORD its rows, in no order."""
    executable: bool


Tree = Mapping[str, Installed]


@pytest.fixture(scope="module")
def lock() -> Lock:
    return UvResolver().resolve(tuple(LIST.read_text().split()), TARGET)


def assembled(lock: Lock, wheels: Mapping[Digest, Path], prefix: Path, folder: Path) -> Assembled:
    """Assemble on an empty base, with the prefix of pip's environment: scripts and RECORDs name the same paths then."""
    config = canonical_json({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    image = Image(manifest_bytes(config, (), {}), config, ())
    base = Base(name="scratch", image=image, target=TARGET, python_path="/usr/bin/python3.11")
    recipe = Recipe(
        base_name=base.name,
        base_digest=base.digest,
        python_path=base.python_path,
        target=TARGET,
        wheels=lock.wheels,
        variables=(),
        labels=(),
        prefix=str(prefix),
    )
    return assemble(recipe, base, wheels, LayerCache(folder), lambda *_: None)


def unpack(image: Image, folder: Path) -> None:
    """Extract all layers, lowest first, with the programs that everybody has."""
    folder.mkdir()
    for layer in image.layers:
        with layer.open() as blob:
            subprocess.run(["tar", "-xzC", folder], stdin=blob, check=True)


def pip_install(wheels: Mapping[LockedWheel, Path], python: Path, folder: Path) -> None:
    """Let pip install from a folder where the files have the names that they have on the index."""
    folder.mkdir()
    for wheel, path in wheels.items():
        (folder / wheel.filename).symlink_to(path)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", python]
    options: list[str | Path] = ["--quiet", "--no-deps", "--no-compile", "--no-index", "--find-links", folder, "-r", LIST]
    subprocess.run([*pip, "install", *options], check=True)


def paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}


def tree(root: Path, apart: set[str]) -> Tree:
    """All files below `root`, but those that are apart and INSTALLER."""
    names = sorted(name for name in paths(root) - apart if not name.endswith(".dist-info/INSTALLER"))
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: installed(root / name), names), strict=True))


def installed(path: Path) -> Installed:
    executable = bool(path.stat().st_mode & 0o111)
    if path.name == "RECORD" and path.parent.suffix == ".dist-info":
        return Installed(rows(path), executable)
    with path.open("rb") as file:
        return Installed(hashlib.file_digest(file, "sha256").hexdigest(), executable)


def rows(record: Path) -> frozenset[str]:
    with record.open(newline="") as file:
        return frozenset(",".join(row) for row in csv.reader(file) if not row[0].endswith(".dist-info/INSTALLER"))


def differences(ours: Tree, theirs: Tree) -> list[str]:
    return [line for path in sorted(ours.keys() | theirs.keys()) for line in difference(path, ours, theirs)]


def difference(path: str, ours: Tree, theirs: Tree) -> list[str]:
    if path not in ours or path not in theirs:
        return [f"{path}: only {'pip' if path in theirs else 'the assembler'} writes it"]
    mine, other = ours[path], theirs[path]
    lines = [f"{path}: executable {mine.executable}, by pip {other.executable}"] if mine[1] != other[1] else []
    if isinstance(mine.content, frozenset) and isinstance(other.content, frozenset):
        lines += [f"{path}: only the assembler has {row}" for row in sorted(mine.content - other.content)]
        lines += [f"{path}: only pip has {row}" for row in sorted(other.content - mine.content)]
    elif mine.content != other.content:
        lines.append(f"{path}: other content")
    return lines


def test_a_hundred_wheels_are_installed_as_pip_does(lock, tmp_path):
    import time

    t = time.time()

    def lap(what):
        nonlocal t
        print(what, round(time.time() - t, 1))
        t = time.time()

    wheels = dict(fetch(lock.wheels, parts.cache_folder() / "hundred"))
    lap("fetch")
    venv, python = tmp_path / "venv", parts.find_python("3.11")
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    apart = paths(venv)
    pip_install(wheels, venv / "bin/python", tmp_path / "wheels")
    lap("pip")
    files = {wheel.sha256: path for wheel, path in wheels.items()}
    result = assembled(lock, files, venv, tmp_path / "cache")
    lap("assemble")
    print(*result.overlaps, sep="\n")
    unpack(result.image, tmp_path / "image")
    lap("unpack")
    ours, theirs = tree(tmp_path / "image" / venv.relative_to("/"), apart), tree(venv, apart)
    lap("trees")
    found = differences(ours, theirs)
    assert not found, "\n".join(found)
