"""`deploy-check` in a shell, as pipelines run it, with a real registry and images that a real engine built."""

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.services import Engine, LocalRegistry
from tests.environ import cleaned
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

pytestmark = pytest.mark.real

SERVER = ("RUN mkdir /app && echo 'print(1)' > /app/main.py", 'CMD ["python", "/app/main.py"]')
CHANGED = ("RUN echo 'changed = True' >> /opt/env/lib/python3.11/site-packages/tool.py",)


class Place:
    """A stamped model, and a repository for images of others."""

    def __init__(self, folder: Path, engine: Engine, registry: LocalRegistry, train: str) -> None:
        self.folder, self.engine, self.train = folder, engine, train
        self.name = f"{registry.host}/deploy/a{uuid4().hex[:8]}"

    def built(self, tag: str, *steps: str) -> str:
        """What the engine makes on the training image; its reference by tag."""
        self.engine.pull(self.train)
        text = "\n".join((f"FROM {self.train}", "USER 0", *steps))
        self.engine.client.images.build(fileobj=io.BytesIO(text.encode()), tag=f"{self.name}:{tag}", rm=True)
        for event in self.engine.client.api.push(self.name, tag=tag, stream=True, decode=True):
            assert "error" not in event, event
        return f"{self.name}:{tag}"

    def deploy(self, image: str) -> subprocess.CompletedProcess[str]:
        """A step of a pipeline, which deploys by printing what it would deploy."""
        check = shlex.join([sys.executable, "-m", "envbuild", "deploy-check", "model", image])
        script = f'set -e; image="$({check})"; echo "deploying $image"'
        return subprocess.run(
            ["sh", "-c", script],
            cwd=self.folder,
            # No engine is asked: there is none at this address.
            env=cleaned(os.environ) | {"DOCKER_HOST": "tcp://127.0.0.1:9", "ENVBUILD_CACHE": str(self.folder / "cache")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory, engine, registry, envbuild) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "model").mkdir()
    (folder / "model/saved_model.pb").write_bytes(b"graph")
    for wheel in (TENSORFLOW, TOOL):
        (folder / wheel.filename).write_bytes(wheel.data)
    (folder / "manifest.json").write_text(json.dumps(manifest_of()))
    done = envbuild(
        *("from-manifest", folder / "manifest.json", "--base", "debian:bookworm", "--offline", "--find-links", folder),
        *("--out", folder / "out", "--push", f"{registry.host}/deploy/train:1", "--stamp", folder / "model"),
    )
    found = Place(folder, engine, registry, done.stdout.strip())
    yield found
    for image in engine.client.images.list():
        if any(name.startswith(f"{registry.host}/deploy/") for name in (*image.tags, *image.attrs["RepoDigests"])):
            engine.client.images.remove(image.id, force=True)


def test_the_stamped_image_and_one_that_an_engine_built_on_it_are_deployed_by_digest(place):
    done = place.deploy(place.train.partition("@")[0] + ":1")
    assert (done.returncode, done.stdout) == (0, f"deploying {place.train}\n"), done.stderr
    done = place.deploy(place.built("good", *SERVER))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"deploying {place.name}@sha256:")
    assert "serving begins with training's" in done.stderr


def test_a_package_that_a_layer_changed_ends_the_pipeline(place):
    done = place.deploy(place.built("bad", *SERVER, *CHANGED))
    assert (done.returncode, done.stdout) == (16, ""), done.stderr
    assert "error    tool: " in done.stderr


def test_a_model_that_was_replaced_ends_the_pipeline(place):
    file = place.folder / "model/saved_model.pb"
    file.write_bytes(b"other")
    try:
        done = place.deploy(place.train)
    finally:
        file.write_bytes(b"graph")
    assert (done.returncode, done.stdout) == (16, "")
    assert "[artifact-stamp]" in done.stderr
