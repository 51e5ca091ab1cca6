"""A serving image in the real engine: what is put on top is found, checked, and imported without being compiled."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.build.extend import assemble_extension, compiling_for
from envbuild.engine.load import load_into
from envbuild.image.assembler import assemble
from envbuild.image.bytecode.compiler import Tally
from envbuild.image.child import Addition, Parent, add_startup_check
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import fetch
from envbuild.lock.resolvers import UvResolver
from envbuild.lock.run import Options
from envbuild.manifest.reader import read_manifest
from envbuild.oci.image import Image, canonical_json, manifest_bytes
from envbuild.oci.reference import DOCKER_HUB, Reference
from envbuild.oci.rootfs import read_tree
from envbuild.recipe import Base, Recipe
from envbuild.report import SILENT
from envbuild.serve.contents import application, embedded
from envbuild.serve.model import Origin
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from envbuild.verify.sources.model import read_model
from tests.e2e.services import ContainerFailed
from tests.fakes.trees import layer_of_tree
from tests.layers import WheelFiles
from tests.reporting import Calling
from tests.unit.test_sides_model import manifest_bytes as manifest_of

pytestmark = pytest.mark.real

SAFE: dict[str, Any] = {"read_only": True, "network_mode": "none"}
COMPILING = re.compile(r"code object from '[^']*\.py'")
MAIN = """
import argparse, six, wrapt, greeting
from pathlib import Path
model = Path("/model")
print(greeting.text, sorted(it.name for it in model.iterdir()), (model / "weights.bin").read_text())
print(__spec__ and __spec__.cached, greeting.__cached__)
"""
STATES = "stat -c '%a %u:%g %Y %F' /app /app/main.py /app/run.sh /app/it /model /model/weights.bin /app/__pycache__/*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What was made, and its name in the engine."""

    name: str
    image: Image
    tally: Tally | None


def bare(base: Base) -> Base:
    """The base without any bytecode, as official Python images are."""
    library = "usr/lib/python3.11/"
    folders = [it for it in read_tree(base.image, base.name) if it.startswith(library) and it.endswith("/__pycache__")]
    upper = layer_of_tree({path.replace("__pycache__", ".wh.__pycache__"): b"" for path in folders})
    layers, value = (*base.image.layers, upper), json.loads(base.image.config)
    value["rootfs"]["diff_ids"].append(str(upper.diff_id))
    config = canonical_json(value)
    return replace(base, image=Image(manifest_bytes(config, layers, {}), config, layers))


def parent_on(base: Base, cache: Path, folder: Path) -> Parent:
    """An environment without bytecode."""
    lock = UvResolver().resolve(("six==1.17.0",), base.target)
    recipe = Recipe(
        base_name=base.name, base_digest=base.digest, python_path=base.python_path, target=base.target,
        wheels=lock.wheels, variables=(), labels=(),
    )  # fmt: skip
    wheels = WheelFiles({wheel.sha256: path for wheel, path in fetch(lock.wheels, cache)})
    return Parent(image=assemble(recipe, base, wheels, LayerCache(folder)).image, lock=lock)


def app_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)
    (folder / "greeting.py").write_text("text = 'hello'\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "it").symlink_to("greeting.py")
    return folder


def origin_in(folder: Path, parent: Parent) -> Origin:
    """A stamped model of two files."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"a model")
    (folder / "weights.bin").write_bytes(b"weights")
    data, digest = manifest_of(str(folder)), parent.digest
    entry = StampEntry(
        role="train", variant="cpu", platform="linux/amd64", reference=None, digest=digest, environment=digest
    )  # fmt: skip
    stamp(str(folder), entry, manifest=data, lock=b"", now=datetime(2026, 11, 22, tzinfo=UTC))
    return Origin(
        parent=parent, reference=None, manifest=read_manifest(data, "m"), manifest_bytes=data, variant="cpu",
        platform="linux/amd64", environment=digest, stamped=read_model(str(folder)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def serving(cache, engine, tmp_path_factory) -> Iterator[Serving]:
    """An image on a base without bytecode, below an environment without, with an application and a model on top."""
    folder, kept = tmp_path_factory.mktemp("serving"), cache / "envbuild"
    warned: list[str] = []
    report = Calling(step=print, note=print, warn=warned.append)
    base = resolve_base("debian:bookworm", machine="x86_64", cache=kept, pull=_never, report=SILENT)
    parent = parent_on(bare(base), kept, folder / "layers")
    above = UvResolver().resolve(("wrapt==1.17.2",), base.target)
    origin, app = origin_in(folder / "model", parent), application(app_in(folder / "app"))
    compiling = compiling_for(parent, kept, report)
    name = Reference(DOCKER_HUB, "library/child-serving", "1")
    with ExitStack() as until:
        model = until.enter_context(embedded(origin, kept, report))
        addition = add_startup_check(Addition(folder="/app", contents=(model, app)), above, ("python", "main.py"))
        made = until.enter_context(
            assemble_extension(
                parent, above, addition, Options(cache=kept), report, compiling=compiling,
                cache=LayerCache(folder / "layers"),
            )
        )  # fmt: skip
        load_into(engine.client, made.image, [name], report)
    assert warned == []
    yield Serving(name=f"{name.repository.removeprefix('library/')}:{name.tag}", image=made.image, tally=made.bytecode)
    engine.client.images.remove("child-serving:1", force=True)


def _never(*_):
    raise AssertionError("a bootstrapped base needs no registry")


def test_the_command_runs_behind_the_check_with_its_files_and_the_model(serving, engine):
    said = engine.run(serving.name, [], environment={"ENVBUILD_CHECK": "strict"}, **SAFE).splitlines()
    assert said == [
        "hello ['model.onnx', 'weights.bin'] weights",
        "None /app/__pycache__/greeting.cpython-311.pyc",
    ]
    assert json.loads(engine.run(serving.name, ["/opt/env/bin/envbuild-check", "--json"], **SAFE))["findings"] == []


@pytest.mark.parametrize("setting", [{}, {"PYTHONDONTWRITEBYTECODE": "1"}])
def test_nothing_that_is_imported_is_compiled(serving, engine, setting):
    program = ["sh", "-c", "python -v -c 'import main, asyncio' 2>&1"]
    said = engine.run(serving.name, program, environment=setting, **SAFE)
    site = "/opt/env/lib/python3.11/site-packages/"
    for folder, module in (
        ("/app/", "main"),
        (f"{site}wrapt/", "__init__"),
        (site, "six"),
        ("/usr/lib/python3.11/", "argparse"),
    ):
        assert f"{folder}__pycache__/{module}.cpython-311.pyc matches {folder}{module}.py" in said
    assert not COMPILING.search(said)
    assert serving.tally is not None
    assert serving.tally.gave_up == ()


def test_files_are_root_s_and_of_one_time(serving, engine):
    said = engine.run(serving.name, ["sh", "-c", STATES], **SAFE).splitlines()
    assert {line.split(" ", 1)[1].split(" ")[0] for line in said} == {"0:0"}
    assert {line.split(" ")[2] for line in said} == {"315532800"}
    assert [line.split(" ")[0] for line in said] == ["755", "644", "755", "777", "755", "644", "644", "644"]


def test_the_check_holds_what_is_added(serving, engine, tmp_path):
    other = tmp_path / "added.json"
    other.write_text(json.dumps({"packages": {"wrapt": "9"}}))
    mount = {str(other): {"bind": "/opt/env/share/envbuild/added.json", "mode": "ro"}}
    with pytest.raises(ContainerFailed, match=r"wrapt is 1\.17\.2 here, and has to be 9"):
        engine.run(serving.name, [], environment={"ENVBUILD_CHECK": "strict"}, volumes=mount, **SAFE)
