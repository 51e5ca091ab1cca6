"""Keys that sign, keys that check, and what a signature is worth that was changed on its way."""

import base64
import hashlib
import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from nacl.secret import SecretBox
from securesystemslib.signer import SSlibKey

from envbuild.attest.attach import AttestOptions, attest
from envbuild.attest.bundle import judge, sign_statement
from envbuild.attest.keys import hint_of, public_key_of, signer_of
from envbuild.attest.statement import BUNDLE, IN_TOTO, PROVENANCE, SIGNED, statement
from envbuild.errors import RegistryError, UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.referrers import Artifact, attach, subject_of
from envbuild.verify.registries import check_signed
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder
from tests.unit.attesting import ANOTHER_KEY, facts_of, key_pair

SUBJECT = Digest.of(b"image")
SAYS = statement(SUBJECT, SIGNED, {})


@pytest.fixture
def keys(tmp_path):
    return key_pair(tmp_path)


def verdict(bundle: bytes, public: object, subject: Digest = SUBJECT) -> tuple[str, str]:
    judged = judge(bundle, subject, public_key_of(str(public)))
    return judged.standing, judged.says


def changed(bundle: bytes, **envelope: object) -> bytes:
    value = json.loads(bundle)
    return json.dumps(value | {"dsseEnvelope": value["dsseEnvelope"] | envelope}).encode()


def without_envelope(bundle: bytes) -> bytes:
    return json.dumps(json.loads(bundle) | {"dsseEnvelope": None}).encode()


def cosign_key(private: bytes, password: str) -> bytes:
    """The form that `cosign generate-key-pair` writes, with a cheaper scrypt."""
    der = load_pem_private_key(private, None).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    salt, nonce = bytes(32), bytes(SecretBox.NONCE_SIZE)
    sealed = SecretBox(hashlib.scrypt(password.encode(), salt=salt, n=1024, r=8, p=1, dklen=32)).encrypt(der, nonce)
    kdf = {"name": "scrypt", "params": {"N": 1024, "r": 8, "p": 1}, "salt": base64.b64encode(salt).decode()}
    cipher = {"name": "nacl/secretbox", "nonce": base64.b64encode(nonce).decode()}
    value = {"kdf": kdf, "cipher": cipher, "ciphertext": base64.b64encode(sealed.ciphertext).decode()}
    text = base64.encodebytes(json.dumps(value).encode()).decode()
    kind = "ENCRYPTED SIGSTORE PRIVATE KEY"
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n".encode()


def test_a_signature_holds_for_its_key_and_its_image_alone(keys, tmp_path):
    private, public = keys
    bundle = sign_statement(SAYS, signer_of(str(private)), "")
    _, other = key_pair(tmp_path, "other")
    assert verdict(bundle, public) == ("holds", "")
    assert verdict(bundle, other) == ("other-key", ANOTHER_KEY)
    standing, says = verdict(bundle, public, Digest.of(b"another image"))
    assert (standing, str(SUBJECT) in says) == ("other-image", True)


def test_whatever_is_changed_in_a_bundle_it_does_not_hold(keys):
    private, public = keys
    bundle = sign_statement(SAYS, signer_of(str(private)), "")
    lie = base64.b64encode(statement(Digest.of(b"lie"), SIGNED, {})).decode()
    assert verdict(changed(bundle, payload=lie), public)[0] == "tampered"
    assert verdict(changed(bundle, payloadType="text/plain"), public)[0] == "tampered"
    assert verdict(changed(bundle, signatures=[]), public)[0] == "tampered"
    assert verdict(changed(bundle, signatures=[{"sig": "AAAA"}]), public)[0] == "tampered"
    assert verdict(b"{}", public)[0] == "unreadable"
    assert verdict(b"\xff", public)[0] == "unreadable"


def test_what_names_the_key_and_is_no_statement_is_told_from_what_others_left(keys, tmp_path):
    bundle = sign_statement(SAYS, signer_of(str(keys[0])), "")
    _, other = key_pair(tmp_path, "other")
    broken = (
        {"payload": "%%"},
        {"signatures": [{"sig": 5}]},
        {"signatures": None},
        {"payloadType": 5},
        {"payloadType": "\ud800"},
    )
    for bad in [*(changed(bundle, **it) for it in broken), without_envelope(bundle)]:
        assert (verdict(bad, keys[1])[0], verdict(bad, other)[0]) == ("malformed", "unreadable")


def test_a_broken_bundle_that_names_the_key_fails_beside_a_signature_that_holds(fake, keys):
    facts = facts_of(fake.host)
    attest(facts, AttestOptions(statements=False, key=str(keys[0])), Recorder())
    put(fake, facts.reference, without_envelope(sign_statement(SAYS, signer_of(str(keys[0])), "")))
    good, wrong = check_signed(facts.reference, keys[1])
    assert (good.agrees, wrong.agrees, wrong.severity) == (True, False, "error")
    assert wrong.says == "the signature on a statement does not hold: it has no DSSE envelope"


def test_what_the_key_signed_is_a_statement_new_or_old_or_an_error(fake, keys):
    facts, signer = facts_of(fake.host), signer_of(str(keys[0]))
    old = SAYS.replace(b"Statement/v1", b"Statement/v0.1")
    assert verdict(sign_statement(old, signer, ""), keys[1]) == ("holds", "")
    unknown = SAYS.replace(b"Statement/v1", b"Statement/v9")
    assert verdict(sign_statement(unknown, signer, ""), keys[1])[0] == "malformed"
    attest(facts, AttestOptions(statements=False, key=str(keys[0])), Recorder())
    put(fake, facts.reference, sign_statement(b"[]", signer, ""))
    good, wrong = check_signed(facts.reference, keys[1])
    assert (good.agrees, wrong.agrees) == (True, False)
    assert wrong.says.endswith("the key signed something else than an in-toto statement")


def test_a_private_key_may_have_a_password_lie_in_a_variable_or_be_cosigns(tmp_path, monkeypatch):
    private, public = key_pair(tmp_path)
    locked, _ = key_pair(tmp_path, "locked", password="letmein")
    with pytest.raises(UsageError, match="has a password, which is not given"):
        signer_of(str(locked))
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    with pytest.raises(UsageError, match="or its password is wrong"):
        signer_of(str(locked))
    monkeypatch.setenv("ENVBUILD_SIGN_PASSWORD", "letmein")
    signer_of(str(locked))
    (tmp_path / "cosign.key").write_bytes(cosign_key(private.read_bytes(), "letmein"))
    monkeypatch.setenv("SIGNING_KEY", private.read_text())
    for key in (str(private), "env://SIGNING_KEY", str(tmp_path / "cosign.key")):
        assert verdict(sign_statement(SAYS, signer_of(key), ""), public) == ("holds", "")
    monkeypatch.setenv("ENVBUILD_SIGN_PASSWORD", "wrong")
    with pytest.raises(UsageError, match="password") as caught:
        signer_of(str(tmp_path / "cosign.key"))
    assert str(tmp_path / "cosign.key") in caught.value.where


def test_keys_of_another_kind_are_refused_and_no_key_is_printed(tmp_path, keys):
    pem = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "rsa.pem").write_bytes(pem)
    larger, larger_public = key_pair(tmp_path, "larger", curve=ec.SECP384R1())
    for key in (tmp_path / "rsa.pem", larger):
        with pytest.raises(UsageError, match="not an ECDSA P-256 key"):
            signer_of(str(key))
    for key, why in ((larger_public, "not an ECDSA"), (keys[0], "not a public key"), ("env://ABSENT", "is not set")):
        with pytest.raises(UsageError, match=why):
            public_key_of(str(key))
    with pytest.raises(UsageError, match="a public key cannot sign"):
        signer_of(str(keys[1]))
    with pytest.raises(UsageError, match="not the key itself") as caught:
        signer_of(keys[0].read_text())
    assert "MIG" not in str(caught.value)
    with pytest.raises(UsageError, match="not a version of a key"):
        signer_of("gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k")


KEY = "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"
WITHOUT_KMS = f"""
import sys
sys.modules["google.cloud.kms"] = None
from envbuild.attest.keys import signer_of
from envbuild.errors import MissingComponentError
try:
    signer_of("{KEY}")
except MissingComponentError as error:
    print(error)
"""


def test_what_signs_elsewhere_is_asked_for_by_name_where_it_is_not_installed():
    done = subprocess.run([sys.executable, "-c", WITHOUT_KMS], capture_output=True, text=True, check=True)
    assert "library for Cloud KMS is not installed" in done.stdout
    assert "do: pip install 'envbuild[sign]'" in done.stdout


def test_without_a_login_cloud_kms_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(RegistryError, match="credentials were not found") as caught:
        signer_of(KEY)
    assert "check the key's name, the login" in caught.value.todo


def test_the_hint_is_the_one_that_openssl_computes(keys):
    private, public = keys
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", public, "-outform", "DER"], capture_output=True, check=True
    )
    expected = base64.b64encode(hashlib.sha256(der.stdout).digest()).decode()
    key = public_key_of(str(public))
    assert isinstance(key, SSlibKey)
    assert hint_of(key) == expected
    bundle = json.loads(sign_statement(SAYS, signer_of(str(private)), ""))
    assert bundle["verificationMaterial"] == {"publicKey": {"hint": expected}}


@pytest.fixture(params=[True, False], ids=["listed", "tagged"])
def fake(request):
    with FakeRegistry(referrers=request.param) as fake:
        yield fake


def put(fake: FakeRegistry, subject: Reference, data: bytes) -> None:
    with Registry(fake.host) as registry:
        described: Descriptor = subject_of(registry, subject)
        attach(registry, subject.repository, described, [Artifact(kind=BUNDLE, data=data)])


def test_a_signed_image_is_found_signed_by_tag_and_by_digest(fake, keys):
    private, public = keys
    facts = facts_of(fake.host)
    attest(facts, AttestOptions(key=str(private)), Recorder())
    for reference in (facts.reference, Reference(fake.host, "team/app", "v1")):
        [finding] = check_signed(reference, public)
        assert (finding.agrees, finding.rule or finding.about) == (True, "signed")
        assert finding.says.endswith("by the key, and so are its provenance and its bill of materials")


def test_what_is_not_signed_or_by_another_key_says_so(fake, keys, tmp_path):
    facts = facts_of(fake.host)
    [none] = check_signed(facts.reference, keys[1])
    attest(facts, AttestOptions(statements=False, key=str(keys[0])), Recorder())
    [other] = check_signed(facts.reference, key_pair(tmp_path, "other")[1])
    assert (none.agrees, none.says) == (False, "it has no signature")
    assert (other.agrees, other.severity) == (False, "error")
    assert other.says == f"none of its 6 signatures is by the key: {ANOTHER_KEY}"


def test_a_signature_of_another_image_or_of_provenance_alone_is_none(fake, keys):
    facts, signer = facts_of(fake.host), signer_of(str(keys[0]))
    assert facts.reference.digest
    put(fake, facts.reference, sign_statement(statement(facts.reference.digest, PROVENANCE, {}), signer, ""))
    [partly] = check_signed(facts.reference, keys[1])
    assert partly.says == "the key has signed its provenance, and not the image"
    put(fake, facts.reference, sign_statement(SAYS, signer, ""))
    [elsewhere] = check_signed(facts.reference, keys[1])
    assert f"it was signed for another image, {SUBJECT}" in elsewhere.says


def test_a_statement_that_was_changed_is_found_beside_a_signature_that_holds(fake, keys):
    facts = facts_of(fake.host)
    attest(facts, AttestOptions(key=str(keys[0])), Recorder())
    assert facts.reference.digest
    bundle = sign_statement(statement(facts.reference.digest, PROVENANCE, {}), signer_of(str(keys[0])), "")
    lie = statement(facts.reference.digest, PROVENANCE, {"builder": "another"})
    put(fake, facts.reference, changed(bundle, payload=base64.b64encode(lie).decode(), payloadType=IN_TOTO))
    good, bad = check_signed(facts.reference, keys[1].read_text())
    assert (good.agrees, bad.agrees) == (True, False)
    assert "the signature on its provenance does not hold: the signature does not match" in bad.says


def test_an_image_that_is_not_there_is_the_registrys_error(fake, keys):
    with pytest.raises(RegistryError):
        check_signed(Reference(fake.host, "team/none", "v1"), keys[1])
