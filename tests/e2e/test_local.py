"""`envbuild local`, as people use it: a real engine and registry, a real base, small wheels."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from envbuild.lock.formats import pylock_text, read_pylock
from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampEntry
from envbuild.stamp.stamping import stamp
from tests.e2e.api_tap import tapped
from tests.e2e.docker_builds import WHEELS, explained, wheel_folder
from tests.e2e.services import Engine, running_engine
from tests.environ import cleaned
from tests.fakes.libraries import nvidia_smi
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import manifest_of

pytestmark = pytest.mark.real
CUBLAS_NAME, CUBLAS_VERSION = "nvidia-cublas-cu12", "12.2.5.6"
CUBLAS = make_wheel(CUBLAS_NAME, CUBLAS_VERSION, tags=["py3-none-manylinux1_x86_64"])
GPU = {"kind": "nvidia", "driver": "535.129.03", "gpus": [{"name": "NVIDIA A100-SXM4-40GB", "memory": 42949672960}]}
SHOW = "import importlib.metadata as m, sys; print(*sorted(d.name for d in m.distributions())); sys.exit(7)"


@dataclass(slots=True)
class Local:
    """A folder with a model and a manifest, from which the commands are run."""

    folder: Path
    engine: Engine
    host: str
    cache: Path

    def __post_init__(self) -> None:
        (self.folder / "model").mkdir(parents=True)
        (self.folder / "model/saved_model.pb").write_bytes(b"graph")
        self.write(manifest_of())

    @property
    def repository(self) -> str:
        return f"{self.host}/local/{re.sub('[^a-z0-9]', '', self.folder.parent.name)[-30:]}"

    @property
    def environment(self) -> dict[str, str]:
        (self.folder.parent / "cache").mkdir(exist_ok=True)
        bases = self.folder.parent / "cache/bases"
        if not bases.exists():
            bases.symlink_to(self.cache / "envbuild/bases")
        ours = {"ENVBUILD_CACHE": str(self.folder.parent / "cache"), "NO_COLOR": "1", "DOCKER_HOST": self.engine.url}
        return cleaned(os.environ) | ours

    def write(self, manifest: dict) -> None:
        (self.folder / "manifest.json").write_text(json.dumps(manifest))

    def command(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "envbuild", *map(str, words)],
            cwd=self.folder, env=self.environment | env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def local(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        done = self.command("local", *words, **env)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def pushed(self) -> str:
        """Build, push and stamp; the reference by digest."""
        wheels = self.folder.parent / "wheels"
        if not wheels.exists():
            wheel_folder(wheels)
        done = self.command(
            *("from-manifest", "manifest.json", "--base", "debian:bookworm", "--find-links", wheels, "--offline"),
            *("--push", self.repository, "--stamp", "model", "--out", self.folder.parent / "out"),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def containers(self) -> list[str]:
        return [it.name for it in self.engine.client.containers.list(all=True)]


@pytest.fixture
def local(tmp_path, engine, registry, cache):
    return Local(folder=tmp_path / "mein Ordner ü", engine=engine, host=registry.host, cache=cache)


def test_the_stamped_image_is_pulled_by_digest_and_not_built(local):
    reference = local.pushed()
    done = local.local("model", "--", "python", "-c", SHOW)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "tensorflow-cpu tool\n"
    assert f"Pulling {reference}" in done.stderr
    assert "locking" not in done.stderr
    again = local.local(reference, "--", "sh", "-c", "id -u; touch made; echo aside >&2")
    assert (again.returncode, again.stdout) == (0, f"{os.getuid()}\n"), again.stderr
    assert "aside" in again.stderr
    assert (local.folder / "made").stat().st_uid == os.getuid()
    assert local.containers() == []


def gpu_stamped(local: Local, *, there: bool = False) -> None:
    """Stamp the model as if its GPU image had been pushed, or with one that is there; the lock is what such a run has."""
    pushed = local.pushed()
    run = manifest_of(("tensorflow", "2.15.1"), ("tool", "1.0"), (CUBLAS_NAME, CUBLAS_VERSION), accelerator=GPU)
    data = json.dumps(run).encode()
    [copy] = (local.folder / "model/envbuild").glob("pylock.*.toml")
    lock = read_pylock(copy.read_bytes(), "lock", copy.parent)
    [cpu, *others] = lock.wheels
    gpu = replace(cpu, name="tensorflow", filename=cpu.filename.replace("tensorflow_cpu", "tensorflow"))
    cublas = replace(lock.wheels[-1], name=CUBLAS_NAME, version=CUBLAS_VERSION, filename=CUBLAS.filename)
    wheels = tuple(sorted((gpu, *others, cublas), key=lambda it: it.name))
    digest = Digest.parse(pushed.partition("@")[2]) if there else Digest.of(b"an image with CUDA")
    entry = StampEntry(
        role="train", variant="gpu", platform="linux/amd64", reference=f"{local.repository}@{digest}",
        digest=digest, environment=digest,
    )  # fmt: skip
    text = pylock_text(replace(lock, wheels=wheels), base=dict(lock.base))
    (local.folder / "model/saved_model.pb").write_bytes(b"another graph")
    stamp(str(local.folder / "model"), entry, manifest=data, lock=text, now=datetime.now(UTC))


def test_a_model_stamped_for_a_gpu_comes_up_as_its_cpu_variant(local):
    gpu_stamped(local)
    plan = local.local("model", "--dry-run", "--json")
    value = json.loads(plan.stdout)
    assert (value["variant"], value["build"], value["gpus"]) == ("cpu", True, False)
    done = local.local("model", "--find-links", local.folder.parent / "wheels", "--offline", "--", "python", "-c", SHOW)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "tensorflow-cpu tool\n"
    assert "tensorflow 2.15.1 -> tensorflow-cpu 2.15.1" in done.stderr
    assert CUBLAS_NAME in done.stderr
    forced = local.local("model", "--variant", "gpu", "--", "true")
    assert "--check warn" in explained(forced, 16, "GPU")
    assert "what the run had is missing or different here" in forced.stderr


@pytest.fixture
def workstation(tmp_path, registry, cache):
    """A machine with GPUs, as nvidia-smi tells, and an engine with NVIDIA's toolkit, whose hook takes notes."""
    toolkit = tmp_path / "toolkit"
    nvidia_smi(toolkit / "bin")
    hook = toolkit / "nvidia-container-runtime-hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> {toolkit}/hook.log\n')
    hook.chmod(0o755)
    runtime = ("--add-runtime", f"nvidia={shutil.which('runc')}")
    (tmp_path / "tap").mkdir()
    with (
        running_engine(options=runtime, programs=str(toolkit)) as engine,
        tapped(engine.socket, tmp_path / "tap") as tap,
    ):
        yield Local(folder=tmp_path / "work", engine=engine, host=registry.host, cache=cache), tap, toolkit


def test_a_gpu_of_this_machine_is_asked_for_where_engine_and_driver_serve_it(workstation):
    local, tap, toolkit = workstation
    gpu_stamped(local, there=True)
    seen = {"DOCKER_HOST": f"unix://{tap.socket}", "PATH": f"{toolkit}/bin:{os.environ['PATH']}"}
    plan = json.loads(local.local("model", "--check", "warn", "--dry-run", "--json", **seen).stdout)
    assert (plan["variant"], plan["gpus"], plan["build"]) == ("gpu", True, False)
    ran = local.local("model", "--check", "warn", "--", "echo", "ran", **seen)
    assert (ran.returncode, ran.stdout) == (0, "ran\n"), ran.stderr
    [asked] = tap.created()[-1]["HostConfig"]["DeviceRequests"]
    assert (asked["Count"], asked["Capabilities"]) == (-1, [["gpu"]])
    assert (toolkit / "hook.log").read_text().split() == ["prestart"]
    one = local.local("model", "--gpus", "1", "--check", "warn", "--", "true", **seen)
    assert one.returncode == 0, one.stderr
    assert tap.created()[-1]["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["1"]
    inside = local.local("model", "--gpus", "none", "--check", "strict", "--", "echo", "ran", **seen)
    assert (inside.returncode, inside.stdout) == (16, ""), inside.stderr


def test_a_manifest_without_a_stamp_builds(local):
    wheels = wheel_folder(local.folder.parent / "wheels", *WHEELS)
    options = ("--base", "debian:bookworm", "--find-links", wheels, "--offline")
    first = local.local("manifest.json", *options, "--", "python", "-c", SHOW)
    assert (first.returncode, first.stdout) == (7, "tensorflow-cpu tool\n"), first.stderr
    assert {it.name for it in local.folder.iterdir()} == {"model", "manifest.json"}


def test_without_a_daemon_the_way_out_is_named_and_goes(local):
    local.pushed()
    dead = {"DOCKER_HOST": f"unix://{local.folder}/none.sock"}
    said = explained(local.local("model", "--", "true", **dead), 17, f"where: unix://{local.folder}/none.sock")
    assert "--venv" in said
    wheels = local.folder.parent / "wheels"
    way = ("--venv", "my venv", "--find-links", wheels, "--offline")
    done = local.local("model", *way, "--", "python", "-c", SHOW, **dead)
    assert (done.returncode, done.stdout) == (7, "tensorflow-cpu tool\n"), done.stderr


def test_the_contract_holds_before_the_start_and_inside(local):
    needs = {
        "variables": [{"name": "BUCKET", "present": True}],
        "data": [{"uri": "gs://acme-data/p", "variable": "DATA"}],
    }
    local.write(manifest_of(contract=needs))
    reference = local.pushed()
    stopped = explained(local.local("model", "--", "echo", "ran"), 16, "BUCKET")
    assert f"Pulling {reference}" not in stopped
    warned = local.local("model", "--check", "warn", "--", "echo", "ran")
    assert (warned.returncode, warned.stdout) == (0, "ran\n"), warned.stderr
    assert "envbuild-check: BUCKET" in warned.stderr
    (local.folder / "data").mkdir()
    (local.folder / "data/x.csv").write_text("1,2\n")
    (local.folder / ".env").write_text('BUCKET="a b"\n')
    ways = ("--env-file", ".env", "-e", "DATA=gs://acme-data/p/x.csv", "--data", "gs://acme-data/p=./data")
    done = local.local("model", *ways, "--", "sh", "-c", 'echo "$BUCKET"; cat "$DATA"')
    assert (done.returncode, done.stdout) == (0, "a b\n1,2\n"), done.stderr


def test_editors_get_the_image_by_digest(local):
    reference = local.pushed()
    done = local.local("model", "--devcontainer", "--compose", "-e", "TOKEN=hush")
    assert done.stdout.split() == [".devcontainer/devcontainer.json", "compose.yaml"], done.stderr
    comment, text = (local.folder / ".devcontainer/devcontainer.json").read_text().split("\n", 1)
    assert comment.startswith("// Written by envbuild")
    written = json.loads(text)
    assert written["image"] == reference
    texts = (local.folder / ".devcontainer/devcontainer.json").read_text(), (local.folder / "compose.yaml").read_text()
    assert reference in texts[1]
    assert all("hush" not in it for it in texts)


KEYS = (".ssh/id_ed25519", ".config/gcloud/credentials.db", ".aws/credentials", ".netrc", "data/x.csv")


def test_a_manifest_cannot_have_the_callers_files_and_variables_read(local):
    home = local.folder.parent / "home"
    for name in KEYS:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("host-secret")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "docker.sock"))
    (local.folder / "link").symlink_to(home / ".ssh")
    (local.folder / "data").mkdir()
    (local.folder / "data/mine.csv").write_text("mine")
    places = [
        *(f"{home}/{it}" for it in KEYS), str(home), f"{home}/.ssh", f"file://{home}/.aws", f"{local.folder}/link",
        f"{local.folder}/../home/.config", "/root", "/var/log", f"../..{home}/.netrc", f"{local.folder}/data",
    ]  # fmt: skip
    token = "AWS_SECRET_ACCESS_KEY"
    needs = {"variables": [{"name": token, "present": True}], "data": [{"uri": it} for it in places]}
    local.write(manifest_of(contract=needs, variables={token: "placeholder-0123456789"}))
    local.pushed()
    here, secret = {"HOME": str(home)}, {token: "host-secret"}
    paths = shlex.join([*(f"{home}/{it}" for it in KEYS), f"{local.folder}/link/id_ed25519", f"{home}/docker.sock"])
    look = f'for it in {paths}; do test -e "$it" && echo found $it; done; env; cat {shlex.quote(str(local.folder))}/data/mine.csv'
    done = local.local("model", "--check", "off", "--yes-data", "--", "sh", "-c", look, **here, **secret)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("mine")
    assert "found" not in done.stdout
    assert "host-secret" not in done.stdout
    assert f"give --data {home}/data/x.csv={home}/data/x.csv" in done.stderr
    assert local.local("model", "--devcontainer", "--compose", "--check", "warn", **here, **secret).returncode == 0
    volumes = yaml.safe_load((local.folder / "compose.yaml").read_text())["services"]["env"]["volumes"]
    assert [it["source"] for it in volumes] == [".", str(local.folder / "model")]
    editor = json.loads((local.folder / ".devcontainer/devcontainer.json").read_text().partition("\n")[2])
    assert editor["mounts"] == [f"type=bind,source={local.folder}/model,target={local.folder}/model,readonly"]
    assert token not in editor["containerEnv"]
    assert f"${{{token}" not in (local.folder / "compose.yaml").read_text()
