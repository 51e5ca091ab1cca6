"""Artifacts with a subject: by a registry's list, and by the tag that stands for one."""

import json
import threading

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.push import push
from envbuild.registry.referrers import Artifact, Referrer, attach, read_artifact, referrers, subject_of
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry

NAME = "team/app"
KIND = "application/vnd.example+json"


def artifact(text: str, **annotations: str) -> Artifact:
    return Artifact(kind=KIND, data=text.encode(), annotations=annotations)


def pushed(fake: FakeRegistry) -> Reference:
    return push(image_of(), Reference(fake.host, NAME, "v1")).reference


def tag_of(reference: Reference) -> str:
    assert reference.digest
    return f"sha256-{reference.digest.hex}"


@pytest.mark.parametrize(("listed", "as_config"), [(True, False), (True, True), (False, False)])
def test_what_is_attached_is_found_again_and_attached_once(listed, as_config):
    with FakeRegistry(referrers=listed) as fake, Registry(fake.host) as registry:
        fake.lists_config_types = as_config
        reference = pushed(fake)
        subject = subject_of(registry, reference)
        artifacts = [artifact(text, about=text) for text in ("one", "two", "three")]
        digests = attach(registry, NAME, subject, artifacts)
        before = len(fake.repositories[NAME].manifests), dict(fake.tags)
        assert attach(registry, NAME, subject, artifacts) == digests
        assert (len(fake.repositories[NAME].manifests), fake.tags) == before
        found = referrers(registry, NAME, subject.digest)
        read = [read_artifact(registry, NAME, it, subject.digest).decode() for it in found]
    assert [it.digest for it in found] == list(digests)
    assert [(it.kind, it.annotations) for it in found] == [(KIND, {"about": text}) for text in read]
    assert (f"{NAME}:{tag_of(reference)}" in fake.tags) is not listed


def test_more_artifacts_than_anybody_attaches_are_not_read():
    with FakeRegistry(referrers=False) as fake, Registry(fake.host) as registry:
        reference = pushed(fake)
        subject = subject_of(registry, reference)
        entries = [
            {"mediaType": INDEX, "digest": str(Digest.of(b"%d" % number)), "size": 2, "artifactType": KIND}
            for number in range(1001)
        ]
        index = canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
        fake.repositories[NAME].manifests[str(Digest.of(index))] = (INDEX, index)
        fake.repositories[NAME].tags[tag_of(reference)] = str(Digest.of(index))
        with pytest.raises(RegistryError, match=r"1001 artifacts refer to .*, more than 1000") as caught:
            referrers(registry, NAME, subject.digest)
    assert f"`oras discover {fake.host}/{NAME}@{subject.digest}`" in caught.value.todo


def test_an_artifact_is_what_the_specification_says():
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        subject = subject_of(registry, pushed(fake))
        [digest] = attach(registry, NAME, subject, [artifact("one")])
        value = json.loads(fake.repositories[NAME].manifests[str(digest)][1])
    assert value["subject"] == {"mediaType": subject.media_type, "digest": str(subject.digest), "size": subject.size}
    assert (value["artifactType"], value["config"]["mediaType"]) == (KIND, "application/vnd.oci.empty.v1+json")
    assert fake.repositories[NAME].blobs[value["config"]["digest"]] == b"{}"
    assert [it["mediaType"] for it in value["layers"]] == [KIND]


def test_entries_of_others_stay_as_they_are():
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        reference = pushed(fake)
        theirs = fake.put_manifest(NAME, "theirs", b"{}", "x/y")
        own = {"mediaType": "x/y", "digest": theirs, "size": 2, "data": "e30=", "urls": ["u"]}
        fake.put_manifest(NAME, tag_of(reference), canonical_json({"schemaVersion": 2, "mediaType": INDEX,
                          "manifests": [own], "annotations": {"by": "others"}}), INDEX)  # fmt: skip
        attach(registry, NAME, subject_of(registry, reference), [artifact("one")])
        index = json.loads(registry.manifest(NAME, tag_of(reference)).data)
        found = referrers(registry, NAME, Digest.parse(str(reference.digest)))
    assert (index["manifests"][:1], index["annotations"]) == ([own], {"by": "others"})
    assert [str(it.digest) == theirs for it in found] == [True, False]


def test_what_lies_under_the_tag_is_found_after_the_registry_got_a_list():
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        subject = subject_of(registry, pushed(fake))
        first = attach(registry, NAME, subject, [artifact("one")])
        fake.referrers = True
        second = attach(registry, NAME, subject, [artifact("two")])
        assert {it.digest for it in referrers(registry, NAME, subject.digest)} == {*first, *second}


def test_of_many_who_write_the_tag_at_once_none_is_lost():
    with FakeRegistry() as fake:
        reference = pushed(fake)

        def one(number: int) -> None:
            with Registry(fake.host) as registry:
                attach(registry, NAME, subject_of(registry, reference), [artifact(f"{number}")])

        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Registry(fake.host) as registry:
            found = referrers(registry, NAME, subject_of(registry, reference).digest)
    assert {it.digest for it in found} == {
        Digest.parse(digest)
        for digest, (_, data) in fake.repositories[NAME].manifests.items()
        if "subject" in json.loads(data)
    }
    assert len(found) == 4


def test_a_tag_that_may_not_move_is_said_and_stays():
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        reference = pushed(fake)
        subject = subject_of(registry, reference)
        attach(registry, NAME, subject, [artifact("one")])
        before = dict(fake.tags)
        fake.fail("PUT", "manifests/sha256-", status=400, times=9)
        with pytest.raises(RegistryError, match="refused with 400") as caught:
            attach(registry, NAME, subject, [artifact("two"), artifact("three")])
        assert fake.tags == before
        assert len(referrers(registry, NAME, subject.digest)) == 1
    assert "sha256-" in caught.value.where


def test_a_tag_of_somebody_elses_image_is_left_alone():
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        reference = pushed(fake)
        push(image_of(), Reference(fake.host, NAME, tag_of(reference)))
        before = dict(fake.tags)
        with pytest.raises(RegistryError, match="names no list of referrers"):
            attach(registry, NAME, subject_of(registry, reference), [artifact("one")])
        assert fake.tags == before


@pytest.mark.parametrize("answer", [{"status": 200, "body": b"<html>"}, {"status": 405}, {"status": 400}])
def test_a_registry_that_answers_anything_but_a_list_gets_the_tag(answer):
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        reference = pushed(fake)
        fake.fail("GET", "/referrers/", times=9, **answer)
        attach(registry, NAME, subject_of(registry, reference), [artifact("one")])
        assert f"{NAME}:{tag_of(reference)}" in fake.tags


def test_an_artifact_of_another_image_or_that_is_gone_is_empty():
    with FakeRegistry() as fake, Registry(fake.host) as registry:
        subject = subject_of(registry, pushed(fake))
        [digest] = attach(registry, NAME, subject, [artifact("one")])
        referrer = Referrer(digest=digest, kind=KIND, annotations={})
        assert read_artifact(registry, NAME, referrer, subject.digest) == b"one"
        assert read_artifact(registry, NAME, referrer, Digest.of(b"another")) == b""
        gone = Referrer(digest=Digest.of(b"gone"), kind=KIND, annotations={})
        assert read_artifact(registry, NAME, gone, subject.digest) == b""
        blobs = fake.repositories[NAME].blobs
        blobs[str(Digest.of(b"one"))] = b"two"
        assert read_artifact(registry, NAME, referrer, subject.digest) == b""
        del blobs[str(Digest.of(b"one"))]
        assert read_artifact(registry, NAME, referrer, subject.digest) == b""
