"""Bytecode layers in the real engine: imports use them, and the interpreter of the image agrees with every file."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from envbuild.base.interpreter import compiling_on
from envbuild.base.resolve import resolve_base
from envbuild.image.assembler import assemble
from envbuild.image.bytecode.compiler import Compiling, Store, Tally
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import fetch
from envbuild.lock.model import LockedWheel
from envbuild.lock.resolvers import UvResolver
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json, manifest_bytes
from envbuild.oci.reference import Reference
from envbuild.oci.rootfs import read_tree
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import push
from envbuild.report import SILENT
from tests.fakes.trees import layer_of_tree
from tests.layers import WheelFiles

pytestmark = pytest.mark.real

REQUIREMENTS = ("numpy==1.26.4", "six==1.17.0", "wrapt==1.17.2", "absl-py==2.1.0")
SITE = "/opt/env/lib/python3.11/site-packages"
COMPILING = re.compile(r"code object from '[^']*\.py'")
"""What an import says when it finds no bytecode."""
SAFE = {"read_only": True, "network_mode": "none"}

COMPARE = """
import glob, importlib.util, marshal, os, sys
sources = [it for it in glob.glob(sys.argv[1] + '/**/*.py', recursive=True) if '/tests/' not in it]
agreed, missing = 0, []
for path in sources:
    source = open(path, 'rb').read()
    try:
        data = open(importlib.util.cache_from_source(path), 'rb').read()
    except FileNotFoundError:
        missing.append(path)
        continue
    assert data[:4] == importlib.util.MAGIC_NUMBER and data[4:8] == b'\\1\\0\\0\\0', path
    assert data[8:16] == importlib.util.source_hash(source), path
    code = marshal.loads(data[16:])
    assert code == compile(source, path, 'exec', dont_inherit=True) and code.co_filename == path, path
    agreed += 1
states = [os.stat(path) for path in glob.glob(sys.argv[1] + '/**/*.pyc', recursive=True)]
owners = {(state.st_uid, oct(state.st_mode)) for state in states}
print(agreed, len(missing), sorted(owners), os.getuid())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    image: str
    """Its reference, in the engine."""
    tally: Tally
    digests: tuple[Digest, ...]
    """Of the bytecode layers."""


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def assembled(recipe: Recipe, base: Base, paths: dict[Digest, Path], folder: Path, cache: Path, processes: int):
    """Make the image, with all that is compiled kept in `folder`."""
    find = compiling_on(base, cache / "envbuild", "").find
    by = Compiling(identity=base.interpreter, find=find, store=Store(folder), processes=processes)
    return assemble(recipe, base, WheelFiles(paths), LayerCache(folder), compiling=by)


def bytecode_digests(image: Image) -> tuple[Digest, ...]:
    return tuple(layer.descriptor.digest for layer in image.layers if layer.created_by.startswith("bytecode of"))


@pytest.fixture(scope="module")
def parts_of_image(cache) -> tuple[Recipe, Base, dict[Digest, Path]]:
    base = resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=no_registry, report=SILENT)
    lock = UvResolver().resolve(REQUIREMENTS, base.target)
    wheels: dict[LockedWheel, Path] = dict(fetch(lock.wheels, cache / "envbuild"))
    recipe = Recipe(
        base_name=base.name, base_digest=base.digest, python_path=base.python_path, target=base.target,
        wheels=lock.wheels, variables=(), labels=(),
    )  # fmt: skip
    return recipe, base, {wheel.sha256: path for wheel, path in wheels.items()}


def build(recipe: Recipe, base: Base, paths: dict[Digest, Path], folder: Path, cache: Path, host: str) -> Built:
    """Assemble with bytecode on top, and push."""
    made = assembled(recipe, base, paths, folder, cache, 2)
    name = f"{host}/bytecode-{uuid4().hex[:8]}"
    digest = push(made.image, Reference.parse(f"{name}:1")).reference.digest
    assert made.bytecode
    return Built(image=f"{name}@{digest}", tally=made.bytecode, digests=bytecode_digests(made.image))


@pytest.fixture(scope="module")
def built(parts_of_image, cache, engine, registry, tmp_path_factory) -> Iterator[Built]:
    recipe, base, paths = parts_of_image
    found = build(recipe, base, paths, tmp_path_factory.mktemp("built"), cache, registry.host)
    engine.pull(found.image)
    yield found
    engine.client.images.remove(found.image, force=True)


def test_the_image_s_own_interpreter_agrees_with_every_file(built, engine):
    agreed, missing, *_ = output = engine.run(built.image, ["python", "-c", COMPARE, SITE], **SAFE).split()
    assert (int(agreed), int(missing)) == (built.tally.compiled, built.tally.refused)
    assert int(agreed) > 200
    assert "".join(output[2:]) == "[(0,'0o100644')]65532"


def test_imports_compile_nothing(built, engine):
    said = engine.run(built.image, ["sh", "-c", "python -v -c 'import numpy, six, absl.flags' 2>&1"], **SAFE)
    assert f"{SITE}/numpy/__pycache__/__init__.cpython-311.pyc matches {SITE}/numpy/__init__.py" in said
    assert said.count(f".pyc matches {SITE}/") > 80
    assert not COMPILING.search(said)


def test_bytecode_is_not_held_against_its_source(built, engine, tmp_path):
    changed = tmp_path / "six.py"
    changed.write_text("__version__ = 'changed'\n")
    mount = {str(changed): {"bind": f"{SITE}/six.py", "mode": "ro"}}
    program = ["python", "-c", "import six; print(six.__version__, open(six.__file__).read())"]
    assert engine.run(built.image, program, volumes=mount, **SAFE).split() == [
        "1.17.0",
        "__version__",
        "=",
        "'changed'",
    ]


def test_tracebacks_show_the_source(built, engine):
    program = "import six, traceback\ntry: six.ensure_str(1)\nexcept TypeError: print(traceback.format_exc())"
    said = engine.run(built.image, ["python", "-c", program], **SAFE)
    assert f'File "{SITE}/six.py", line' in said
    assert "raise TypeError(" in said


@pytest.mark.parametrize("processes", [1, 8])
def test_the_layers_are_the_same_with_any_number_of_processes(built, parts_of_image, cache, tmp_path, processes):
    recipe, base, paths = parts_of_image
    made = assembled(recipe, base, paths, tmp_path, cache, processes)
    assert bytecode_digests(made.image) == built.digests
    assert made.bytecode == built.tally


def test_a_base_without_bytecode_gets_some_for_its_standard_library(parts_of_image, cache, engine, registry, tmp_path):
    recipe, base, _ = parts_of_image
    tree = read_tree(base.image, base.name)
    library = "usr/lib/python3.11/"
    gone = {path: b"" for path in tree if path.startswith(library) and path.endswith("/__pycache__")}
    upper = layer_of_tree({path.replace("__pycache__", ".wh.__pycache__"): b"" for path in gone})
    layers = (*base.image.layers, upper)
    value = json.loads(base.image.config)
    value["rootfs"]["diff_ids"].append(str(upper.diff_id))
    config = canonical_json(value)
    bare = replace(base, image=Image(manifest_bytes(config, layers, {}), config, layers))
    found = build(replace(recipe, base_digest=bare.digest, wheels=()), bare, {}, tmp_path, cache, registry.host)
    assert (len(found.digests), found.tally.compiled > 400) == (1, True)
    engine.pull(found.image)
    said = engine.run(found.image, ["sh", "-c", "python -v -c 'import argparse, asyncio' 2>&1"], **SAFE)
    assert f"/{library}__pycache__/argparse.cpython-311.pyc matches /{library}argparse.py" in said
    assert not COMPILING.search(said)
    folders = ["/usr", "/usr/lib", f"/{library}", f"/{library}__pycache__", f"/{library}asyncio"]
    assert engine.run(found.image, ["stat", "-c", "%a%u:%g", *folders], **SAFE).split() == ["7550:0"] * len(folders)
    engine.client.images.remove(found.image, force=True)
