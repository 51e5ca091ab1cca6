"""The proof that serving has training's environment, for images of every builder, in a real registry and in layouts."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from envbuild.oci.image import Image
from envbuild.oci.layout import read_layout, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.verify.findings import Finding
from envbuild.verify.sharing import prove_sharing
from envbuild.verify.sources.image import side_of_image
from tests.e2e.services import Engine, LocalRegistry, report_of
from tests.environ import cleaned
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, content_of, manifest_of

pytestmark = pytest.mark.real

OTHER = make_wheel("tool", "0.9", entry_points={"console_scripts": {"tool": "tool:main"}})
SERVER = make_wheel("server", "3.0")
WHEELS = (TENSORFLOW, TOOL, OTHER, SERVER)
TRAINED = (("tensorflow-cpu", "2.15.1"), ("tool", "1.0"))
MOVED = (("tensorflow-cpu", "2.15.1"), ("tool", "0.9"))
MORE = (*TRAINED, ("server", "3.0"))
SITE = "/opt/env/lib/python3.11/site-packages"
SEEN = """
import json, platform
from importlib.metadata import distributions
found = {it.metadata["Name"]: it.version for it in distributions()}
print(json.dumps([platform.python_version(), *platform.libc_ver(), found]))
"""


@dataclass(frozen=True, slots=True)
class Maker:
    """`envbuild from-manifest` by one builder, into a repository of its own."""

    folder: Path
    builder: str
    engine: Engine
    registry: LocalRegistry
    cache: Path
    repository: str = field(default_factory=lambda: f"sharing/a{uuid4().hex[:8]}")

    def image(self, tag: str, distributions: tuple[tuple[str, str], ...]) -> Reference:
        """Build what a run had, without what an earlier build left, and push it."""
        manifest = self.folder / f"{tag}.json"
        manifest.write_text(json.dumps(manifest_of(*distributions)))
        self.engine.client.api.prune_builds(all=True)
        options = ["--base", "debian:bookworm", "--offline", "--find-links", str(self.folder / "wheels")]
        options += ["--out", str(self.folder / tag), "--push", f"{self.registry.host}/{self.repository}:{tag}"]
        options += ["--builder", "docker"] if self.builder == "buildkit" else []
        ours = {"ENVBUILD_CACHE": str(self.cache / "envbuild"), "DOCKER_HOST": self.engine.url}
        done = subprocess.run(
            [sys.executable, "-m", "envbuild", "from-manifest", str(manifest), *options],
            env=cleaned(os.environ) | ours,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, report_of(done)
        return Reference.parse(done.stdout.strip())

    def on_top(self, image: Reference, tag: str, *steps: str) -> Reference:
        """What the engine makes on an image by more steps."""
        name = f"{self.registry.host}/{self.repository}"
        self.engine.pull(str(image))
        text = "\n".join((f"FROM {image}", "USER 0", *steps))
        self.engine.client.images.build(fileobj=io.BytesIO(text.encode()), tag=f"{name}:{tag}", rm=True)
        for event in self.engine.client.api.push(name, tag=tag, stream=True, decode=True):
            assert "error" not in event, event
        return Reference.parse(f"{name}:{tag}")


@dataclass(frozen=True, slots=True)
class Images:
    """What was built, by name."""

    maker: Maker
    train: Reference
    again: Reference
    moved: Reference
    more: Reference


SLOW = [pytest.param(builder, marks=pytest.mark.slow) for builder in ("buildkit",)]  # 40 s each


@pytest.fixture(scope="module", params=["assemble", *SLOW])
def images(request, tmp_path_factory, engine, registry, cache) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("sharing")
    (folder / "wheels").mkdir()
    for wheel in WHEELS:
        (folder / "wheels" / wheel.filename).write_bytes(wheel.data)
    maker = Maker(folder, request.param, engine, registry, cache)
    made = {"train": TRAINED, "again": TRAINED, "moved": MOVED, "more": MORE}
    yield Images(maker, **{tag: maker.image(tag, distributions) for tag, distributions in made.items()})
    for found in engine.client.images.list():
        if any(maker.repository in name for name in found.tags):
            engine.client.images.remove(found.id, force=True)
    engine.client.images.prune(filters={"dangling": True})


def from_registry(reference: Reference, _: Path) -> Image:
    return pull(reference, machine="x86_64")


def from_layout(reference: Reference, folder: Path) -> Image:
    place = folder / uuid4().hex
    write_layout(pull(reference, machine="x86_64"), place)
    return read_layout(place, machine="x86_64")


@pytest.fixture(params=[from_registry, from_layout], ids=["registry", "layout"])
def proof(request, tmp_path, images) -> Callable[[Reference], dict[str, Finding]]:
    """The findings of a serving image, by what they are about."""

    def proved(serve: Reference) -> dict[str, Finding]:
        one, other = (request.param(it, tmp_path) for it in (images.train, serve))
        return {it.about: it for it in prove_sharing(one, other, lambda *_: None)}

    return proved


def test_what_was_built_again_of_the_same_run_agrees(images, proof):
    found = proof(images.again)
    assert list(found) == ["layers"]
    assert found["layers"].agrees


def test_a_single_moved_pin_is_named(images, proof):
    found = proof(images.moved)
    assert {about for about, it in found.items() if not it.agrees} == {"layers", "tool"}, found
    assert (found["tool"].wanted, found["tool"].found) == ("1.0", "0.9")
    layers = [str(it.descriptor.digest) for it in pull(images.moved, machine="x86_64").layers]
    assert found["tool"].says == f"tool 1.0 -> 0.9 in layer {found['tool'].says[-71:]}"
    assert found["tool"].says[-71:] in layers


def test_a_superset_agrees_and_what_is_added_is_named(images, proof):
    found = proof(images.more)
    assert all(it.agrees for it in found.values()), found
    assert found["added"].packages == ("server 3.0",)


def test_a_program_on_top_agrees(images, proof):
    step = "RUN mkdir -p /app && echo 'import tool' > /app/serve.py"
    found = proof(images.maker.on_top(images.train, "program", step))
    assert all(it.agrees for it in found.values()), found
    assert found["layers"].says.startswith("serving begins with training's ")
    assert "/app/serve.py" in found["added"].says


def test_a_pin_that_is_moved_on_top_is_named(images, proof):
    info = f"{SITE}/tool-%s.dist-info"
    step = f"RUN mv {info % '1.0'} {info % '0.9'} && sed -i 's/^Version: .*/Version: 0.9/' {info % '0.9'}/METADATA"
    found = proof(images.maker.on_top(images.train, "on-top", step))
    assert {about for about, it in found.items() if not it.agrees} == {"layers", "tool"}, found
    assert (found["tool"].wanted, found["tool"].found) == ("1.0", "0.9")
    assert "a layer on top changes them" in found["layers"].says


def test_another_builders_image_of_the_same_run_agrees(images, engine, registry, cache):
    """Assembled and built by an engine, the files are the same."""
    builder = "assemble" if images.maker.builder == "buildkit" else "buildkit"
    image = Maker(images.maker.folder, builder, engine, registry, cache).image("other", TRAINED)
    one, other = (pull(it, machine="x86_64") for it in (images.train, image))
    found = prove_sharing(one, other, lambda *_: None)
    assert all(it.agrees for it in found), found


def test_what_layers_say_is_what_the_images_python_sees(images):
    for reference in (images.train, images.more):
        side = side_of_image(pull(reference, machine="x86_64"), "a", machine="x86_64", report=lambda *_: None)
        images.maker.engine.pull(str(reference))
        python, libc, libc_version, packages = json.loads(
            images.maker.engine.run(str(reference), ["python", "-c", SEEN], network_mode="none")
        )
        assert (side.python, side.libc, side.libc_version) == (python, libc, libc_version)
        assert {it.name: it.version for it in (side.packages or {}).values()} == packages
        assert all(it.content for it in (side.packages or {}).values())
        assert side.framework
        assert (side.framework.name, side.variant, side.machine) == ("tensorflow", "cpu", "x86_64")


def test_packages_have_the_same_content_whoever_installed_them(images):
    wheels = {"tensorflow-cpu": TENSORFLOW, "tool": TOOL}
    side = side_of_image(pull(images.train, machine="x86_64"), "a", machine="x86_64", report=lambda *_: None)
    assert {name: it.content for name, it in (side.packages or {}).items()} == {
        name: content_of(wheel) for name, wheel in wheels.items()
    }
