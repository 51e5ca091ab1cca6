"""TensorFlow's images as an engine builds them of the context: the assembled one's files, settings and predictions."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild.base.debian import debian_base
from envbuild.cli.console import Progress
from envbuild.engine.load import load_into
from envbuild.oci.reference import Reference
from envbuild.report import SILENT
from tests.e2e.services import Engine, command_output
from tests.environ import cleaned
from tests.fakes.index import serving
from tests.fakes.wheels import FakeWheel

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
CASES = {"2.15.1": ("3.11.2", "bookworm"), "2.8.0": ("3.9.2", "bullseye"), "2.21.0": ("3.13.5", "trixie")}
"""TensorFlow by its version, with the Python of a Debian suite; the last is the newest that the profiles have."""
DOCKER = "/usr/bin/docker"
"""Debian's client, which has the first builder; another may be before it on PATH."""
UNREACHABLE = "http://127.0.0.1:9"
SCRIPTS = """
import json, pathlib
from importlib.metadata import distributions
names = sorted({it.name for one in distributions() for it in one.entry_points if it.group == "console_scripts"})
scripts = {}
for name in names:
    path = pathlib.Path("/opt/env/bin", name)
    lines, about = path.read_text().splitlines(), path.stat()
    scripts[name] = [oct(about.st_mode), about.st_uid, about.st_gid, lines[0], *(it for it in lines if it[:5] == "from ")]
print(json.dumps({"scripts": scripts, "paths": sum(1 for it in pathlib.Path("/opt/env").rglob("*"))}))
"""
"""The scripts of entry points, by all that they have to have: mode, owner, interpreter, and what they call."""


@dataclass(frozen=True, slots=True)
class Work:
    """A run without a GPU, the image that was assembled of it, and all that is needed to build that again."""

    folder: Path
    suite: str
    options: tuple[str, ...]
    """What the run was and what it goes on, for `lock` and `from-manifest`."""
    env: dict[str, str]
    envbuild: Callable[..., Any]
    image: str
    """The assembled one's reference."""
    seen: Any
    """What is seen in it."""


def said(engine: Engine, image: str, folder: Path, *command: str, user: str | None = None) -> str:
    """A program's last line, in a container without a network that has the model in /data."""
    places = {folder / "data": "/data", ROOT / "examples": "/examples"}
    volumes = {str(source): {"bind": place, "mode": "rw" if user else "ro"} for source, place in places.items()}
    output = engine.run(image, ["python", "-B", *command], volumes=volumes, user=user, network_mode="none")
    return output.strip().splitlines()[-1]


def seen(engine: Engine, image: str, folder: Path) -> Any:
    """What an image's own Python finds in it, and what the saved model predicts: each number's shortest decimals."""
    predicted = json.loads(said(engine, image, folder, "/examples/predict.py", "/data/model"))
    return json.loads(said(engine, image, folder, "-c", SCRIPTS)) | predicted


@pytest.fixture(scope="module", params=CASES, ids=lambda version: f"tensorflow-{version}")
def work(request, tmp_path_factory, cache, envbuild, registry, engine) -> Iterator[Work]:
    """Assembled from the index, with a model that was trained in that image; nothing of its gigabytes is left."""
    (python, suite), folder = CASES[request.param], tmp_path_factory.mktemp("equivalence")
    env = {"ENVBUILD_CACHE": str(folder / "cache"), "DOCKER_HOST": engine.url, "PIP_FIND_LINKS": ""}
    for name in ("cache", "data"):
        (folder / name).mkdir()
    (cache / "envbuild/bases").mkdir(parents=True, exist_ok=True)
    (folder / "cache/bases").symlink_to(cache / "envbuild/bases")
    record = folder / "record.txt"
    record.write_text(without_gpu((ROOT / f"tests/e2e/frozen/tensorflow-{request.param}.txt").read_text()))
    ran = ("--from", "pip-freeze", "--python", python, "--gpu", "none", "--ran-on", "linux/amd64")
    options = (str(record), *ran, "--base", f"debian:{suite}")
    began = time.monotonic()
    pushed = envbuild(
        "from-manifest", *options, "--out", folder / "out", "--push", f"{registry.host}/equivalence", env=env
    )
    print(f"{request.param} assembled and pushed: {time.monotonic() - began:.0f} s")
    image = pushed.stdout.strip()
    engine.pull(image)
    said(engine, image, folder, "/examples/train.py", "/data/model", user="0")
    found = Work(folder, suite, options, env, envbuild, image, seen(engine, image, folder))
    envbuild("lock", *options, "--out", folder / "lock", "--download", folder / "wheels", env=env)
    yield found
    removed(engine)
    shutil.rmtree(registry.folder / "docker/registry/v2", ignore_errors=True)
    shutil.rmtree(folder)


def without_gpu(record: str) -> str:
    """The record of the same run on a machine without a GPU."""
    kept = "".join(line for line in record.splitlines(keepends=True) if not line.startswith("nvidia-"))
    return re.sub("^tensorflow==", "tensorflow-cpu==", kept, flags=re.MULTILINE)


def removed(engine: Engine, *names: str) -> None:
    """Remove images from an engine, all if none is named, and what its builders keep."""
    for name in names or [it.id for it in engine.client.images.list()]:
        engine.client.images.remove(name, force=True)
    engine.client.api.prune_builds(all=True)


@pytest.mark.parametrize("network", ["online", "offline"])
def test_an_engines_image_is_the_assembled_one_and_predicts_the_same(work, engine, network):
    name, began = f"example.com/equivalence/buildkit:{network}", time.monotonic()
    offline = ("--offline", "--find-links", work.folder / "wheels") if network == "offline" else ()
    # A proxy that no one answers at: who asks for anything while nothing may be asked, fails.
    env = {"HTTPS_PROXY": UNREACHABLE, "HTTP_PROXY": UNREACHABLE} if offline else {}
    out = work.folder / f"buildkit-{network}"
    built = work.envbuild(
        "from-manifest", *work.options, "--builder", "docker", "--load", name, "--out", out, *offline,
        env=work.env | env,
    )  # fmt: skip
    seconds = time.monotonic() - began
    try:
        assert "building by BuildKit" in built.stderr
        # The steps ask an index, by secrets; without a network they are given the wheels.
        assert (out / "context/wheels").exists() == (network != "online")
        check_same(work, engine, name, seconds)
    finally:
        shutil.rmtree(out, ignore_errors=True)
        removed(engine, name)


def test_the_first_builder_asks_an_index_by_the_context_that_was_written_beside_the_assembled_image(work, engine):
    """As a team builds that keeps the folder; last, as this builder keeps its stages until the engine is emptied."""
    name, base = "example.com/equivalence/kept:1", "example.com/equivalence/base:1"
    context = work.folder / "out/context"
    assert not (context / "wheels").exists()
    image = debian_base(work.suite, "x86_64", work.folder / "cache", SILENT)
    with Progress() as progress:
        load_into(engine.client, image, [Reference.parse(base)], progress)
    began, wheels = time.monotonic(), (work.folder / "wheels").iterdir()
    with serving(*(FakeWheel(filename=it.name, data=it.read_bytes()) for it in wheels)) as index:
        given = ("--build-arg", f"BASE={base}", "--build-arg", f"PIP_INDEX_URL={index.url}", "--network", "host")
        command = (DOCKER, "build", "-f", str(context / "Dockerfile.classic"), "-t", name, *given, str(context))
        command_output(*command, env=cleaned(os.environ) | work.env | {"DOCKER_BUILDKIT": "0"})
    check_same(work, engine, name, time.monotonic() - began)


def check_same(work: Work, engine: Engine, name: str, seconds: float) -> None:
    """Fail unless an image has the assembled one's files and settings, and predicts what that predicts."""
    difference = compared(work, name, *(f"opt/env/bin/{script}" for script in work.seen["scripts"]))
    assert difference["equal"], json.dumps({it: difference[it] for it in ("config", "packages")}, indent=1)
    assert seen(engine, name, work.folder) == work.seen
    print(f"{name}: built in {seconds:.0f} s, {work.seen['paths']} paths, {difference['left_out']} left out")


def compared(work: Work, name: str, *ignored: str) -> Any:
    """What `envbuild diff` says, but for the text that pip words in its own way (docs/dockerfile.md)."""
    globs = (word for path in ignored for word in ("--ignore", path))
    done = work.envbuild(
        "diff", work.image, f"docker-daemon:{name}", "--as-installed", "--json", *globs, env=work.env, check=False
    )
    assert done.returncode in (0, 16), done.stderr
    return json.loads(done.stdout)
