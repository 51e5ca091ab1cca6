"""What is known of images and engines without one."""

import gc
import socket

import pytest

from envbuild.engine.client import LocalImage, connected, podman_socket, registry_digest
from envbuild.engine.container import facts_of_image
from envbuild.errors import MissingComponentError

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("reference", "known", "digest"),
    [
        ("host:5000/x:1", [], None),
        ("host:5000/x:1", [f"host:5000/x@{A}"], f"host:5000/x@{A}"),
        ("host:5000/x:1", [f"a/x@{A}", f"host:5000/x@{B}"], f"host:5000/x@{B}"),
        ("host:5000/x", [f"a/x@{A}", f"host:5000/x@{B}"], f"host:5000/x@{B}"),
        (f"x@{B}", [f"x@{A}", f"x@{B}"], f"x@{B}"),
        ("0123abc", [f"z@{A}", f"a@{B}"], f"a@{B}"),
    ],
)
def test_the_digest_is_that_of_the_repository_that_was_asked_for(reference, known, digest):
    assert registry_digest(reference, known) == digest


def image(digest: str | None) -> LocalImage:
    return LocalImage(reference="x:1", id=A, digest=digest, path=())


def environment() -> dict:
    return {
        "source": {"format": "capture", "unknown": ["numerics"], "notes": ["a"]},
        "accelerator": {"kind": "nvidia"},
        "cpu": {"count": 2},
        "host": {"zone": "europe-west4-a"},
        "native": {"process": "fresh", "libraries": [], "thread_pools": [{}]},
        "platform": {"system": "Linux", "kernel": "6.1"},
    }


def test_what_the_capturing_machine_is_does_not_become_a_fact_of_the_run():
    facts = facts_of_image(environment(), image(f"x@{A}"))
    assert facts["host"] == {"container": {"image": f"x@{A}", "source": "docker inspect"}}
    assert facts["native"] == {"process": "fresh", "libraries": []}
    assert facts["platform"] == {"system": "Linux"}
    assert not {"accelerator", "cpu"} & facts.keys()
    assert {"accelerator", "cpu", "host.zone", "numerics", "platform.kernel"} < set(facts["source"]["unknown"])
    assert facts["source"]["notes"][0] == "a"
    assert "no registry" not in str(facts)


def test_an_engines_own_name_of_an_image_is_not_taken_for_a_digest():
    facts = facts_of_image(environment(), image(None))
    assert facts["host"]["container"]["image"] == "x:1"
    assert f"no registry has given the image a digest: {A}" in facts["source"]["notes"][-1]


def test_podman_answers_where_nothing_names_docker(tmp_path):
    path, docker = tmp_path / "podman/podman.sock", tmp_path / "docker.sock"
    path.parent.mkdir()
    here = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert podman_socket(here, docker) != path
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert podman_socket(here, docker) == path
        assert podman_socket(here | {"DOCKER_HOST": "tcp://x"}, docker) is None
        assert podman_socket(here | {"DOCKER_CONTEXT": "x"}, docker) is None
        docker.touch()
        assert podman_socket(here, docker) is None


@pytest.mark.parametrize(
    ("host", "shown", "what"),
    [
        ("tcp://u:s3cret@127.0.0.1:1", "DOCKER_HOST=tcp://127.0.0.1:1", "malformed"),
        ("http://u:s3/cret@127.0.0.1:1", "DOCKER_HOST=http://127.0.0.1:1", "malformed"),
        ("ssh://u:s3cret@127.0.0.1", "DOCKER_HOST=ssh://127.0.0.1", "malformed"),
        ("tcp://s3cret@127.0.0.1:1", "tcp://127.0.0.1:1", "no container engine answers"),
        ("u:s3cret@x", "DOCKER_HOST=x", "malformed"),
        ("foo", "DOCKER_HOST=foo", "malformed"),
        ("tcp://x:port", "DOCKER_HOST=tcp://x:port", "malformed"),
        ("gopher://x:1", "DOCKER_HOST=gopher://x:1", "malformed"),
        ("unix:///no/u@x.sock?a", "DOCKER_HOST=unix:///no/u@x.sock?a", "malformed"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_a_password(monkeypatch, host, shown, what):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(MissingComponentError, match=what) as caught, connected("do without"):
        raise AssertionError
    assert caught.value.where == shown
    assert "s3cret" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_of_an_engine_that_does_not_answer_no_socket_stays_open(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(MissingComponentError) as caught, connected("do without"):
        raise AssertionError
    assert caught.value.where == f"unix://{tmp_path}/none.sock"
    del caught
    gc.collect()
