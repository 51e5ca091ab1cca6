"""Attacks on signed pushes: a registry that loses or refuses signatures, and training images that nobody signed."""

import os
import subprocess
import sys
import time

import pytest

from envbuild.attest.attach import AttestOptions, attest, sign
from envbuild.attest.statement import BUNDLE
from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.referrers import Artifact, attach, read_artifact, referrers, subject_of
from envbuild.stamp.history import read_stamp
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder
from tests.unit.attesting import NOT_SIGNED, facts_of, key_pair
from tests.unit.test_cli_bases import Done
from tests.unit.test_serve_build import Serving, site  # noqa: F401 - a fixture

REFUSED = (400, 403, 404, 405)
DROPPED = 201
"""The registry says that it has stored what it has not."""


def tags_of(registry: FakeRegistry, name: str) -> dict[str, str]:
    """The tags that name images; what refers to an image lies under the others."""
    found = registry.repositories[name].tags
    return {tag: digest for tag, digest in found.items() if not tag.startswith(("sha256-", "fact-", "layer-"))}


def refuse(registry: FakeRegistry, status: int) -> None:
    """Let the registry answer artifacts so, which it does not keep; one that lies about it has a list of referrers."""
    registry.subjects, registry.referrers = status, status == DROPPED


def remove_artifacts(registry: FakeRegistry, name: str) -> None:
    """Remove what is attached to images, as who may write to the repository can."""
    found = registry.repositories[name]
    for digest in [it for it, (_, data) in found.manifests.items() if b'"subject"' in data]:
        del found.manifests[digest]
    found.tags = {tag: digest for tag, digest in found.tags.items() if not tag.startswith("sha256-")}


def check_unmoved(done: Done, status: int) -> None:
    assert (done.returncode, done.stdout) == (14, ""), done.stderr
    assert "no tag was moved, and " in done.stderr
    assert ("does not list it" in done.stderr) == (status == DROPPED)


def train(at: Serving, base: str, *options: str):
    return at("from-manifest", "manifest.json", "--base", f"{at.host}/up/base:{base}", *options)


def test_a_training_image_that_cannot_be_signed_gets_no_tag(site, tmp_path):  # noqa: F811
    key, public = key_pair(tmp_path)
    push = ("--push", f"{site.host}/env:v1")
    assert train(site, "1", *push).returncode == 0
    before = tags_of(site.registry, "env")
    for status in (*REFUSED, DROPPED):
        refuse(site.registry, status)
        done = train(site, "2", *push, "--sign", str(key))
        assert tags_of(site.registry, "env") == before, status
        check_unmoved(done, status)
    refuse(site.registry, 0)
    assert train(site, "2", *push, "--sign", str(key)).returncode == 0
    assert tags_of(site.registry, "env")["v1"] != before["v1"]
    assert site("verify", f"{site.host}/env:v1", "--signed", public).returncode == 0


def test_without_a_key_it_is_a_warning_and_the_tags_move(site):  # noqa: F811
    for number, status in enumerate((403, DROPPED)):
        refuse(site.registry, status)
        done = train(site, str(number + 1), "--push", f"{site.host}/env:v{number}")
        assert done.returncode == 0, done.stderr
        assert "warning: the registry has no bill of materials and no provenance of the image" in done.stderr
        assert f"v{number}" in tags_of(site.registry, "env")


def test_a_serving_image_that_cannot_be_signed_gets_no_tag_and_no_stamp(site, tmp_path):  # noqa: F811
    key, _ = key_pair(tmp_path)
    site.train("--push", f"{site.host}/env:v1", "--sign", str(key))
    push = ("--push", f"{site.host}/serving:v1", "--sign", str(key))
    assert site(*site.words(*push)).returncode == 0
    before, record = tags_of(site.registry, "serving"), read_stamp("model")
    for status in (403, 405, DROPPED):
        refuse(site.registry, status)
        done = site(*site.words(*push, "--extra", "web"))
        assert tags_of(site.registry, "serving") == before, status
        assert read_stamp("model") == record
        check_unmoved(done, status)
    refuse(site.registry, 0)
    assert site(*site.words(*push, "--extra", "web")).returncode == 0
    assert tags_of(site.registry, "serving")["v1"] != before["v1"]


def test_who_is_killed_between_manifest_and_tag_leaves_the_tag(site, tmp_path):  # noqa: F811
    key, _ = key_pair(tmp_path)
    assert train(site, "1", "--push", f"{site.host}/env:v1").returncode == 0
    before, site.registry.subjects = tags_of(site.registry, "env"), -1
    site.registry.requests.clear()
    words = ("--base", f"{site.host}/up/base:2", "--push", f"{site.host}/env:v1", "--sign", str(key))
    command = [sys.executable, "-m", "envbuild", "from-manifest", "manifest.json", *words]
    with subprocess.Popen(command, cwd=site.folder, env=os.environ, stderr=subprocess.DEVNULL) as process:
        ends = time.monotonic() + 60
        # The image's own manifest, and then the first artifact, which gets no answer.
        while len(site.registry.seen("PUT", "/env/manifests/sha256:")) < 2 and time.monotonic() < ends:
            time.sleep(0.05)
        process.kill()
    assert len(site.registry.seen("PUT", "/env/manifests/sha256:")) == 2
    assert tags_of(site.registry, "env") == before


def test_a_serving_image_is_signed_only_on_a_training_image_that_the_key_signed(site, tmp_path):  # noqa: F811
    key, public = key_pair(tmp_path)
    other, other_public = key_pair(tmp_path, "other")
    trained = Reference.parse(site.train("--push", f"{site.host}/env:v1", "--sign", str(key))["image"])
    remove_artifacts(site.registry, "env")
    words = site.words("--push", f"{site.host}/serving:v1", "--sign", str(key))

    def refused(why: str, *options: str) -> None:
        done = site(*words, *options)
        assert (done.returncode, done.stdout) == (16, ""), done.stderr
        assert f"the training image {trained} is not signed by" in done.stderr
        assert why in done.stderr
        assert "give --parent-key, or push the training image with --sign" in done.stderr
        assert tags_of(site.registry, "serving") == {}

    refused("it has no signature")
    sign(trained, AttestOptions(key=str(other)), Recorder())
    parent_key = ("--parent-key", str(public))
    for options in ((), ("--variant", "cpu", "--slim"), parent_key):
        refused("none of its 2 signatures is by the key", *options)
    # A signature by the right key for another image, put beside this one.
    elsewhere = facts_of(site.host).reference
    sign(elsewhere, AttestOptions(key=str(key)), Recorder())
    with Registry(site.host) as registry:
        subject = subject_of(registry, elsewhere).digest
        [bundle] = [
            read_artifact(registry, elsewhere.repository, it, subject)
            for it in referrers(registry, elsewhere.repository, subject)
        ]
        attach(registry, "env", subject_of(registry, trained), [Artifact(kind=BUNDLE, data=bundle)])
    for options in ((), parent_key):
        refused("it was signed for another image", *options)
    for _ in range(2):  # the second time on the stamp that the first has signed
        done = site(*words, "--signed", str(public), "--parent-key", str(other_public))
        assert done.returncode == 0, done.stderr


def test_training_may_be_signed_by_one_key_and_serving_by_another(site, tmp_path):  # noqa: F811
    key, _ = key_pair(tmp_path)
    other, other_public = key_pair(tmp_path, "other")
    site.train("--push", f"{site.host}/env:v1", "--sign", str(other))
    words = site.words("--push", f"{site.host}/serving:v1", "--sign", str(key))
    assert site(*words).returncode == 16
    for _ in range(2):
        done = site(*words, "--parent-key", str(other_public))
        assert done.returncode == 0, done.stderr


def test_an_unsigned_stamp_in_place_of_a_signed_one_is_a_warning(site, tmp_path):  # noqa: F811
    key, _ = key_pair(tmp_path)
    site.train("--push", f"{site.host}/env:v1", "--sign", str(key))
    words = site.words("--push", f"{site.host}/serving:v1")
    done = site(*words)
    assert done.returncode == 0
    assert "this stamp is not signed, and the one before was" in done.stderr
    done = site(*words, "--sign", str(key))
    assert done.returncode == 16
    assert "let training stamp it again: from-manifest MANIFEST" in done.stderr
    assert "the one before was" not in site(*words).stderr


def test_the_signing_key_is_the_parents_by_default_and_a_key_can_be_asked_without_signing(site, tmp_path):  # noqa: F811
    key, public = key_pair(tmp_path)
    site.train("--push", f"{site.host}/env:v1", "--sign", str(key))
    assert site(*site.words("--push", f"{site.host}/serving:v1", "--sign", str(key))).returncode == 0
    assert site(*site.words("--out", "out", "--parent-key", str(public))).returncode == 0
    done = site(*site.words("--out", "out", "--parent-key", str(key_pair(tmp_path, "other")[1])))
    assert done.returncode == 16
    done = site(*site.words("--out", "out", "--parent-key", str(key)))
    assert (done.returncode, "--parent-key" in done.stderr) == (2, True)


def test_a_training_image_that_was_never_pushed_is_not_signed(site, tmp_path):  # noqa: F811
    key, _ = key_pair(tmp_path)
    site.train()
    done = site(*site.words("--push", f"{site.host}/serving:v1", "--sign", str(key)))
    assert (done.returncode, NOT_SIGNED in done.stderr) == (16, True)


@pytest.mark.parametrize("listed", [True, False])
def test_an_artifact_whose_bytes_are_others_when_it_is_read_back_is_not_attached(tmp_path, listed):
    with FakeRegistry(referrers=listed) as registry:
        facts, said = facts_of(registry.host), Recorder()
        registry.fail("GET", "blobs/", kind="body", body=b"{}", times=100)
        assert attest(facts, AttestOptions(), said) == ()
        assert len(said.warnings) == 1
        with pytest.raises(RegistryError):
            attest(facts, AttestOptions(key=str(key_pair(tmp_path)[0])), said)
