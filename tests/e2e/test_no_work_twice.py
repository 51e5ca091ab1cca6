"""What is read and sent a second time, counted at a real registry: nothing but manifests and configs."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envbuild.capture.files import present
from envbuild.capture.model import model_facts
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from tests.e2e.docker_builds import wheel_folder
from tests.e2e.services import LocalRegistry, running_registry
from tests.environ import cleaned
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TOOL, manifest_of

pytestmark = pytest.mark.real
LARGE = make_wheel(
    "tensorflow-cpu", "2.15.1", {"tensorflow/lib.so": random.Random(1).randbytes(4 << 20)},
    tags=["cp311-cp311-manylinux_2_17_x86_64"], purelib=False,
)  # fmt: skip
OTHER = make_wheel("tool", "1.1")
WEB = make_wheel("web", "1.0")
SMALL = 1_000_000
"""Bytes: more than a config or an SBOM has, and less than a layer of wheels."""


@dataclass(slots=True)
class Shop:
    """Two models, a registry that counts, and a machine that may forget all."""

    folder: Path
    registry: LocalRegistry
    base: str = ""
    images: dict[str, str] = field(default_factory=dict)
    read: dict[str, list[int]] = field(default_factory=dict)
    """How large the blobs were that were read for each of the images."""
    said: str = ""
    """By the build of the second model's."""

    def __post_init__(self) -> None:
        wheel_folder(self.folder / "wheels", LARGE, TOOL, OTHER, WEB)
        for name, tool in (("one", "1.0"), ("two", "1.1")):
            model = self.folder / name / "model"
            model.mkdir(parents=True)
            (model / "saved_model.pb").write_text(name)
            (model.parent / "app").mkdir()
            (model.parent / "app/serve.py").write_text("import web\n")
            run = manifest_of(("tensorflow-cpu", "2.15.1"), ("tool", tool), model=present(model_facts(str(model))))
            (model.parent / "manifest.json").write_text(json.dumps(run))

    def layers(self, name: str) -> list[int]:
        """The sizes of an image's layers."""
        return [it.descriptor.size for it in pull(Reference.parse(self.images[name]), machine="x86_64").layers]

    def forget(self) -> None:
        """Be another machine."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        (self.folder / "cache").mkdir()

    def run(self, name: str, *words: str, code: int = 0) -> tuple[str, str, list[int]]:
        """What a command says, and how large the blobs were that it read."""
        env = {"ENVBUILD_CACHE": str(self.folder / "cache"), "ENVBUILD_FROM_MANIFEST_IMPORT_CHECK": "never"}
        before = len(self.registry.blobs_read())
        done = subprocess.run(
            [sys.executable, "-m", "envbuild", *words],
            cwd=self.folder / name, env=cleaned(os.environ) | env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout.strip(), done.stderr, self.registry.blobs_read()[before:]

    def train(self, name: str, *words: str) -> tuple[str, list[int]]:
        """Build the image of a model, and say what came of it."""
        command = ("from-manifest", "manifest.json", "--base", self.base, "--stamp", "model", *self.links, *words)
        self.images[name], said, read = self.run(name, *command, "--push", f"{self.registry.host}/{name}")
        return said, read

    def serve(self, *words: str) -> tuple[str, str, list[int]]:
        command = ("--app", "app", "--cmd", "python /app/serve.py", "--gate", "off", *self.links)
        return self.run("one", "serve", "model", *command, "--push", f"{self.registry.host}/one:served", *words)

    @property
    def links(self) -> tuple[str, ...]:
        return "--find-links", str(self.folder / "wheels"), "--offline"


@pytest.fixture(scope="module")
def shop(tmp_path_factory, cache) -> Iterator[Shop]:
    with running_registry() as registry:
        made = Shop(tmp_path_factory.mktemp("twice"), registry)
        (made.folder / "cache").mkdir()
        (made.folder / "cache/bases").symlink_to(cache / "envbuild/bases")
        made.base = made.run("one", "base", "push", "debian:bookworm", f"{registry.host}/bases/python")[0]
        made.forget()
        made.read["one"] = made.train("one", "--bytecode")[1]
        made.said, made.read["two"] = made.train("two")
        made.images["served"], _, made.read["served"] = made.serve("--extra", "web")
        yield made


def test_bytecode_reads_the_base_once_and_another_repository_mounts_what_this_machine_pushed(shop):
    assert [size for size in shop.read["one"] if size > SMALL] == [shop.layers("one")[0]], "the base"
    assert max(shop.read["two"]) < SMALL
    assert " MB  cache, mounted            tensorflow-cpu 2.15.1" in shop.said


def test_serving_reads_no_layer_of_training_and_again_nothing_at_all(shop):
    assert max(shop.read["served"]) < SMALL
    nothing: list[int] = []
    for base in (nothing, shop.layers("one")[:1]):  # which a machine that knows nothing reads for its interpreter
        again, said, read = shop.serve("--extra", "web")
        assert (again, "0 bytes sent to the registry" in said) == (shop.images["served"], True)
        assert [size for size in read if size > SMALL] == base
        shop.forget()


def test_a_check_before_a_deployment_reads_no_layer(shop):
    served = shop.images["served"]
    image, _, read = shop.run("one", "deploy-check", "model", served)
    assert (image, max(read) < SMALL) == (served, True)
    _, said, read = shop.run("one", "deploy-check", "model", shop.images["two"], code=16)
    assert "has other distributions than training: tool 1.0 -> 1.1" in said
    assert max(read) < SMALL


def test_images_that_begin_with_the_same_layers_are_compared_without_these(shop):
    plain = shop.serve("--no-bytecode")[0]
    said, _, read = shop.run("one", "verify", shop.images["one"], plain)
    assert "ok       layers: serving begins with training's" in said
    assert max(read) < SMALL
    said, _, read = shop.run("one", "verify", shop.images["one"], shop.images["served"])
    assert "ok       layers: serving begins with training's" in said
    assert sorted(it for it in read if it > SMALL) == sorted(it for it in shop.layers("one") if it > SMALL), "each once"
