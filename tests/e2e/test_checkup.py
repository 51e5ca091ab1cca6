"""The start-up check in images of both builders, started by a real engine as whoever and in whatever is there."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.services import Engine, report_of
from tests.environ import cleaned
from tests.fakes.libraries import NVML, shared_library
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

pytestmark = pytest.mark.real

CHECK = "/opt/env/bin/envbuild-check"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
"""Where NVIDIA's toolkit puts the driver's library."""
OTHER = make_wheel("tool", "0.9", entry_points={"console_scripts": {"tool": "tool:main"}})
MOVING = """
FROM {image}
USER 0
COPY tool-0.9-py3-none-any.whl /wheels/
RUN /usr/bin/python3.11 -m venv /pip && PYTHONPATH=/pip/lib/python3.11/site-packages \
    python -m pip install --no-index --find-links /wheels tool==0.9
USER 65532
"""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    stdout: str
    stderr: str

    @property
    def told(self) -> list[str]:
        """What each line says, without what to do."""
        return [line.removeprefix("envbuild-check: ").partition(";")[0] for line in self.stderr.splitlines()]


@dataclass(frozen=True, slots=True)
class Made:
    """An image in an engine."""

    engine: Engine
    name: str

    def run(self, *command: str, contract: Any = None, mode: str = "strict", **options: Any) -> Done:
        """Start the command behind the check, in a container that is gone afterwards."""
        variables = {"ENVBUILD_CHECK": mode, **options.pop("environment", {})}
        variables |= {} if contract is None else {"ENVBUILD_CONTRACT": json.dumps(contract)}
        container = self.engine.client.containers.run(
            self.name, [CHECK, *command], detach=True, environment=variables, network_mode="none", **options
        )
        try:
            code = container.wait(timeout=60)["StatusCode"]
            stdout, stderr = (container.logs(stdout=it, stderr=not it).decode() for it in (True, False))
            return Done(code, stdout, stderr)
        finally:
            container.remove(force=True, v=True)


def made(folder: Path, engine: Engine, cache: Path, name: str, *options: str) -> Made:
    (folder / "wheels").mkdir(exist_ok=True)
    for wheel in (TENSORFLOW, TOOL):
        (folder / "wheels" / wheel.filename).write_bytes(wheel.data)
    (folder / "manifest.json").write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"), ("tool", "1.0"))))
    places = ("--out", folder / "out", "--find-links", folder / "wheels", "--base", "debian:bookworm")
    command = [sys.executable, "-m", "envbuild", "from-manifest", folder / "manifest.json", *places, *options]
    ours = {"ENVBUILD_CACHE": str(cache / "envbuild"), "DOCKER_HOST": engine.url}
    done = subprocess.run(
        [*map(str, command), "--offline", "--load", name],
        env=cleaned(os.environ) | ours, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, report_of(done)
    return Made(engine, name)


@pytest.fixture(scope="module")
def image(tmp_path_factory, engine, cache) -> Iterator[Made]:
    """The assembled one."""
    found = made(tmp_path_factory.mktemp("checkup"), engine, cache, "example.com/checkup:assembled")
    yield found
    engine.client.images.remove(found.name, force=True)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Data that containers are given."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("12 bytes now")
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data/file").chmod(0o644)
    return tmp_path / "data"


def mounted(folder: Path) -> dict[str, dict[str, str]]:
    return {str(folder): {"bind": "/gcs/b/p", "mode": "ro"}}


def test_all_is_well_for_any_user_in_a_container_that_cannot_be_written(image, folder):
    contract = {
        "variables": ["BUCKET"],
        "packages": {"tool": "1.0", "tensorflow-cpu": "2.15.1"},
        "data": [{"path": "/gcs/b/p", "uri": "gs://b/p", "objects": 1}, {"path": "/gcs/b/p/file", "size": 12}],
    }
    variables = {"BUCKET": "b", "PYTHONHOME": "/nonsense", "PYTHONPATH": "/nonsense", "HOME": ""}
    for user in ("0", "65532:65532", "12345:0"):
        done = image.run(
            "--", "sh", "-c", "id -u; exit 7",
            contract=contract, environment=variables, user=user, read_only=True, volumes=mounted(folder),
        )  # fmt: skip
        assert (done.code, done.stdout, done.stderr) == (7, f"{user.partition(':')[0]}\n", "")


@pytest.mark.parametrize(("mode", "code", "started"), [("strict", 16, ""), ("warn", 0, "on\n"), ("off", 0, "on\n")])
def test_each_fault_stops_or_warns_as_it_is_said(image, folder, mode, code, started):
    (folder / "file").chmod(0o600)
    contract = {
        "variables": ["BUCKET"],
        "packages": {"tool": "0.9"},
        "data": [{"path": "/gcs/b/p/file"}, {"path": "/gcs/b/q", "uri": "gs://b/q"}],
        "gpu": {"count": 1},
    }
    done = image.run("--", "echo", "on", contract=contract, mode=mode, volumes=mounted(folder))
    faults = [
        "BUCKET is not set, and the program reads it",
        "the data at /gcs/b/p/file cannot be read: Permission denied",
        "the data at /gcs/b/q (gs://b/q) is not there",
        "tool is 1.0 here, and has to be 0.9",
        "no GPU is visible, and the program needs 1",
    ]
    stopped = ["this is ENVBUILD_CHECK=strict, so nothing is started"]
    told = {"strict": faults + stopped, "warn": faults, "off": []}[mode]
    assert (done.code, done.stdout, done.told) == (code, started, told)


def test_what_pip_changes_in_an_image_on_top_is_found(image, tmp_path):
    (tmp_path / OTHER.filename).write_bytes(OTHER.data)
    (tmp_path / "Dockerfile").write_text(MOVING.format(image=image.name))
    name = "example.com/checkup:moved"
    image.engine.client.images.build(path=str(tmp_path), tag=name, rm=True)
    try:
        done = Made(image.engine, name).run("--", "true")
        assert (done.code, done.told[0]) == (16, "tool is 0.9 here, and has to be 1.0")
    finally:
        image.engine.client.images.remove(name, force=True)


@pytest.mark.parametrize(
    ("asks", "code", "told"),
    [
        ({"count": 1, "memory": 40 << 30, "driver": "525.60.13", "capabilities": ["8.0"]}, 0, []),
        ({"memory": 80 << 30}, 16, ["the GPU has 40.0 GiB of memory, and the program needs 80.0 GiB"]),
        ({"driver": "580.65.06"}, 16, ["the driver is 570.86.10, and the environment needs 580.65.06"]),
        ({"count": 3}, 16, ["2 GPUs are visible, and the program needs 3"]),
    ],
)
def test_a_smaller_gpu_and_an_older_driver_are_found(image, tmp_path, asks, code, told):
    text = NVML.read_text().replace("*current = *pending = 1", "*current = *pending = 0")
    library = shared_library(tmp_path / "libnvidia-ml.so.1", text)
    volumes = {str(library): {"bind": LIBRARY, "mode": "ro"}}
    done = image.run("--", "true", contract={"gpu": asks}, volumes=volumes)
    assert (done.code, done.told[:-1] if code else done.told) == (code, told)


def test_a_command_that_is_not_there_or_cannot_run_ends_as_with_a_shell(image):
    assert image.run("--", "nothing-of-this-name").code == 127
    assert image.run("--", "/etc").code == 126


def test_an_engine_puts_the_very_same_files_there(image, tmp_path, cache):
    other = made(tmp_path, image.engine, cache, "example.com/checkup:buildkit", "--builder", "docker")
    try:
        paths = (CHECK, "/opt/env/share/envbuild/lock.json", "/opt/env/share/envbuild", "/opt/env/share")
        one, two = ([_member(it, path) for path in paths] for it in (image, other))
        assert one == two
        assert [it[1] for it in one] == [0o755, 0o644, 0o755, 0o755]
        assert other.run("--", "true").code == 0
    finally:
        image.engine.client.images.remove(other.name, force=True)


def _member(image: Made, path: str) -> tuple[str, int, int, int, bytes]:
    """Path, mode, owners and content of a file in an image."""
    container = image.engine.client.containers.create(image.name, ["true"])
    try:
        pieces, _ = container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            member = archive.next()
            assert member is not None
            content = archive.extractfile(member)
            return path, member.mode & 0o7777, member.uid, member.gid, content.read() if content else b""
    finally:
        container.remove()
