"""Tags of stamped images, and tags that may not move."""

import json
import re

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT, MANIFEST
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.push import check_tag, publish, set_tag, stamped_tag
from envbuild.retry import Retry
from tests.fakes.registry import FakeRegistry

AT_ONCE = Retry(first=0, longest=0)
ENV = Digest("ab" * 32)


def manifest(environment: Digest | None = ENV) -> bytes:
    said = {"annotations": {ENVIRONMENT: str(environment)}} if environment else {}
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": []} | said).encode()


@pytest.fixture
def registry():
    with FakeRegistry() as found:
        yield found


def put(registry: FakeRegistry, tag: str, data: bytes) -> Reference:
    digest = registry.put_manifest("team/app", tag, data, MANIFEST)
    return Reference(registry.host, "team/app").at(Digest.parse(digest))


def test_a_stamped_image_gets_a_tag_of_its_digest(registry):
    reference, digest = put(registry, "v7", manifest()), Digest.of(manifest())
    publish({reference: (stamped_tag(digest),)})
    assert registry.tags[f"team/app:stamped-{digest.hex[:12]}"] == str(digest)
    media_type, data = registry.repositories["team/app"].manifests[str(digest)]
    assert (media_type, data) == (MANIFEST, manifest())


def test_a_tag_that_is_right_is_left_alone(registry):
    reference = put(registry, "v7", manifest())
    publish({reference: (stamped_tag(ENV),)})
    registry.requests.clear()
    publish({reference: (stamped_tag(ENV),)})
    assert not registry.seen("PUT")


def test_an_image_that_is_gone_gets_no_tag(registry):
    with pytest.raises(RegistryError) as caught:
        publish({Reference(registry.host, "team/app", digest=ENV): (stamped_tag(ENV),)})
    assert caught.value.status == 404


@pytest.mark.parametrize("status", [400, 403, 409])
def test_a_tag_that_may_not_move_is_said_with_both_digests(registry, status):
    other, mine = put(registry, "v7", manifest()), manifest(None)
    body = json.dumps({"errors": [{"code": "DENIED", "message": "The repository has enabled tag immutability."}]})
    registry.fail("PUT", "manifests/v7", status=status, body=body.encode())
    with Registry(registry.host, retry=AT_ONCE) as client, pytest.raises(RegistryError) as caught:
        set_tag(client, "team/app", "v7", mine, MANIFEST)
    assert str(other.digest) in caught.value.what
    assert str(Digest.of(mine)) in caught.value.what
    assert "tag immutability" in caught.value.what
    assert "another tag" in caught.value.todo


def test_a_tag_that_another_build_set_to_the_same_meanwhile_is_right(registry):
    put(registry, "env-abababababab", manifest())
    registry.fail("HEAD", "manifests/env-", status=404)
    registry.fail("PUT", "manifests/env-", status=400)
    with Registry(registry.host, retry=AT_ONCE) as client:
        set_tag(client, "team/app", "env-abababababab", manifest(), MANIFEST)
    assert len(registry.seen("PUT")) == 1


def test_a_refusal_for_another_reason_stays_what_it_is(registry):
    registry.fail("PUT", "manifests/v7", status=403)
    with (
        Registry(registry.host, retry=AT_ONCE) as client,
        pytest.raises(RegistryError, match="does not let this account push"),
    ):
        set_tag(client, "team/app", "v7", manifest(), MANIFEST)


def test_a_tag_of_the_very_environment_may_stay(registry):
    put(registry, "v7", manifest())
    check_tag(Reference(registry.host, "team/app", tag="v7"), ENV)
    check_tag(Reference(registry.host, "team/app", tag="v8"), ENV)
    check_tag(Reference(registry.host, "team/app", tag="v8"), None)


@pytest.mark.parametrize(
    ("there", "environment"), [(manifest(), None), (manifest(Digest("cd" * 32)), ENV), (manifest(None), ENV)]
)
def test_a_tag_of_another_image_is_refused_before_the_work(registry, there, environment):
    found = put(registry, "v7", there)
    with pytest.raises(RegistryError, match=re.escape(str(found.digest))):
        check_tag(Reference(registry.host, "team/app", tag="v7"), environment)
