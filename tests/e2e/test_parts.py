"""The parts that the other end-to-end tests stand on work by themselves."""

import io
import os
import re
import subprocess
import tarfile
import time
import uuid
from pathlib import Path

import httpx
import pytest

from envbuild.base.resolve import resolve_base
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.report import SILENT
from tests.e2e.parts import index_access
from tests.e2e.services import ContainerFailed

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def shell(engine) -> str:
    """An image of nothing but this machine's sh and the libraries that it loads."""
    loaded = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for path in ("/bin/sh", *re.findall(r"(/\S+) \(0x", loaded)):
            tar.add(path)
    engine.client.api.import_image_from_data(buffer.getvalue(), repository="shell", tag="1")
    return "shell:1"


def test_the_registry_answers_and_is_empty(registry):
    assert httpx.get(f"http://{registry.host}/v2/", trust_env=False).status_code == 200


def test_the_engine_runs_an_imported_image_and_removes_the_container(engine, shell):
    assert engine.run(shell, ["/bin/sh", "-c", "echo out; echo err >&2"]) == "out\n"
    assert engine.client.containers.list(all=True) == []


def test_a_command_that_fails_shows_all_that_it_wrote(engine, shell):
    with pytest.raises(ContainerFailed, match=r"(?s)exit status 3 .*out.*err"):
        engine.run(shell, ["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])


def test_the_engine_pulls_by_tag_and_by_digest_what_it_pushed(engine, shell, registry):
    repository = f"{registry.host}/parts/{uuid.uuid4().hex}"
    image = engine.client.images.get(shell)
    image.tag(repository, "v1")
    engine.client.images.push(repository, "v1")
    digest = engine.client.images.get_registry_data(f"{repository}:v1").id
    for reference in (f"{repository}:v1", f"{repository}@{digest}"):
        assert engine.pull(reference).id == image.id
        assert engine.run(reference, ["/bin/sh", "-c", "echo here"]) == "here\n"
    assert (registry.folder / "docker/registry/v2/repositories/parts").is_dir()


def no_pull(reference: Reference, machine: str) -> Image:
    raise AssertionError(f"{reference} for {machine} is not to be pulled")


@pytest.fixture(scope="module")
def debian(cache, registry, engine) -> str:
    """A bootstrapped Debian, pulled by the engine."""
    base = resolve_base("debian:bookworm", machine="x86_64", cache=cache / "envbuild", pull=no_pull, report=SILENT)
    pushed = push(base.image, Reference.parse(f"{registry.host}/parts/bookworm:latest"))
    engine.pull(str(pushed.reference))
    return str(pushed.reference)


def test_pip_in_a_container_reaches_the_index(engine, debian, pip_in_container):
    image = pip_in_container(debian, "/opt/made/bin/python", ["six==1.17.0"])
    assert engine.run(image, ["/opt/made/bin/python", "-c", "import six; print(six.__version__)"]) == "1.17.0\n"
    own = engine.client.images.get(debian).attrs["Config"]
    made = engine.client.images.get(image).attrs["Config"]
    assert [made[key] for key in ("Cmd", "Entrypoint", "Env", "User", "Volumes")] == [
        own[key] for key in ("Cmd", "Entrypoint", "Env", "User", "Volumes")
    ]


def test_ports_of_a_container_are_reached_on_loopback(engine, debian):
    code = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    container = engine.client.containers.run(
        debian, ["python3", "-c", code], detach=True, ports={"8000/tcp": ("127.0.0.1", None)}
    )
    try:
        container.reload()
        port = container.ports["8000/tcp"][0]["HostPort"]
        assert status_of(f"http://127.0.0.1:{port}/") == 200
    finally:
        container.remove(force=True)


def status_of(url: str) -> int:
    """The engine's proxy accepts before the server listens, and then hangs up."""
    end = time.monotonic() + 10
    while True:
        try:
            return httpx.get(url, trust_env=False).status_code
        except httpx.TransportError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def test_an_index_on_loopback_needs_the_machines_network(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:3141/simple")
    assert index_access()["network_mode"] == "host"


def test_a_training_environment_is_made_once(train_env):
    python = train_env("3.11", "six==1.17.0")
    made = python.parent.stat().st_mtime_ns
    code = "import six, sys; print(six.__version__, *sys.version_info[:2])"
    assert subprocess.run([python, "-c", code], capture_output=True, check=True).stdout == b"1.17.0 3 11\n"
    assert train_env("3.11", "six==1.17.0") == python
    assert python.parent.stat().st_mtime_ns == made


def test_a_training_environment_that_fails_leaves_nothing(train_env, cache):
    before = {path for path in (cache / "venvs").iterdir() if path.is_dir()}
    with pytest.raises(AssertionError, match="no-such-option"):
        train_env("3.11", "--no-such-option")
    assert {path for path in (cache / "venvs").iterdir() if path.is_dir()} == before


def test_the_command_runs_without_the_developers_settings(envbuild, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in envbuild("--help").stdout
    with pytest.raises(AssertionError, match=r"(?s)exit status 2 .*no-such-command"):
        envbuild("no-such-command")
    assert envbuild("no-such-command", check=False).returncode == 2


@pytest.mark.parametrize("_number", [1, 2])
def test_every_test_has_an_envbuild_cache_of_its_own(_number):
    Path(os.environ["ENVBUILD_CACHE"]).mkdir()  # raises if another test has it
