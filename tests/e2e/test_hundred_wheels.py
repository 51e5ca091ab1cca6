"""A hundred widely used wheels: the assembled environment against the one that pip installs."""

import csv
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import pytest
import zstandard

from envbuild.check import LIST as OWN_LIST
from envbuild.check import PROGRAM as OWN_PROGRAM
from envbuild.image.assembler import Assembled, assemble
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import fetch
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.resolvers import UvResolver
from envbuild.oci.compression import Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_ZSTD, Image, Layer, canonical_json, manifest_bytes
from envbuild.recipe import Base, Recipe
from tests.e2e import parts
from tests.layers import WheelFiles

pytestmark = [pytest.mark.real, pytest.mark.slow]  # two minutes; what is special in wheels is in test_hostile_wheels

LIST = Path(__file__).with_name("hundred.txt")
TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


class Installed(NamedTuple):
    """A file that an installer wrote."""

    content: str | frozenset[str]
    """Hexadecimal sha256; of a RECORD its rows, in no order."""
    executable: bool


Tree = Mapping[str, Installed]


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # pytest would keep these gigabytes for three sessions


def assembled(
    lock: Lock, wheels: Mapping[Digest, Path], prefix: Path, folder: Path, compression: Compression
) -> Assembled:
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
        compression=compression,
    )
    return assemble(recipe, base, WheelFiles(wheels), LayerCache(folder, compression=compression))


def pip_install(wheels: Mapping[LockedWheel, Path], python: Path, folder: Path) -> None:
    """Let pip install from a folder where the files have the names that they have on the index."""
    folder.mkdir()
    for wheel, path in wheels.items():
        (folder / wheel.filename).symlink_to(path)
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", str(python)]
    options = ["--quiet", "--no-deps", "--no-compile", "--no-index", "--find-links", str(folder), "-r", str(LIST)]
    subprocess.run([*pip, "install", *options], check=True)


def metadata(name: str) -> str:
    """The name of a file in the .dist-info of an installed wheel, not in that of one that a wheel brings inside."""
    found = re.fullmatch(r"lib/python3\.11/site-packages/[^/]+\.dist-info/(.+)", name)
    return found[1] if found else ""


def installed(name: str, file: io.BufferedReader, mode: int) -> Installed:
    content = rows(file.read()) if metadata(name) == "RECORD" else hashlib.file_digest(file, "sha256").hexdigest()
    return Installed(content, bool(mode & 0o111))


def rows(record: bytes) -> frozenset[str]:
    found = csv.reader(io.StringIO(record.decode(), newline=""))
    return frozenset(str(row) for row in found if not row[0].endswith(".dist-info/INSTALLER"))


def folder_tree(root: Path) -> Tree:
    """All files below `root`."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                name = str(path.relative_to(root))
                found[name] = installed(name, file, path.stat().st_mode)
    return found


def open_tar(layer: Layer, blob: BinaryIO) -> tarfile.TarFile:
    if layer.descriptor.media_type == LAYER_ZSTD:
        return tarfile.open(fileobj=zstandard.open(blob, "rb"), mode="r|", bufsize=1 << 20)
    # Python stops after the first gzip member of a stream, as other readers do.
    return tarfile.open(fileobj=blob, mode="r|gz", bufsize=1 << 20)


def image_tree(image: Image, root: Path) -> Tree:
    """All files below `root` in the layers, lowest first; every one of them has to lie there."""
    found = {}
    for layer in image.layers:
        with layer.open() as blob, open_tar(layer, blob) as archive:
            for member in archive:
                if member.isfile() and (file := archive.extractfile(member)):
                    name = str(Path("/", member.name).relative_to(root))
                    found[name] = installed(name, cast("io.BufferedReader", file), member.mode)
    return found


def differences(ours: Tree, theirs: Tree, apart: Collection[str]) -> list[str]:
    """One line for each, INSTALLER and what `python -m venv` wrote left out."""
    names = {name for name in ours.keys() | theirs.keys() if metadata(name) != "INSTALLER"}.difference(apart)
    return [line for name in sorted(names) for line in difference(name, ours, theirs)]


def difference(path: str, ours: Tree, theirs: Tree) -> list[str]:
    if path not in ours or path not in theirs:
        return [f"{path}: only {'pip' if path in theirs else 'the assembler'} writes it"]
    mine, other = ours[path], theirs[path]
    differs = mine.executable != other.executable
    lines = [f"{path}: executable {mine.executable}, by pip {other.executable}"] if differs else []
    if isinstance(mine.content, frozenset) and isinstance(other.content, frozenset):
        lines += [f"{path}: only the assembler has {row}" for row in sorted(mine.content - other.content)]
        lines += [f"{path}: only pip has {row}" for row in sorted(other.content - mine.content)]
    elif mine.content != other.content:
        lines.append(f"{path}: other content")
    return lines


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_hundred_wheels_are_installed_as_pip_does(folder, compression):
    lock = UvResolver().resolve(tuple(LIST.read_text().split()), TARGET)
    wheels = dict(fetch(lock.wheels, parts.cache_folder() / "hundred"))
    venv = folder / "venv"
    subprocess.run([parts.find_python("3.11"), "-m", "venv", "--without-pip", venv], check=True)
    apart = folder_tree(venv).keys() | {OWN_PROGRAM, OWN_LIST}
    with ThreadPoolExecutor() as pool:
        pip = pool.submit(pip_install, wheels, venv / "bin/python", folder / "wheels")
        files = {wheel.sha256: path for wheel, path in wheels.items()}
        result = assembled(lock, files, venv, folder / "cache", Compression.parse(compression))
        ours = image_tree(result.image, venv)
        pip.result()
    theirs = folder_tree(venv)
    assert (len(wheels), result.overlaps) == (100, ())
    assert sum(metadata(name) == "RECORD" for name in theirs) == 100
    found = differences(ours, theirs, apart)
    assert not found, "\n".join(found)
