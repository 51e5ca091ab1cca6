"""What the API says of an image and of its repository's cleanup policies."""

from datetime import UTC, datetime, timedelta

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.artifact_cleanup import outlook
from tests.fakes.artifact_registry import FakeArtifactRegistry

NAME = "projects/proj/locations/europe-west1/repositories/images"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DIGEST = Digest("ab" * 32)
REFERENCE = Reference("europe-west1-docker.pkg.dev", "proj/images/team/app")
IMAGE = REFERENCE.at(DIGEST)
DELETE = {"id": "old", "action": 1, "condition": {"olderThan": "2592000s"}}
KEEP = {"id": "ours", "action": 2, "condition": {"tagState": 1, "tagPrefixes": ["stamped-"]}}


@pytest.fixture
def api():
    with FakeArtifactRegistry() as found:
        found.add(NAME, cleanupPolicies={"old": DELETE})
        found.push(NAME, "team/app", str(DIGEST), "v7", uploaded=NOW - timedelta(days=10))
        yield found


def asked(api, reference=IMAGE):
    found = outlook(reference, NOW, endpoint=api.url)
    assert found
    return found


def test_a_policy_that_will_delete_the_image_is_named_with_the_day(api):
    found = asked(api)
    assert found.image
    assert (found.image.package, found.image.tags) == ("team/app", ("v7",))
    assert (found.fate.deleted_by, found.fate.when) == ("old", NOW + timedelta(days=20))
    assert not found.dry_run
    assert api.requests == [NAME, f"{NAME}/dockerImages/team%2Fapp@{DIGEST}"]


def test_a_policy_that_keeps_what_is_stamped_keeps_it(api):
    api.repositories[NAME]["cleanupPolicies"]["ours"] = KEEP
    assert asked(api).fate.deleted_by == "old"
    api.push(NAME, "team/app", str(DIGEST), "stamped-abababababab", uploaded=NOW)
    assert asked(api).fate.deleted_by == ""


def test_versions_are_counted_over_pages_as_far_as_a_policy_counts(api):
    recent = {"id": "recent", "action": 2, "mostRecentVersions": {"keepCount": 4}}
    api.repositories[NAME]["cleanupPolicies"]["recent"] = recent
    for number in range(3):
        api.push(NAME, "team/app", f"sha256:{number:064x}", uploaded=NOW - timedelta(days=number))
    assert asked(api).fate.recent == 4
    api.push(NAME, "team/app", f"sha256:{9:064x}", uploaded=NOW)
    api.push(NAME, "team/application", f"sha256:{10:064x}", uploaded=NOW)
    found = asked(api)
    assert (found.fate.recent, found.image.newer) == (None, 4)


def test_a_tag_is_followed(api):
    assert asked(api, Reference(REFERENCE.registry, REFERENCE.repository, tag="v7")).digest == DIGEST
    absent = asked(api, Reference(REFERENCE.registry, REFERENCE.repository, tag="v8"))
    assert (absent.digest, absent.image) == (None, None)


def test_an_image_that_is_gone_is_none(api):
    found = asked(api, REFERENCE.at(Digest("cd" * 32)))
    assert (found.digest, found.image) == (Digest("cd" * 32), None)


def test_a_dry_run_is_noted(api):
    api.repositories[NAME]["cleanupPolicyDryRun"] = True
    assert asked(api).dry_run


def test_a_moment_s_failure_is_nothing(api):
    api.fail("image", 503)
    api.fail("repository", 500)
    assert asked(api).image


def test_a_refusal_names_the_role(api):
    api.fail("image", 403)
    with pytest.raises(RegistryError, match="said by the fake") as caught:
        asked(api)
    assert "artifactregistry.reader" in caught.value.todo


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"action": 7, "condition": {"tagState": 3}}, "its action is neither to delete nor to keep, but 7"),
        ({"condition": {"tagState": 3}}, "its action is neither to delete nor to keep, but 0"),
        ({"action": 1, "condition": {"tagState": 9}}, "a state that is not known here, 9"),
        ({"action": 1, "mostRecentVersions": {"keepCount": 3}}, "only a policy that keeps"),
        ({"action": 2, "mostRecentVersions": {"keepCount": -3}}, "it keeps -3 versions"),
        ({"action": 1, "sizeAbove": {"bytes": 3}}, "its condition is none that is known here"),
    ],
)
def test_a_policy_that_is_not_understood_is_named_and_the_others_are_evaluated(api, policy, why):
    api.repositories[NAME]["cleanupPolicies"]["odd"] = policy
    found = asked(api)
    assert [it.name for it in found.unread] == ["odd"]
    assert why in found.unread[0].why
    assert found.fate.deleted_by == "old"


@pytest.mark.parametrize("span", ["30d", "99999999999999s"])
def test_policies_that_google_s_client_cannot_read_leave_the_image_where_it_is(api, span):
    api.repositories[NAME]["cleanupPolicies"]["odd"] = {"action": 1, "condition": {"olderThan": span}}
    found = asked(api)
    assert found.image
    assert (len(found.unread), found.unread[0].name) == (1, "")
    assert found.unread[0].why.startswith("that named odd cannot be read: ")
    assert span.rstrip("s") in found.unread[0].why
    assert found.fate.deleted_by == ""


def test_without_its_age_the_policies_that_go_by_none_are_evaluated(api):
    del api.images[f"{NAME}/dockerImages/team%2Fapp@{DIGEST}"]["uploadTime"]
    recent = {"action": 2, "mostRecentVersions": {"keepCount": 4}}
    api.repositories[NAME]["cleanupPolicies"] |= {"recent": recent, "ours": KEEP}
    assert [it.name for it in asked(api).unread] == ["old", "recent"]
    assert asked(api).fate.deleted_by == ""
    api.repositories[NAME]["cleanupPolicies"]["all"] = {"action": 1, "condition": {"tagState": 3}}
    assert asked(api).fate.deleted_by == "all"
    assert not any("versions" in name for name in api.requests)


def test_a_version_without_its_age_counts_as_newer(api):
    recent = {"action": 2, "mostRecentVersions": {"keepCount": 1}}
    api.repositories[NAME]["cleanupPolicies"]["recent"] = recent
    api.push(NAME, "team/app", f"sha256:{9:064x}")
    del api.images[f"{NAME}/dockerImages/team%2Fapp@sha256:{9:064x}"]["uploadTime"]
    assert asked(api).fate.recent is None


def test_an_image_that_cannot_be_read_is_an_error_in_words(api):
    api.images[f"{NAME}/dockerImages/team%2Fapp@{DIGEST}"]["uploadTime"] = "yesterday"
    with pytest.raises(RegistryError, match="so that it can be read"):
        asked(api)


def test_other_registries_are_not_asked(api):
    assert outlook(Reference("127.0.0.1:5000", "app", digest=DIGEST), NOW, endpoint=api.url) is None
    assert api.requests == []
