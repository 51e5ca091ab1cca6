"""What a model is stamped with, against a registry: images that are gone, and tags that name others by now."""

import json
from dataclasses import replace

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, MANIFEST
from envbuild.oci.reference import Reference
from envbuild.registry.pull import environment_tag
from envbuild.retry import Retry
from envbuild.stamp.record import Anchor, Stamp, StampedImage, StampEntry, stamped
from envbuild.verify.registries import registry_findings, tag_findings
from tests.fakes.registry import FakeRegistry

FAST = Retry(first=0, longest=0.01)
ENVIRONMENT = Digest.of(b"env")
TRAIN, SERVE, ZSTD = (json.dumps({"schemaVersion": 2, "config": {}, "layers": [], "it": it}).encode() for it in "abz")


@pytest.fixture
def registry():
    with FakeRegistry() as found:
        yield found


def image(registry: FakeRegistry, data: bytes = TRAIN, role: str = "train", *, pushed: bool = True) -> StampedImage:
    digest = Digest.of(data)
    reference = f"{registry.host}/churn@{digest}" if pushed else None
    entry = StampEntry(
        role=role, variant="cpu", platform="linux/amd64", reference=reference, digest=digest, environment=ENVIRONMENT
    )  # fmt: skip
    return stamped(entry, b"{}", b"")


def in_both(registry: FakeRegistry, zstd: bytes = ZSTD) -> StampedImage:
    """An image that was pushed as v1 in gzip and zstd; v1 names its gzip, and `zstd`."""
    for data in (TRAIN, ZSTD, zstd):
        registry.put_manifest("churn", "1", data, MANIFEST)
    entries = [{"digest": str(Digest.of(it))} for it in (TRAIN, zstd)]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
    registry.put_manifest("churn", "v1", json.dumps(index).encode(), INDEX)
    return replace(image(registry, role="serve"), zstd=Digest.of(ZSTD), tag="v1")


def stamp(*images: StampedImage) -> Stamp:
    nothing = Digest.of(b"")
    return Stamp(
        model="gs://models/churn", anchor=Anchor(name="saved_model.pb", generation="1"), images=images,
        environment=ENVIRONMENT, manifest_sha256=nothing, lock_sha256=nothing, created="", envbuild="0",
    )  # fmt: skip


def held(*images: StampedImage) -> list[tuple[str, bool, str]]:
    return [(it.rule, it.agrees, it.severity) for it in registry_findings(stamp(*images), retry=FAST)]


def given(registry: FakeRegistry, text: str, *images: StampedImage):
    return list(tag_findings(stamp(*images), Reference.parse(f"{registry.host}/{text}"), retry=FAST))


def test_images_that_are_there_agree_whether_tagged_or_not(registry):
    registry.put_manifest("churn", "1", TRAIN, MANIFEST)
    assert held(image(registry)) == [("digest-gone", True, "error")]
    registry.put_manifest("churn", environment_tag(ENVIRONMENT), TRAIN, MANIFEST)
    assert held(image(registry)) == [("digest-gone", True, "error"), ("tag-moved", True, "error")]
    assert {request.method for request in registry.requests} == {"HEAD", "GET"}
    assert not [it for it in registry.requests if "/blobs/" in it.path]


def test_an_image_that_is_gone_says_what_is_lost_and_what_to_do(registry):
    registry.put_manifest("churn", "1", SERVE, MANIFEST)
    gone, there = registry_findings(stamp(image(registry), image(registry, SERVE, "serve")), retry=FAST)
    assert (gone.rule, gone.agrees, gone.severity, gone.about) == (
        "digest-gone", False, "error", "image train cpu linux/amd64"
    )  # fmt: skip
    assert gone.says == f"{registry.host}/churn no longer has {Digest.of(TRAIN)}, which the model is stamped with"
    assert "push it again" in gone.todo
    assert "build it again from the manifest and the lock" in gone.todo
    assert gone.why
    assert there.agrees


def test_an_image_of_two_compressions_is_there_if_both_are(registry):
    both = in_both(registry)
    there, named = registry_findings(stamp(both), retry=FAST)
    assert (there.says, named.agrees) == (f"{registry.host} has {Digest.of(TRAIN)} and {Digest.of(ZSTD)}", True)
    del registry.repositories["churn"].manifests[str(Digest.of(ZSTD))]
    [gone] = registry_findings(stamp(both), retry=FAST)
    assert (gone.rule, gone.agrees, gone.wanted) == ("digest-gone", False, str(Digest.of(ZSTD)))
    assert gone.says == f"{registry.host}/churn no longer has {Digest.of(ZSTD)}, which the model is stamped with"


def test_a_tag_that_names_one_of_two_compressions_is_a_warning(registry):
    there, moved = registry_findings(stamp(in_both(registry, SERVE)), retry=FAST)
    assert there.agrees
    assert (moved.rule, moved.agrees, moved.severity) == ("tag-moved", False, "warning")
    assert moved.says.endswith(f", and the stamp names {Digest.of(ZSTD)}")
    assert "--compression gzip,zstd" in moved.todo


def test_an_image_that_was_never_pushed_cannot_be_gone(registry):
    assert held(image(registry, pushed=False)) == [("digest-gone", True, "error")]
    assert not registry.requests


def test_the_tag_of_its_environment_that_names_another_image_is_a_warning(registry):
    registry.put_manifest("churn", "1", TRAIN, MANIFEST)
    registry.put_manifest("churn", environment_tag(ENVIRONMENT), SERVE, MANIFEST)
    there, moved = registry_findings(stamp(image(registry)), retry=FAST)
    assert there.agrees
    assert (moved.rule, moved.agrees, moved.severity) == ("tag-moved", False, "warning")
    assert (moved.wanted, moved.found) == (str(Digest.of(TRAIN)), str(Digest.of(SERVE)))


def test_the_tag_of_the_environment_is_the_training_images_also_where_serving_lies_beside_it(registry):
    registry.put_manifest("churn", environment_tag(ENVIRONMENT), TRAIN, MANIFEST)
    registry.put_manifest("churn", "7", SERVE, MANIFEST)
    found = held(image(registry), image(registry, SERVE, "serve"))
    assert [(rule, agrees) for rule, agrees, _ in found] == [
        ("digest-gone", True), ("tag-moved", True), ("digest-gone", True)
    ]  # fmt: skip


def test_a_registry_that_cannot_be_asked_is_an_error_and_no_finding(registry):
    away = replace(image(registry), reference=f"127.0.0.1:9/churn@{Digest.of(TRAIN)}")
    with pytest.raises(RegistryError):
        held(away)
    registry.fail("HEAD", "/churn/", status=403, times=9)
    with pytest.raises(RegistryError) as caught:
        held(image(registry))
    assert caught.value.status == 403


def test_a_tag_that_was_given_has_to_name_a_stamped_image(registry):
    images = (image(registry), image(registry, SERVE, "serve"))
    registry.put_manifest("churn", "7", SERVE, MANIFEST)
    [found] = given(registry, "churn:7", *images)
    assert (found.rule, found.agrees) == ("tag-moved", True)
    assert found.says.endswith("churn:7 is the model's image for serve cpu linux/amd64")
    [moved] = given(registry, "churn:7", images[0])
    assert (moved.rule, moved.agrees, moved.severity) == ("tag-moved", False, "error")
    assert (moved.wanted, moved.found) == (str(Digest.of(TRAIN)), str(Digest.of(SERVE)))
    assert moved.says.endswith(
        f"churn:7 names {Digest.of(SERVE)}, the model's stamp {Digest.of(TRAIN)}: it was moved, or the model stamped again"
    )


def test_a_tag_of_an_index_names_the_images_in_it(registry):
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{"digest": str(Digest.of(TRAIN))}]}
    registry.put_manifest("churn", "1", TRAIN, MANIFEST)
    registry.put_manifest("churn", "latest", json.dumps(index).encode(), INDEX)
    for text in ("churn", "churn:latest"):
        [found] = given(registry, text, image(registry))
        assert found.agrees, found
    [moved] = given(registry, "churn", image(registry, SERVE))
    assert not moved.agrees


def test_what_says_nothing_of_a_tag_gives_no_finding(registry):
    assert given(registry, f"churn@{Digest.of(SERVE)}", image(registry)) == []
    assert given(registry, "other:7", image(registry)) == []
    assert given(registry, "churn:7", image(registry, pushed=False)) == []
    assert not registry.requests


def test_a_tag_that_is_not_there_is_an_error(registry):
    registry.put_manifest("churn", "1", TRAIN, MANIFEST)
    with pytest.raises(RegistryError, match="churn:7 does not exist") as caught:
        given(registry, "churn:7", image(registry))
    assert caught.value.status == 404


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"schemaVersion": 2, "manifests": [{}]}'])
def test_a_tag_that_names_no_manifest_is_an_error(registry, data):
    registry.put_manifest("churn", "7", data, MANIFEST)
    with pytest.raises(RegistryError, match="churn:7 "):
        given(registry, "churn:7", image(registry))
