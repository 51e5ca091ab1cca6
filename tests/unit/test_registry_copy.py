"""Copies between repositories and registries: the same bytes, and nothing moved that can be mounted."""

import json
from typing import Any

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST, Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.copy import copy_image
from envbuild.retry import Retry
from tests.fakes.images import docker_manifest_of, image_of
from tests.fakes.registry import FakeRegistry

FAST = Retry(first=0, longest=0.01)
AMD, ARM = (image_of([b"shared", name.encode() * 999], architecture=name) for name in ("amd64", "arm64"))
DOCKER = {INDEX: DOCKER_INDEX, MANIFEST: DOCKER_MANIFEST}


def store(registry: FakeRegistry, image: Image, *, docker: bool = False, tag: str = "v1") -> str:
    for layer in image.layers:
        with layer.open() as file:
            registry.put("up/stream", file.read())
    registry.put("up/stream", image.config)
    data = docker_manifest_of(image) if docker else image.manifest
    return registry.put_manifest("up/stream", tag, data, DOCKER_MANIFEST if docker else MANIFEST)


def store_index(registry: FakeRegistry, *, docker: bool = False, tag: str = "v1", **more: Any) -> str:
    media_type = DOCKER_MANIFEST if docker else MANIFEST
    entries = [
        {"mediaType": media_type, "digest": store(registry, image, docker=docker, tag=name), "size": 1,
         "platform": {"os": "linux", "architecture": name}}
        for name, image in (("amd64", AMD), ("arm64", ARM))
    ]  # fmt: skip
    kind = DOCKER_INDEX if docker else INDEX
    data = canonical_json({"schemaVersion": 2, "mediaType": kind, "manifests": entries} | more)
    return registry.put_manifest("up/stream", tag, data, kind)


def copied(source: FakeRegistry, target: FakeRegistry, name: str = "mine", **more):
    return copy_image(
        Reference(source.host, "up/stream", "v1"), Reference(target.host, name), **{"retry": FAST, **more}
    )


@pytest.mark.parametrize("docker", [False, True])
def test_an_index_keeps_its_digest_and_all_its_bytes_in_another_registry(docker):
    with FakeRegistry() as here, FakeRegistry() as there:
        digest = store_index(here, docker=docker)
        result = copied(here, there)
        source, target = here.repositories["up/stream"], there.repositories["mine"]
        assert target.manifests == source.manifests
        assert target.blobs == source.blobs
    assert str(result.reference) == f"{there.host}/mine@{digest}"
    assert target.tags == {"v1": digest}
    assert (result.sent, result.mounted, result.existing) == (sum(map(len, source.blobs.values())), 0, 0)
    assert [str(it) for it in result.manifests][-1] == digest
    assert len(result.manifests) == 3


def test_one_platform_is_taken_out_of_an_index():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        result = copied(here, there, machine="aarch64")
    assert result.reference.digest == ARM.digest
    assert there.repositories["mine"].manifests.keys() == {str(ARM.digest)}


def test_a_platform_that_the_index_lacks_is_told():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        with pytest.raises(RegistryError, match="no image for linux/s390x"):
            copied(here, there, machine="s390x")
        assert not there.repositories["mine"].manifests


def test_in_one_registry_everything_is_mounted_and_nothing_read():
    with FakeRegistry() as registry:
        store_index(registry)
        result = copied(registry, registry)
        assert registry.repositories["mine"].blobs == registry.repositories["up/stream"].blobs
        assert registry.seen("GET", "/blobs/") == []
        assert registry.seen("PUT", "/blobs/") == []
    assert (result.sent, result.existing) == (0, 0)
    assert result.mounted == sum(map(len, registry.repositories["mine"].blobs.values()))


def test_a_registry_that_refuses_to_mount_gets_the_bytes():
    with FakeRegistry() as registry:
        store(registry, AMD)
        registry.fail("POST", "mount=", status=403, times=99)
        result = copied(registry, registry)
    assert registry.repositories["mine"].blobs == registry.repositories["up/stream"].blobs
    assert (result.mounted, result.sent) == (0, sum(map(len, registry.repositories["mine"].blobs.values())))


def test_the_second_copy_moves_no_blob_and_writes_no_manifest():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        first = copied(here, there)
        here.requests.clear()
        there.requests.clear()
        second = copied(here, there)
        assert (second.reference, second.sent, second.existing) == (first.reference, 0, first.sent)
        assert here.seen("GET", "/blobs/") == []
        assert there.seen("PUT") == there.seen("POST") == []


def test_what_is_there_of_another_image_is_not_sent():
    with FakeRegistry() as here, FakeRegistry() as there:
        store(here, AMD)
        copied(here, there)
        store_index(here)
        result = copied(here, there)
    shared = AMD.layers[0].descriptor.size
    assert result.sent == ARM.layers[1].descriptor.size + len(ARM.config)
    assert result.existing > shared


@pytest.mark.parametrize(
    ("source", "target", "tags"),
    [
        ({"tag": "v1"}, "v2", {"v2"}),
        ({"tag": "v1"}, None, {"v1"}),
        ({}, None, {"latest"}),
        ({"digest": AMD.digest}, None, set()),
        ({"digest": AMD.digest, "tag": "v1"}, None, {"v1"}),
    ],
)
def test_the_copy_has_the_targets_tag_else_the_sources(source, target, tags):
    with FakeRegistry() as here, FakeRegistry() as there:
        store(here, AMD)
        here.repositories["up/stream"].tags["latest"] = str(AMD.digest)
        copy_image(Reference(here.host, "up/stream", **source), Reference(there.host, "mine", target), retry=FAST)
        assert there.repositories["mine"].tags == dict.fromkeys(tags, str(AMD.digest))


def test_a_source_that_sends_other_bytes_leaves_no_manifest():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        name = str(AMD.layers[1].descriptor.digest)
        here.repositories["up/stream"].blobs[name] = b"x" * AMD.layers[1].descriptor.size
        with pytest.raises(RegistryError, match=name):
            copied(here, there)
        assert not there.repositories["mine"].manifests
        assert name not in there.repositories["mine"].blobs


def test_a_child_that_is_another_manifest_is_refused():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        here.repositories["up/stream"].manifests[str(ARM.digest)] = (MANIFEST, AMD.manifest)
        with pytest.raises(RegistryError, match=f"where: .*{ARM.digest}"):
            copied(here, there)
        assert there.requests == []


def test_a_child_that_is_not_there_is_named():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        del here.repositories["up/stream"].manifests[str(ARM.digest)]
        with pytest.raises(RegistryError) as caught:
            copied(here, there)
        assert (caught.value.status, str(ARM.digest) in caught.value.where) == (404, True)
        assert there.requests == []


def test_a_push_that_breaks_is_taken_up_again():
    with FakeRegistry() as here, FakeRegistry() as there:
        store_index(here)
        there.fail("PUT", "/blobs/", status=503, times=2)
        here.fail("GET", "/blobs/", kind="half")
        copied(here, there)
        assert there.repositories["mine"].blobs == here.repositories["up/stream"].blobs


def test_a_target_that_gives_back_other_bytes_gets_no_tag():
    with FakeRegistry() as here, FakeRegistry() as there:
        store(here, AMD)
        there.fail("GET", "/manifests/", kind="body", body=ARM.manifest)
        with pytest.raises(RegistryError, match=f"{AMD.digest}: it gives"):
            copied(here, there)
        assert there.repositories["mine"].tags == {}


def test_indexes_in_indexes_are_copied_to_a_bound():
    def nested(registry: FakeRegistry, depth: int) -> None:
        digest = store(registry, AMD)
        for _ in range(depth):
            value = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{"mediaType": INDEX, "digest": digest, "size": 1}]}  # fmt: skip
            digest = registry.put_manifest("up/stream", "v1", canonical_json(value), INDEX)

    with FakeRegistry() as here, FakeRegistry() as there:
        nested(here, 2)
        assert len(copied(here, there).manifests) == 3
        nested(here, 3)
        with pytest.raises(RegistryError, match="nested indexes"):
            copied(here, there, "other")


@pytest.mark.parametrize(
    "value",
    [[], {"schemaVersion": 2}, {"schemaVersion": 2, "manifests": 3}, {"schemaVersion": 2, "config": {}, "layers": []}],
)
def test_what_is_no_manifest_is_refused(value):
    with FakeRegistry() as here, FakeRegistry() as there:
        here.put_manifest("up/stream", "v1", json.dumps(value).encode(), MANIFEST)
        with pytest.raises(RegistryError) as caught:
            copied(here, there)
        assert "up/stream:v1" in caught.value.where


def test_the_copy_of_an_attestation_needs_no_understanding():
    """BuildKit puts provenance into an index as an image for no platform, with a layer of its own type."""
    with FakeRegistry() as here, FakeRegistry() as there:
        blob = here.put("up/stream", b"{}")
        described = {"mediaType": "application/vnd.in-toto+json", "digest": blob, "size": 2}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": [described]}
        digest = here.put_manifest("up/stream", "v1", canonical_json(manifest), MANIFEST)
        assert copied(here, there).reference.digest == Digest.parse(digest)
