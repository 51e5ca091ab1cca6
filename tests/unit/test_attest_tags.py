"""Signatures under cosign's tags: what they are, that others' stay beside them, and what a changed one is worth."""

import base64
import json
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest
from securesystemslib.signer import Signer

from envbuild.attest.attach import AttestOptions, attest, sign
from envbuild.attest.bundle import sign_statement
from envbuild.attest.keys import public_key_of, signer_of
from envbuild.attest.signature_tags import (
    ENVELOPE,
    KEY,
    SIGNATURE,
    SIMPLE_SIGNING,
    TagSignature,
    attach_signatures,
    envelope_of,
    sign_image,
)
from envbuild.attest.statement import BILL, PROVENANCE, statement
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import DOCKER_MANIFEST, MANIFEST
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.verify.findings import Finding
from envbuild.verify.registries import check_signed
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder
from tests.unit.attesting import ANOTHER_KEY, facts_of, key_pair

SUBJECT = Digest.of(b"image")


@pytest.fixture
def fake():
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def keys(tmp_path) -> tuple[Path, Path]:
    return key_pair(tmp_path)


def legacy(key: Path) -> AttestOptions:
    return AttestOptions(statements=False, key=str(key), format="legacy")


def signer(key: Path) -> Signer:
    found = signer_of(str(key))
    assert isinstance(found, Signer)
    return found


def layers(fake: FakeRegistry, reference: Reference, suffix: str) -> list[tuple[dict, bytes]]:
    """The layers under an image's tag, and their bytes."""
    assert reference.digest
    stored = fake.repositories[reference.repository]
    _, manifest = stored.manifests[stored.tags[f"sha256-{reference.digest.hex}.{suffix}"]]
    return [(it, stored.blobs[it["digest"]]) for it in json.loads(manifest)["layers"]]


def checked(fake: FakeRegistry, reference: Reference, public: Path, *signatures: TagSignature) -> list[Finding]:
    """What is found of an image that has these signatures."""
    assert reference.digest
    with Registry(fake.host) as registry:
        attach_signatures(registry, reference.repository, reference.digest, signatures)
    return list(check_signed(reference, public))


def test_the_tags_have_what_cosign_writes(fake, keys, tmp_path):
    facts, said = facts_of(fake.host), Recorder()
    assert len(attest(facts, legacy(keys[0]), said)) == 3
    [(layer, payload)] = layers(fake, facts.reference, "sig")
    claim = json.loads(payload)
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    assert claim["critical"] == {
        "identity": {"docker-reference": facts.reference.name},
        "image": {"docker-manifest-digest": str(facts.reference.digest)},
        "type": "cosign container image signature",
    }
    (tmp_path / "payload").write_bytes(payload)
    (tmp_path / "signature").write_bytes(base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"]))
    openssl = ["openssl", "dgst", "-sha256", "-verify", keys[1], "-signature", "signature", "payload"]
    subprocess.run(openssl, cwd=tmp_path, check=True, capture_output=True)
    attested = layers(fake, facts.reference, "att")
    assert {layer["mediaType"] for layer, _ in attested} == {"application/vnd.dsse.envelope.v1+json"}
    assert {layer["annotations"]["predicateType"] for layer, _ in attested} == {PROVENANCE, BILL}
    assert {json.loads(data)["payloadType"] for _, data in attested} == {"application/vnd.in-toto+json"}
    config = json.loads(
        fake.repositories["team/app"].manifests[fake.tags[f"team/app:{tag(facts.reference, 'att')}"]][1]
    )
    stored = json.loads(fake.repositories["team/app"].blobs[config["config"]["digest"]])
    assert stored["rootfs"]["diff_ids"] == [layer["digest"] for layer, _ in attested]
    assert any("signed for clients without bundles, under sha256-" in it for it in said.notes)


def tag(reference: Reference, suffix: str) -> str:
    assert reference.digest
    return f"sha256-{reference.digest.hex}.{suffix}"


def test_an_image_with_signatures_under_tags_alone_is_signed(fake, keys, tmp_path):
    facts = facts_of(fake.host)
    attest(facts, legacy(keys[0]), Recorder())
    [finding] = check_signed(facts.reference, keys[1])
    assert finding.says.endswith("by the key, and so are its provenance and its bill of materials")
    [other] = check_signed(facts.reference, key_pair(tmp_path, "other")[1])
    assert (other.agrees, other.says) == (False, f"none of its 3 signatures is by the key: {ANOTHER_KEY}")
    assert attest(facts, legacy(keys[0]), Recorder()) == ()
    assert sign(facts.reference, AttestOptions(key=str(keys[0])), Recorder()) != ()
    assert sign(facts.reference, AttestOptions(key=str(keys[0])), Recorder()) == ()


def test_two_keys_sign_the_same_payload_and_both_signatures_stay(fake, keys, tmp_path):
    facts, other = facts_of(fake.host), key_pair(tmp_path, "other")
    for private in (keys[0], other[0]):
        attest(facts, legacy(private), Recorder())
    found = layers(fake, facts.reference, "sig")
    assert len({layer["digest"] for layer, _ in found}) == 1
    assert len({layer["annotations"][SIGNATURE] for layer, _ in found}) == 2
    for public in (keys[1], other[1]):
        assert [it.agrees for it in check_signed(facts.reference, public)] == [True]


def test_a_tag_that_may_not_move_names_the_other_format(fake, keys):
    facts = facts_of(fake.host)
    fake.fail("PUT", r"manifests/sha256-\w+\.sig", status=400, times=9)
    with pytest.raises(RegistryError, match=r"does not set the tag sha256-\w+\.sig") as caught:
        attest(facts, legacy(keys[0]), Recorder())
    assert "--signature-format bundle" in caught.value.todo


@pytest.mark.parametrize("kind", [SIMPLE_SIGNING, ENVELOPE])
def test_whatever_is_changed_it_does_not_hold(fake, keys, kind):
    reference = facts_of(fake.host).reference
    assert reference.digest
    good, public = made(reference.digest, reference, keys[0], kind), public_key_of(str(keys[1]))
    assert good.judge(reference.digest, public).standing == "holds"
    chosen = random.Random(29)
    for _ in range(300):
        bad = bytearray(good.data)
        bad[chosen.randrange(len(bad))] ^= 1 << chosen.randrange(8)
        changed = TagSignature(kind=kind, data=bytes(bad), annotations=good.annotations)
        verdict = changed.judge(reference.digest, public)
        # The last letter of base64 has bits that nobody reads.
        assert verdict.standing in ("tampered", "malformed") or content(bytes(bad)) == content(good.data)
    assert good.judge(SUBJECT, public).standing == "other-image"


def content(envelope: bytes) -> tuple[bytes, str]:
    value = json.loads(envelope)
    return base64.b64decode(value["payload"]), value["payloadType"]


def made(subject: Digest | None, reference: Reference, key: Path, kind: str) -> TagSignature:
    assert subject
    by = signer(key)
    if kind == SIMPLE_SIGNING:
        return sign_image(subject, reference.name, by, "")
    return envelope_of(sign_statement(statement(subject, PROVENANCE, {}), by, ""), PROVENANCE, by)


@pytest.mark.parametrize("kind", [SIMPLE_SIGNING, ENVELOPE])
def test_a_signature_of_another_image_is_an_error_beside_one_that_holds(fake, keys, kind):
    reference = facts_of(fake.host).reference
    good = made(reference.digest, reference, keys[0], SIMPLE_SIGNING)
    one, two = checked(fake, reference, keys[1], good, made(SUBJECT, reference, keys[0], kind))
    assert (one.agrees, two.agrees) == (True, False)
    assert f"it was signed for another image, {SUBJECT}" in two.says


def test_what_names_the_key_and_is_not_its_is_an_error_and_what_names_none_is_anybodys(fake, keys):
    reference = facts_of(fake.host).reference
    good = made(reference.digest, reference, keys[0], SIMPLE_SIGNING)
    forged = good.data.replace(b"null", b"{}  ")
    for annotations, agree in ((good.annotations, [True, False]), ({SIGNATURE: good.annotations[SIGNATURE]}, [True])):
        fake.repositories[reference.repository].tags.pop(tag(reference, "sig"), None)
        bad = TagSignature(kind=SIMPLE_SIGNING, data=forged, annotations=annotations)
        assert [it.agrees for it in checked(fake, reference, keys[1], good, bad)] == agree


@pytest.mark.parametrize(
    "claim",
    [
        b"[]",
        b'{"critical":{"image":{"docker-manifest-digest":"SUBJECT"},"type":"atomic container signature"}}',
        b'{"critical":{"type":"cosign container image signature"}}',
    ],
)
def test_what_the_key_signed_is_a_claim_of_the_right_type_or_an_error(fake, keys, claim):
    reference, by = facts_of(fake.host).reference, signer(keys[0])
    data = claim.replace(b"SUBJECT", str(reference.digest).encode())
    text = base64.b64encode(bytes.fromhex(by.sign(data).signature)).decode()
    [wrong] = checked(
        fake, reference, keys[1], TagSignature(kind=SIMPLE_SIGNING, data=data, annotations={SIGNATURE: text})
    )
    assert (wrong.agrees, wrong.says.endswith("the key signed something else than an image")) == (False, True)


def test_a_statement_under_the_wrong_tag_or_in_the_other_format_is_no_signature_of_the_image(fake, keys):
    """A signed envelope is no claim, and a signed claim no envelope."""
    reference = facts_of(fake.host).reference
    claim, envelope = (made(reference.digest, reference, keys[0], kind) for kind in (SIMPLE_SIGNING, ENVELOPE))
    crossed = TagSignature(kind=ENVELOPE, data=claim.data, annotations=claim.annotations)
    signature = json.loads(envelope.data)["signatures"][0]["sig"]
    payload = base64.b64decode(json.loads(envelope.data)["payload"])
    other = TagSignature(
        kind=SIMPLE_SIGNING, data=payload, annotations={SIGNATURE: signature, KEY: envelope.annotations[KEY]}
    )
    found = checked(fake, reference, keys[1], crossed, other)
    assert [it.agrees for it in found] == [False, False]


def test_more_signatures_than_anybody_writes_are_not_read(fake, keys):
    reference = facts_of(fake.host).reference
    good = made(reference.digest, reference, keys[0], SIMPLE_SIGNING)
    many = [
        TagSignature(kind=SIMPLE_SIGNING, data=good.data, annotations={SIGNATURE: str(number)})
        for number in range(1001)
    ]
    with pytest.raises(RegistryError, match="1001 signatures lie under the tag"):
        checked(fake, reference, keys[1], *many)


def test_what_others_put_into_the_tags_is_passed_over(fake, keys):
    reference = facts_of(fake.host).reference
    checked(fake, reference, keys[1], made(reference.digest, reference, keys[0], SIMPLE_SIGNING))
    stored = fake.repositories[reference.repository]
    value = json.loads(stored.manifests[stored.tags[tag(reference, "sig")]][1])
    for strange in (5, {}, {"digest": "x"}, {**value["layers"][0], "mediaType": "text/plain"}):
        value["layers"].insert(0, strange)
    for odd in ("\ud800", 5, None):
        value["layers"].append(value["layers"][-1] | {"annotations": {SIGNATURE: odd, KEY: odd}})
    fake.put_manifest(reference.repository, tag(reference, "sig"), json.dumps(value).encode(), value["mediaType"])
    [finding] = check_signed(reference, keys[1])
    assert finding.agrees
    [other] = check_signed(reference, "keyless:https://issuer.example.com=me@example.com")
    assert (other.agrees, "it has no certificate of an identity" in other.says) == (False, True)


class SlowTags(FakeRegistry):
    """A registry that takes so long to store a tag of signatures that another client reads the old one meanwhile."""

    seconds = 0.0

    def fault(self, method, path):
        if method == "PUT" and path.endswith(".sig"):
            time.sleep(self.seconds)
        return super().fault(method, path)


def test_two_clients_that_sign_at_once_replace_nothing(keys, tmp_path):
    """The second reads before the first has written, and writes after the first may have read its list back."""
    other = key_pair(tmp_path, "other")
    with SlowTags() as fake:
        reference = facts_of(fake.host).reference
        fake.seconds = 0.4

        def client(key: Path) -> None:
            good = made(reference.digest, reference, key, SIMPLE_SIGNING)
            with Registry(fake.host) as registry:
                assert reference.digest
                attach_signatures(registry, reference.repository, reference.digest, [good])

        first, second = (threading.Thread(target=client, args=(it[0],)) for it in (keys, other))
        first.start()
        time.sleep(0.3)
        second.start()
        first.join()
        second.join()
        for public in (keys[1], other[1]):
            assert [it.agrees for it in check_signed(reference, public)] == [True]


def test_nothing_lies_between_the_last_reading_of_a_list_and_its_writing(fake, keys):
    reference = facts_of(fake.host).reference
    checked(fake, reference, keys[1], made(reference.digest, reference, keys[0], SIMPLE_SIGNING))
    asked = [(it.method, it.path.endswith(".sig")) for it in fake.requests]
    written = asked.index(("PUT", True))
    assert asked[written - 1] == ("GET", True)
    after = asked[written + 1 :]
    assert after[:2] == [("GET", True)] * 2


@pytest.mark.parametrize("strange", [{}, {"digest": "x"}, 5])
def test_a_layer_without_a_digest_is_said_with_its_tag(fake, keys, strange):
    reference = facts_of(fake.host).reference
    value = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": [strange]}
    fake.put_manifest(reference.repository, tag(reference, "sig"), json.dumps(value).encode(), MANIFEST)
    with pytest.raises(RegistryError, match=rf"a layer under the tag {tag(reference, 'sig')} has no sha256 digest"):
        attest(facts_of(fake.host), legacy(keys[0]), Recorder())


@pytest.mark.parametrize("kind", [SIMPLE_SIGNING, ENVELOPE])
@pytest.mark.parametrize("left", [None, b"", b"short", b"another" * 1000])
def test_a_signature_whose_content_is_gone_or_wrong_is_unreadable_and_signing_goes_on(fake, keys, kind, left):
    facts = facts_of(fake.host)
    reference, stored = facts.reference, fake.repositories[facts.reference.repository]
    lost = made(reference.digest, reference, keys[0], kind)
    checked(fake, reference, keys[1], lost)
    del stored.blobs[str(lost.blob.digest)]
    if left is not None:
        stored.blobs[str(lost.blob.digest)] = left
    [finding] = check_signed(reference, keys[1])
    says = "none of its 1 signatures is by the key: its content is gone or was changed"
    assert (finding.agrees, finding.says) == (False, says)
    assert len(attest(facts, legacy(keys[0]), Recorder())) == 3
    [finding] = check_signed(reference, keys[1])
    assert finding.says.endswith("by the key, and so are its provenance and its bill of materials")


def test_signatures_in_an_image_of_dockers_media_types_stay_in_one_of_ocis(fake, keys, tmp_path):
    reference, other = facts_of(fake.host).reference, key_pair(tmp_path, "other")
    checked(fake, reference, keys[1], made(reference.digest, reference, keys[0], SIMPLE_SIGNING))
    stored = fake.repositories[reference.repository]
    value = json.loads(stored.manifests[stored.tags[tag(reference, "sig")]][1]) | {"mediaType": DOCKER_MANIFEST}
    fake.put_manifest(reference.repository, tag(reference, "sig"), json.dumps(value).encode(), DOCKER_MANIFEST)
    checked(fake, reference, other[1], made(reference.digest, reference, other[0], SIMPLE_SIGNING))
    kind, data = stored.manifests[stored.tags[tag(reference, "sig")]]
    assert (kind, json.loads(data)["mediaType"]) == (MANIFEST, MANIFEST)
    assert [it.agrees for public in (keys[1], other[1]) for it in check_signed(reference, public)] == [True, True]
