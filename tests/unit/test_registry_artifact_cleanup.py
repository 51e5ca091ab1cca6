"""What the API says of an image, and whether its repository's cleanup policies could delete it."""

import json
import re
from pathlib import Path

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.artifact_registry import ENDPOINT, read_cleanup
from envbuild.registry.push import stamped_tag
from tests.fakes.artifact_registry import FakeArtifactRegistry

NAME = "projects/proj/locations/europe-west1/repositories/images"
DIGEST = Digest("ab" * 32)
REFERENCE = Reference("europe-west1-docker.pkg.dev", "proj/images/team/app")
IMAGE = REFERENCE.at(DIGEST)
DELETE = {"id": "old", "action": 1, "condition": {"olderThan": "2592000s"}}
KEEP = {"id": "ours", "action": 2, "condition": {"tagState": 1, "tagPrefixes": ["stamped-"]}}


@pytest.fixture
def api(monkeypatch):
    with FakeArtifactRegistry() as found:
        monkeypatch.setenv(ENDPOINT, found.url)
        found.add(NAME, cleanupPolicies={"old": DELETE})
        found.push(NAME, "team/app", str(DIGEST), "v7")
        yield found


def asked(api, reference=IMAGE):
    found = read_cleanup(reference)
    assert found
    return found


def test_a_policy_that_could_delete_the_image_is_named(api):
    found = asked(api)
    assert (found.exists, found.tags, found.deleted_by, found.kept_by) == (True, ("v7",), ("old",), ())
    assert not found.dry_run
    assert api.requests == [NAME, f"{NAME}/dockerImages/team%2Fapp@{DIGEST}"]


def test_a_policy_that_keeps_what_is_stamped_keeps_it(api):
    api.repositories[NAME]["cleanupPolicies"]["ours"] = KEEP
    assert asked(api).deleted_by == ("old",)
    api.push(NAME, "team/app", str(DIGEST), stamped_tag(DIGEST))
    assert (asked(api).deleted_by, asked(api).kept_by) == ((), ("ours",))


def test_the_policy_of_the_documentation_keeps_this_tag(api):
    text = (Path(__file__).parents[2] / "docs/artifact-registry.md").read_text()
    [policy] = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    assert policy["action"]["type"] == "Keep"
    state = {"tagged": 1, "untagged": 2, "any": 3}[policy["condition"]["tagState"]]
    kept = {"action": 2, "condition": policy["condition"] | {"tagState": state}}
    api.repositories[NAME]["cleanupPolicies"][policy["name"]] = kept
    assert asked(api).deleted_by == ("old",)
    api.push(NAME, "team/app", str(DIGEST), stamped_tag(DIGEST))
    assert asked(api).deleted_by == ()


@pytest.mark.parametrize(
    ("policy", "deleted_by"),
    [
        ({"action": 2, "condition": {}}, ()),
        ({"action": 2, "condition": {"tagState": 3}}, ()),
        ({"action": 2, "condition": {"tagState": 1}}, ()),
        ({"action": 2, "condition": {"tagState": 3, "packageNamePrefixes": ["team/"]}}, ()),
        ({"action": 2, "condition": {"tagState": 2}}, ("old",)),
        ({"action": 2, "condition": {"tagState": 3, "packageNamePrefixes": ["other"]}}, ("old",)),
        ({"action": 2, "condition": {"tagState": 3, "newerThan": "60s"}}, ("old",)),
        ({"action": 2, "condition": {"tagState": 3, "versionNamePrefixes": ["sha256:ab"]}}, ("old",)),
        ({"action": 2, "mostRecentVersions": {"keepCount": 4}}, ("old",)),
        ({"action": 1, "condition": {"tagState": 3, "packageNamePrefixes": ["other"]}}, ("old",)),
        ({"action": 1, "condition": {"tagState": 2}}, ("new", "old")),
        ({"action": 7, "condition": {"tagState": 3}}, ("new", "old")),
        ({"condition": {"tagState": 3}}, ("new", "old")),
        ({"action": 1, "sizeAbove": {"bytes": 3}}, ("new", "old")),
    ],
)
def test_policies_that_keep_always_win_and_all_others_could_delete(api, policy, deleted_by):
    api.repositories[NAME]["cleanupPolicies"]["new"] = policy
    assert asked(api).deleted_by == deleted_by


def test_a_tag_is_followed(api):
    assert asked(api, Reference(REFERENCE.registry, REFERENCE.repository, tag="v7")).digest == DIGEST
    absent = asked(api, Reference(REFERENCE.registry, REFERENCE.repository, tag="v8"))
    assert (absent.digest, absent.exists) == (None, False)


def test_an_image_that_is_gone_is_absent(api):
    found = asked(api, REFERENCE.at(Digest("cd" * 32)))
    assert (found.digest, found.exists) == (Digest("cd" * 32), False)


def test_a_dry_run_is_noted(api):
    api.repositories[NAME]["cleanupPolicyDryRun"] = True
    assert asked(api).dry_run


def test_a_moment_s_failure_is_nothing(api):
    api.fail("image", 503)
    api.fail("repository", 500)
    assert asked(api).exists


def test_a_refusal_names_the_role(api):
    api.fail("image", 403)
    with pytest.raises(RegistryError, match="said by the fake") as caught:
        asked(api)
    assert "artifactregistry.reader" in caught.value.todo
    assert caught.value.status == 403


@pytest.mark.parametrize("span", ["30d", "99999999999999s"])
def test_policies_that_google_s_client_cannot_read_are_unknown(api, span):
    api.repositories[NAME]["cleanupPolicies"]["odd"] = {"action": 1, "condition": {"olderThan": span}}
    found = asked(api)
    assert found.exists
    assert "odd" in found.unreadable


def test_an_image_that_cannot_be_read_is_an_error_in_words(api):
    api.images[f"{NAME}/dockerImages/team%2Fapp@{DIGEST}"]["uploadTime"] = "yesterday"
    with pytest.raises(RegistryError) as caught:
        asked(api)
    assert "uploadTime" in caught.value.what


def test_other_registries_are_not_asked(api):
    assert read_cleanup(Reference("127.0.0.1:5000", "app", digest=DIGEST)) is None
    assert api.requests == []
