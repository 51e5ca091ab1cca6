"""Cloud Build's protocol, with builds that really happen: a real engine, a real registry, Google's own clients."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from envbuild.base.resolve import resolve_base
from envbuild.build.cloud import run_build
from envbuild.build.cloud_plan import CloudBuild, Secret, build_yaml
from envbuild.errors import BuildError
from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.push import push
from envbuild.report import SILENT, SilentReporter
from tests.e2e.services import command_output
from tests.environ import cleaned
from tests.fakes.cloudbuild import FakeCloudBuild
from tests.fakes.cloudbuild_runs import wait
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.unit.test_from_manifest import TENSORFLOW, manifest_of

pytestmark = pytest.mark.real

ANSWER = make_wheel("answer", "1.0", files={"answer.py": "VALUE = 42\n"})
CLIENT = "/usr/bin/docker"
"""Debian's, which has BuildKit without a plugin."""
OPTIONS = CloudBuild(project="proj-1", bucket="gs://builds/contexts")
TOOL = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
  FILE *file;
  if (!strcmp(words[1], "fail")) { puts("no such package"); return 3; }
  if (!strcmp(words[1], "sleep")) { puts("begun"); fflush(stdout); return sleep(120); }
  file = fopen(words[2], "r");
  for (count = 0; file && fgetc(file) != EOF; count++) {}
  printf("%d bytes\n", count);
  return !count;
}
"""


class Told(SilentReporter):
    """A Report that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    step = warn = note


@pytest.fixture(scope="session")
def tool(tmp_path_factory) -> Path:
    """A program that needs nothing else in its image."""
    folder = tmp_path_factory.mktemp("tool")
    (folder / "tool.c").write_text(TOOL)
    command_output("gcc", "-static", "-Os", "-o", str(folder / "tool"), str(folder / "tool.c"))
    return folder / "tool"


@pytest.fixture
def context(tmp_path, tool):
    """Make a context whose Dockerfile ends with these lines."""

    def made(*lines: str) -> Path:
        folder = tmp_path / "context"
        folder.mkdir()
        shutil.copy(tool, folder)
        first = ("FROM scratch", "COPY tool /tool", f"LABEL test={uuid.uuid4().hex}")
        (folder / "Dockerfile").write_text("\n".join((*first, *lines)) + "\n")
        return folder

    return made


@pytest.fixture
def cloud(engine, tmp_path, monkeypatch):
    environment = cleaned(os.environ) | {"DOCKER_HOST": engine.url, "DOCKER_CONFIG": str(tmp_path / "docker")}
    with FakeGcs() as gcs, FakeCloudBuild(gcs, docker=[CLIENT], environment=environment) as api:
        gcs.create_bucket("builds")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        monkeypatch.setenv("ENVBUILD_CLOUDBUILD_ENDPOINT", api.url)
        monkeypatch.setenv("ENVBUILD_CLOUDBUILD_TIMEOUT", "5")
        yield api


@pytest.fixture
def target(registry):
    return Reference(registry.host, f"cloud/{uuid.uuid4().hex}", "v1")


def test_the_image_is_the_one_in_the_registry(cloud, context, target, engine):
    told = Told()
    options = CloudBuild(project="proj-1", bucket="gs://builds/contexts", build_args=(("PRICE", "$5"),))
    made = run_build(context("ARG PRICE", "LABEL price=$PRICE"), options, target, told)
    with Registry(target.registry) as registry:
        assert registry.manifest_digest(target.repository, "v1") == str(made.digest)
    assert engine.pull(str(made)).attrs["Config"]["Labels"]["price"] == "$5"
    assert any("COPY tool /tool" in line for line in told.lines)
    assert [one.status.name for one in cloud.builds] == ["SUCCESS"]


def test_a_secret_is_mounted_and_stays_out_of_everything(cloud, context, target):
    version = "projects/proj-1/secrets/pip/versions/1"
    cloud.secrets[version] = "canary-of-the-index"
    secrets = (Secret.parse(f"pip={version}"),)
    folder = context('RUN --mount=type=secret,id=pip,required=true ["/tool", "count", "/run/secrets/pip"]')
    told = Told()
    made = run_build(folder, CloudBuild(project="proj-1", bucket="gs://builds", secrets=secrets), target, told)
    assert any("19 bytes" in line for line in told.lines)
    with Registry(target.registry) as registry:
        manifest = json.loads(registry.manifest(target.repository, str(made.digest)).data)
    kept = b"".join(one.data for one in cloud.gcs.buckets["builds"].objects.values())
    assert manifest["layers"]
    assert b"canary" not in kept + str(cloud.builds).encode() + "".join(told.lines).encode()


def test_the_printed_yaml_builds_the_same(cloud, context, target):
    """As gcloud would: the file, a source beside it, and the same service."""
    import yaml

    first = run_build(context(), OPTIONS, target, Told())
    [done] = cloud.builds
    source = done.source.storage_source
    described = yaml.safe_load(build_yaml(OPTIONS, target))
    described["source"] = {"storageSource": {"bucket": source.bucket, "object": source.object_}}
    with cloud.lock:
        cloud.create(OPTIONS.parent, described)
    run = list(cloud.runs.values())[-1]
    wait(run)
    assert run.build.results.images[0].digest == str(first.digest)


def test_a_failing_step_ends_with_its_words(cloud, context, target):
    with pytest.raises(BuildError, match="the build failed at step image") as caught:
        run_build(context('RUN ["/tool", "fail"]'), OPTIONS, target, Told())
    assert "no such package" in caught.value.what
    with Registry(target.registry) as registry:
        assert registry.manifest_digest(target.repository, "v1") is None


def test_a_build_that_takes_too_long_is_stopped(cloud, context, target):
    options = CloudBuild(project="proj-1", bucket="gs://builds", timeout=3)
    with pytest.raises(BuildError, match="not done after 3 s at step image"):
        run_build(context('RUN ["/tool", "sleep"]'), options, target, Told())


def test_a_registry_that_takes_nothing_is_told(cloud, context, registry):
    nowhere = Reference("127.0.0.1:1", "cloud/nowhere", "v1")
    with pytest.raises(BuildError, match="failed to push") as caught:
        run_build(context(), OPTIONS, nowhere, Told())
    assert "roles/artifactregistry.writer" in caught.value.todo


def test_a_lost_reply_makes_no_second_build(cloud, context, target):
    cloud.fail("create", kind="lost")
    assert run_build(context(), OPTIONS, target, Told()).digest
    assert len(cloud.builds) == 1


@pytest.fixture(scope="session")
def base(cache, registry) -> str:
    """A bootstrapped Debian, in a registry."""

    def never(*_):
        raise AssertionError("a bootstrapped base needs no registry")

    resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=never, report=SILENT)
    [*_, found] = (cache / "envbuild/bases").glob("debian-bookworm-x86_64-*/index.json")
    target = Reference(registry.host, "cloud/base", "bookworm")
    return str(push(read_layout(found.parent, machine="x86_64"), target).reference)


@pytest.fixture
def arguments(tmp_path, base):
    """`from-manifest --builder cloudbuild` for a small run."""
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"), ("answer", "1.0"))))
    own = ["--builder", "cloudbuild", "--project", "proj-1", "--cloudbuild-bucket", "gs://builds"]
    return ["from-manifest", manifest, "--base", base, "--out", tmp_path / "out", *own]


@pytest.fixture
def variables(cloud):
    """What points the command at the fakes."""
    names = ("STORAGE_EMULATOR_HOST", "ENVBUILD_CLOUDBUILD_ENDPOINT", "ENVBUILD_CLOUDBUILD_TIMEOUT")
    with serving(TENSORFLOW, ANSWER) as index:
        yield {name: os.environ[name] for name in names} | {"UV_DEFAULT_INDEX": index.url}


@pytest.fixture
def command(envbuild, arguments, variables):
    """Run it with more arguments; `check=False` gives what failed."""
    return lambda *more, check=True: envbuild(*arguments, *more, env=variables, check=check)


def template(folder: Path, script: str) -> Path:
    """Let the step that installs begin with this."""
    folder.mkdir()
    block = "{% block settings %}" + script + "{% endblock %}"
    (folder / "Dockerfile.j2").write_text('{% extends "envbuild/Dockerfile.j2" %}' + block)
    return folder


def test_a_manifest_becomes_an_image_and_a_stamp(command, cloud, registry, engine, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/saved_model.pb").write_bytes(b"graph")
    name = f"{registry.host}/cloud/{uuid.uuid4().hex}"
    result = json.loads(command("--push", f"{name}:v1", "--stamp", tmp_path / "model", "--json").stdout)
    assert result["image"] == f"{name}@{result['digest']}"
    assert cloud.builds[0].results.images[0].digest == result["digest"]
    found = json.loads((tmp_path / "model/envbuild/pointer.json").read_bytes())["objects"]["saved_model.pb"]["metadata"]
    assert found["envbuild-image-train-cpu"] == result["image"]
    engine.pull(result["image"])
    assert engine.run(result["image"], ["python", "-c", "import answer; print(answer.VALUE)"]).strip() == "42"


def test_a_dry_run_prints_what_gcloud_reads(command, cloud):
    import yaml

    printed = command("--push", "example.com/team/model:v1", "--dry-run", "--region", "europe-west1").stdout
    described = yaml.safe_load(printed)
    assert described["substitutions"] == {"_IMAGE": "example.com/team/model:v1"}
    assert described["logsBucket"] == "gs://builds/logs"
    assert "--region=europe-west1" in printed
    assert "--network=none" in described["steps"][0]["args"], "the context has the wheels"
    assert not cloud.requests


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--push", "example.com/a:v1", "--base", "debian:bookworm", "--dry-run"), "lies in a registry"),
        (("--dry-run",), "give --push"),
        (("--push", "example.com/a:v1", "--platform", "linux/arm64"), "Cloud Build's machines are linux/amd64"),
        (("--push", "example.com/a:v1", "--project", "another-1"), "404"),
        (("--push", "example.com/a:v1", "--bytecode"), "only the assembler"),
        (("--push", "example.com/a:v1", "--builder", "docker"), "options of Cloud Build"),
    ],
)
def test_what_cloud_build_cannot_do_is_told_before_the_work(command, more, words):
    done = command(*more, check=False)
    assert done.returncode != 0
    assert words in done.stderr
    assert "locking" not in done.stderr


def test_a_wheel_that_pip_refuses_is_named(command, registry, tmp_path):
    script = "echo 'ERROR: Could not find a version that satisfies the requirement answer==1.0'; exit 1;"
    templates = template(tmp_path / "templates", script)
    done = command("--push", f"{registry.host}/cloud/none:v1", "--template", templates, check=False)
    assert done.returncode == 13
    assert "satisfies the requirement answer==1.0" in done.stderr


def test_ctrl_c_cancels_the_build(arguments, variables, cache, cloud, registry, tmp_path):
    words = ["--push", f"{registry.host}/cloud/none:v1", "--template"]
    words.append(str(template(tmp_path / "templates", 'echo "beg""un"; sleep 120;')))
    process = subprocess.Popen(
        [sys.executable, "-m", "envbuild", *map(str, arguments), *words], stderr=subprocess.PIPE, text=True,
        env=cleaned(os.environ) | {"ENVBUILD_CACHE": str(cache / "envbuild")} | variables,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr as output:
        assert any("begun" in line for line in output)
        process.send_signal(signal.SIGINT)
        rest = output.read()
    assert process.wait(60) == 130
    [run] = cloud.runs.values()
    wait(run)
    assert f"build {run.build.id} is cancelled" in rest
    assert run.build.status.name == "CANCELLED"


def test_a_failed_build_leaves_no_stamp(command, cloud, registry, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/saved_model.pb").write_bytes(b"graph")
    cloud.environment = {**cloud.environment, "DOCKER_HOST": "unix:///nowhere"}
    done = command("--push", f"{registry.host}/cloud/none:v1", "--stamp", tmp_path / "model", check=False)
    assert done.returncode == 13
    assert "the build failed at step image" in done.stderr
    assert not (tmp_path / "model/envbuild").exists()
