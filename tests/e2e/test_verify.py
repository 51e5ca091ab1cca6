"""`verify` against the real registry: real wheels and their bytecode on Debian, made anew byte for byte."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from envbuild.base.interpreter import find_interpreter
from envbuild.base.resolve import resolve_base
from envbuild.image.assembler import assemble
from envbuild.image.bytecode.compiler import Compiling, Interpreter, Store, compiled_by
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import fetch
from envbuild.lock.formats import pylock_text
from envbuild.lock.model import Lock
from envbuild.lock.resolvers import UvResolver
from envbuild.oci.image import Image, Layer, manifest_bytes
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry.push import PushResult, push
from envbuild.report import SILENT
from tests.layers import WheelFiles

pytestmark = pytest.mark.real

REQUIREMENTS = ("numpy==1.26.4", "six==1.17.0", "absl-py==2.1.0")


def no_registry(*_):
    raise AssertionError("a bootstrapped base needs no registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    base: Base
    lock: Lock
    pushed: PushResult
    layers: tuple[Layer, ...]


@pytest.fixture(scope="module")
def built(cache, registry, tmp_path_factory) -> Built:
    """An image with bytecode, in the registry."""
    folder, ours = tmp_path_factory.mktemp("built"), cache / "envbuild"
    base = resolve_base("debian:bookworm", machine="x86_64", cache=ours, pull=no_registry, report=SILENT)
    lock = UvResolver().resolve(REQUIREMENTS, base.target)
    recipe = Recipe(
        base_name=base.name, base_digest=base.digest, python_path=base.python_path, target=base.target,
        wheels=lock.wheels, variables=(("A", "1"),), labels=(), bytecode=compiled_by(base.interpreter),
    )  # fmt: skip

    def find() -> Interpreter:
        found = find_interpreter(base, ours)
        assert isinstance(found, Interpreter), found
        return found

    wheels = WheelFiles({wheel.sha256: path for wheel, path in fetch(lock.wheels, ours)})
    compiling = Compiling(identity=base.interpreter, find=find, store=Store(folder))
    made = assemble(recipe, base, wheels, LayerCache(folder), compiling=compiling).image
    pushed = push(made, Reference(registry.host, f"verify-{uuid4().hex[:8]}", "1"))
    return Built(base=base, lock=lock, pushed=pushed, layers=made.layers[len(base.image.layers) :])


def write_lock(folder: Path, lock: Lock) -> Path:
    path = folder / "pylock.toml"
    path.write_bytes(pylock_text(lock))
    return path


def test_what_is_in_the_registry_is_made_anew_byte_for_byte(built, envbuild, tmp_path):
    lock = write_lock(tmp_path, built.lock)
    place = ("verify", built.pushed.reference, "--lock", lock, "--base", "debian:bookworm")
    done = envbuild(*map(str, place), "--deep", "--json")
    result = json.loads(done.stdout)
    assert (result["agrees"], result["digest"]) == (True, str(built.pushed.reference.digest))
    assert "assembling all layers" in done.stderr
    says = {it["about"]: it["says"] for it in result["findings"]}
    assert says["layers made anew"].startswith(f"{len(built.layers)} layers, made again from 3 wheels")
    assert len([it for it in built.layers if it.created_by.startswith("bytecode")]) == 1


def test_one_other_pin_is_named(built, envbuild, tmp_path):
    other = UvResolver().resolve((*REQUIREMENTS[:1], "six==1.16.0", *REQUIREMENTS[2:]), built.base.target)
    lock = write_lock(tmp_path, other)
    place = ("verify", built.pushed.reference, "--lock", lock, "--base", "debian:bookworm")
    done = envbuild(*map(str, place), check=False)
    assert done.returncode == 16, done.stderr
    [line] = [line for line in done.stdout.splitlines() if " layers: " in line]
    assert line.startswith("error")
    assert "six 1.16.0" in line


def test_the_bases_layers_under_another_config_are_another_base(built, envbuild, tmp_path):
    base = built.base.image
    config = base.config.replace(b'"PATH=', b'"X=1","PATH=')
    assert config != base.config
    other = Image(manifest_bytes(config, base.layers, {}), config, base.layers)
    pushed = push(other, replace(built.pushed.reference, tag="base", digest=None)).reference
    done = envbuild(
        "verify", str(built.pushed.reference), "--lock", write_lock(tmp_path, built.lock), "--base", str(pushed),
        check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stdout.splitlines())) == (16, 1)
    assert done.stdout.startswith("error    base: ")
