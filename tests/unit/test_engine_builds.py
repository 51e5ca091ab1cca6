"""Builds by an engine: what it is asked, what its answers come to, and what is removed again."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.engine.buildkit import (
    Client,
    Request,
    Transcript,
    build_remotely,
    built,
    find_client,
    loaded_base,
    require_buildkit,
    require_buildx,
)
from envbuild.engine.client import translated_errors
from envbuild.engine.load import push_image
from envbuild.errors import BuildError, MissingComponentError, RegistryError
from envbuild.oci.reference import Reference
from envbuild.report import SilentReporter
from tests.fakes.engine import VERSION, building_command, client_of, serving_engine
from tests.fakes.trees import BASE, image_of_trees

RESULT, STEP = "sha256:" + "a" * 64, "sha256:" + "b" * 64


class Told(SilentReporter):
    """What is reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    step = note

    def progress(self, label: str, done: int, total: int | None) -> None:
        self.lines.append(f"{label} {done}")


@pytest.fixture
def engine():
    with serving_engine() as engine:
        yield engine


@pytest.fixture
def client(engine):
    with client_of(engine) as client:
        yield client


@pytest.fixture
def request_(tmp_path):
    """A build of two files, one of them below a folder."""
    (tmp_path / "context/wheels").mkdir(parents=True)
    (tmp_path / "context/Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "context/wheels/a.whl").write_bytes(b"wheel" * 200)
    return Request(
        context=tmp_path / "context",
        dockerfile="Dockerfile",
        platform="linux/amd64",
        network=False,
        arguments={"BASE": "envbuild-base:1"},
        hidden=("pass%40word", "pass@word"),
    )


def fail(client, request_, buildkit):
    """Build what cannot be built."""
    with translated_errors(), built(client, request_, Told(), buildkit=buildkit):
        raise AssertionError


def test_a_base_has_a_name_of_its_own_while_it_is_built_on(engine, client):
    base = image_of_trees(BASE)
    engine.images = {str(base.config_digest)}
    engine.names = {"mine:1": str(base.config_digest)}
    with loaded_base(client, base, Told()) as one, loaded_base(client, base, Told()) as two:
        assert one != two
        assert one.startswith(f"envbuild-base:{base.digest.short}-")
        assert engine.names.keys() == {"mine:1", one, two}


def test_a_push_gives_the_registrys_digest_and_the_name_back(engine, client):
    engine.images, engine.names = {RESULT, STEP}, {"example.com/a:1": STEP}
    digest = "sha256:" + "d" * 64
    engine.events = [
        {"status": "Pushing", "id": "1", "progressDetail": {"current": 5, "total": 7}},
        {"status": "Pushing", "id": "1", "progressDetail": {"current": 7, "total": 7}},
        {"aux": {"Tag": "1", "Digest": digest, "Size": 3}},
    ]
    told = Told()
    sent = push_image(client, RESULT, Reference.parse("example.com/a:1"), {"username": "u", "password": "p"}, told)
    assert (str(sent.digest), sent.sent) == (digest, 7)
    assert engine.names == {"example.com/a:1": STEP}
    [asked] = engine.requests
    assert (asked.path, asked.parameters) == ("/images/example.com/a/push", {"tag": "1"})
    assert asked.decoded("X-Registry-Auth") == {"username": "u", "password": "p"}


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([{"error": "denied:  no"}], "could not push: denied: no"),
        ([{"aux": {"Digest": "md5:1"}}], "no digest"),
        ([], "no digest"),
    ],
)
def test_a_refused_push_leaves_no_name(engine, client, events, text):
    engine.images, engine.events = {RESULT}, events
    with pytest.raises(RegistryError, match=text):
        push_image(client, RESULT, Reference.parse("example.com/a:1"), {}, Told())
    assert engine.names == {}


FAKE = """#!/bin/sh
case "$1 $2" in
  "--version "*) echo "{version}";;
  "buildx version") {buildx};;
  *)
    printf '%s\\n' "$@" > {folder}/arguments
    env > {folder}/environment
    cat {folder}/said
    exit $(cat {folder}/code)
esac
"""


def docker_command(folder: Path, version: str, buildx: str = "exit 1") -> str:
    """A docker of some version in a folder for PATH; it prints what the file `said` says."""
    folder.mkdir(exist_ok=True)
    (folder / "docker").write_text(FAKE.format(version=version, buildx=buildx, folder=folder))
    (folder / "docker").chmod(0o755)
    (folder / "said").touch()
    (folder / "code").write_text("0")
    return str(folder)


OLD, NEW = "Docker version 20.10.24+dfsg1, build 2", "Docker version 28.2.2, build e"
PLUGIN = "echo github.com/docker/buildx v0.17"


def test_the_client_is_one_that_can_and_not_just_the_first(tmp_path):
    new, old = docker_command(tmp_path / "new", NEW), docker_command(tmp_path / "old", OLD)
    plugin = docker_command(tmp_path / "plugin", NEW, PLUGIN)
    podman = docker_command(tmp_path / "podman", "podman version 4.3.1", "echo buildah 1")
    assert find_client(os.pathsep.join((new, podman))) is None
    assert find_client(os.pathsep.join((new, old))) == Client(path=f"{old}/docker", buildx=False)
    assert find_client(os.pathsep.join((old, plugin))) == Client(path=f"{plugin}/docker", buildx=True)


def test_builders_of_buildx_need_the_plugin():
    for client in (None, Client(path="/usr/bin/docker", buildx=False)):
        with pytest.raises(MissingComponentError, match="no docker command here has buildx") as caught:
            require_buildx(client, "far")
        assert "--builder-name far" in str(caught.value)


@pytest.mark.parametrize(
    "version",
    [VERSION | {"ApiVersion": "1.38"}, VERSION | {"Components": [{"Name": "Podman Engine"}]}, {"ApiVersion": "1.41"}],
)
def test_an_engine_without_buildkit_is_refused(engine, client, tmp_path, monkeypatch, version):
    monkeypatch.setenv("PATH", docker_command(tmp_path / "old", OLD))
    assert require_buildkit(client, "assemble") == Client(path=f"{tmp_path}/old/docker", buildx=False)
    engine.version = version
    with pytest.raises(MissingComponentError, match="no BuildKit") as caught:
        require_buildkit(client, "assemble")
    assert "assemble" in caught.value.todo


def test_an_engine_with_buildkit_needs_a_docker_command(client, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingComponentError, match="no docker command") as caught:
        require_buildkit(client, "assemble")
    assert "assemble" in caught.value.todo


@pytest.fixture
def old(tmp_path):
    return Client(path=docker_command(tmp_path / "old", OLD) + "/docker", buildx=False)


def test_buildkit_gets_secrets_as_files_and_nothing_secret_in_its_arguments(
    engine, client, request_, old, tmp_path, monkeypatch
):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hush@example.com")
    monkeypatch.setenv("BUILDX_BUILDER", "elsewhere")
    engine.images = {RESULT}
    request_ = replace(request_, network=True, secrets={"pip": tmp_path / "pip.conf"})
    with pytest.raises(BuildError, match="does not have the built image"):  # as this client builds nothing
        fail(client, request_, old)
    arguments = (tmp_path / "old/arguments").read_text().splitlines()
    assert arguments[:2] == ["build", "--tag"]
    assert arguments[3:] == [
        "--progress=plain", f"--file={request_.context}/Dockerfile", "--build-arg=BASE=envbuild-base:1",
        "--build-arg=HTTPS_PROXY", f"--secret=id=pip,src={tmp_path}/pip.conf", str(request_.context),
    ]  # fmt: skip
    environment = (tmp_path / "old/environment").read_text().splitlines()
    assert "DOCKER_BUILDKIT=1" in environment
    assert not [line for line in environment if line.startswith("BUILDX_BUILDER")]
    assert f"DOCKER_HOST={engine.url}" not in environment


PLAIN = """#1 [internal] load build definition from Dockerfile
#1 sha256:7ef1e67261ba
#1 DONE 0.2s

#5 [environment 3/3] RUN pip install
#6 [other 1/1] RUN other
#5 0.178 Collecting numpy==1.26.4+cpu
#6 0.200 of another step my-tool==1.0
#5 0.878 ERROR: it is broken
#5 ERROR: executor failed running [/bin/sh -c pip]: exit code: 2
------
 > [environment 3/3] RUN pip install:
#5 0.178 Collecting numpy==1.26.4+cpu
------
executor failed running [/bin/sh -c pip]: exit code: 2
"""


def test_of_steps_that_run_together_the_one_that_failed_is_told(engine, client, request_, old, tmp_path):
    (tmp_path / "old/said").write_text(PLAIN)
    (tmp_path / "old/code").write_text("1")
    told = Told()
    with pytest.raises(BuildError) as caught, built(client, request_, told, buildkit=old):
        raise AssertionError
    assert str(caught.value).splitlines()[:4] == [
        "the build failed: a step ended with exit code 2",
        "  | Collecting numpy==1.26.4+cpu",
        "  | ERROR: it is broken",
        "  where: [environment 3/3] RUN pip install",
    ]
    assert told.lines == [
        "[internal] load build definition from Dockerfile",
        "[environment 3/3] RUN pip install",
        "[other 1/1] RUN other",
        "Collecting numpy==1.26.4+cpu",
        "of another step my-tool==1.0",
        "ERROR: it is broken",
    ]
    assert "--network=none" in (tmp_path / "old/arguments").read_text().splitlines()


def test_a_client_that_lost_its_engine_has_not_failed_in_a_step(engine, client, request_, old, tmp_path):
    (tmp_path / "old/code").write_text("1")
    (tmp_path / "old/said").write_text("error reading from server: EOF\n")
    engine.dead = True
    with pytest.raises(MissingComponentError, match="stopped answering"):
        fail(client, request_, old)


def test_a_builder_elsewhere_pushes_itself(request_, tmp_path):
    client = Client(path=docker_command(tmp_path / "x", NEW, PLUGIN) + "/docker", buildx=True)
    build_remotely(client, request_, "example.com/a", "far", Transcript(request_, Told()), tmp_path / "m.json")
    assert (tmp_path / "x/arguments").read_text().splitlines() == [
        "buildx", "build", "--builder", "far", "--output", "type=image,name=example.com/a,push=true,push-by-digest=true,oci-mediatypes=true",
        "--metadata-file", f"{tmp_path}/m.json", "--platform", "linux/amd64", "--progress=plain",
        f"--file={request_.context}/Dockerfile", "--network=none", "--build-arg=BASE=envbuild-base:1",
        str(request_.context),
    ]  # fmt: skip


def test_an_image_keeps_only_the_names_that_it_is_given(engine, client, request_, tmp_path):
    engine.result = RESULT
    buildkit = Client(path=f"{building_command(tmp_path / 'docker', engine)}/docker", buildx=False)
    with built(client, request_, Told(), buildkit=buildkit) as image:
        assert image.id == RESULT
        [tag] = engine.names
        assert tag.startswith("envbuild-build:")
        assert image.tag(Reference.parse("example.com/mine:1"), image_of_trees(BASE)).id == RESULT
    assert engine.names == {"example.com/mine:1": RESULT}


def test_a_full_disk_is_named(client, request_, old, tmp_path):
    (tmp_path / "old/said").write_text("#1 [1/1] RUN x\n#1 ERROR: write /x: No space left on device\n")
    (tmp_path / "old/code").write_text("1")
    with pytest.raises(BuildError, match="disk is full") as caught:
        fail(client, request_, old)
    assert "docker system prune" in caught.value.todo


def test_a_failed_step_shows_its_last_lines(client, request_, old, tmp_path):
    lines = "".join(f"#7 1.0 line {number}\n" for number in range(99))
    (tmp_path / "old/said").write_text(f"#7 [2/2] RUN pip\n{lines}#7 ERROR: exit code: 1\n")
    (tmp_path / "old/code").write_text("1")
    with pytest.raises(BuildError) as caught:
        fail(client, request_, old)
    first, *shown, where, _ = str(caught.value).splitlines()
    assert first.endswith("a step ended with exit code 1")
    assert shown == [f"  | line {number}" for number in range(84, 99)]
    assert where == "  where: [2/2] RUN pip"


def test_no_line_shows_a_password_or_drives_the_terminal(request_):
    told = Told()
    transcript = Transcript(request_, told)
    for line in (
        "Looking in https://me:pass%40word@example.com/simple",
        "say pass@word",
        "\x1b[31mred\x1b[0m",
        "1%\r2%\r",
    ):
        transcript.add(line, "1")
    assert told.lines == ["Looking in https://example.com/simple", "say ***", "red", "2%"]
