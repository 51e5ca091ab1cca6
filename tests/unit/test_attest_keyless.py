"""Keyless signatures: whom they hold for, and what is refused, against a Sigstore of this process."""

import base64
import json
import logging
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from envbuild.attest import keys
from envbuild.attest.attach import AttestOptions, attest, check_key
from envbuild.attest.bundle import judge, sign_statement
from envbuild.attest.keys import CERTIFIED, Identity, KeylessSigner, public_key_of, signer_of
from envbuild.attest.statement import PROVENANCE, SIGNED, statement
from envbuild.errors import MissingComponentError, RegistryError, UsageError
from envbuild.oci.digest import Digest
from envbuild.verify.registries import check_signed
from tests.fakes.registry import FakeRegistry
from tests.fakes.sigstore import IDENTITY, ISSUER, FakeSigstore
from tests.fakes.sigstore import SIGNED as SIGNED_BY
from tests.reporting import Recorder
from tests.unit.attesting import facts_of, key_pair

SUBJECT = Digest.of(b"image")
SAYS = statement(SUBJECT, SIGNED, {})
CERTIFY, LOG = "/api/v2/signingCert", "/api/v1/log/entries"
CI = ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "GOOGLE_SERVICE_ACCOUNT_NAME", "SIGSTORE_ID_TOKEN")


@pytest.fixture
def instance(tmp_path, monkeypatch):
    """Its trust config and a CI job's token are in the environment."""
    for name in (*CI, "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    CERTIFIED.clear()
    with FakeSigstore() as fake:
        monkeypatch.setenv("ENVBUILD_SIGSTORE_TRUST_CONFIG", str(fake.trust_config(tmp_path)))
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", fake.token())
        yield fake


def bundle_of(payload: bytes = SAYS) -> bytes:
    return sign_statement(payload, signer_of("keyless"), "--sign keyless")


def unchecked(payload: bytes = SAYS) -> bytes:
    """What the library alone makes, which holds or not."""
    from sigstore.dsse import Statement

    signer = signer_of("keyless")
    assert isinstance(signer, KeylessSigner)
    return signer.signer.sign_dsse(Statement(payload)).to_json().encode()


def verdict(bundle: bytes, by: str = SIGNED_BY, subject: Digest = SUBJECT) -> str:
    return judge(bundle, subject, public_key_of(by)).standing


def changed(bundle: bytes, change) -> bytes:
    value = json.loads(bundle)
    change(value)
    return json.dumps(value).encode()


def test_a_bundle_holds_for_its_identity_and_has_our_bytes_and_the_time(instance):
    before = int(time.time())
    bundle = bundle_of()
    assert verdict(bundle) == "holds"
    value = json.loads(bundle)
    assert value["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert base64.b64decode(value["dsseEnvelope"]["payload"]) == SAYS
    [entry] = value["verificationMaterial"]["tlogEntries"]
    assert before <= int(entry["integratedTime"]) <= time.time()
    assert entry["inclusionProof"]["checkpoint"]
    assert instance.asked == [CERTIFY, LOG]


def test_a_bundle_of_sigstores_own_staging_instance_holds(tmp_path, monkeypatch):
    """With Rekor's API version 2 and a timestamp authority, by the trust root that the package has."""
    from sigstore._utils import read_embedded

    kept = {
        name: json.loads(read_embedded(file, "https://tuf-repo-cdn.sigstage.dev"))
        for name, file in (("trustedRoot", "trusted_root.json"), ("signingConfig", "signing_config.v0.2.json"))
    }
    kept["mediaType"] = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
    (tmp_path / "staging.json").write_text(json.dumps(kept))
    monkeypatch.setenv("ENVBUILD_SIGSTORE_TRUST_CONFIG", str(tmp_path / "staging.json"))
    bundle = (Path(__file__).parents[1] / "data/sigstore-staging-bundle.json").read_bytes()
    repository = "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon"
    by = f"keyless:{ISSUER}={repository}/.github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
    subject = Digest("a0cfc71271d6e278e57cd332ff957c3f7043fdda354c4cbb190a30d56efa01bf")
    assert verdict(bundle, by, subject) == "holds"
    assert verdict(bundle, SIGNED_BY, subject) == "other-key"
    assert verdict(changed(bundle, _without_timestamp), by, subject) == "tampered"


def test_a_bundle_is_verified_without_any_request(instance):
    bundle = bundle_of()
    instance.asked.clear()
    assert verdict(bundle) == "holds"
    assert instance.asked == []


@pytest.mark.parametrize(
    "by",
    [
        f"keyless:{ISSUER}={IDENTITY}2",
        f"keyless:{ISSUER}={IDENTITY.replace('main', 'x')}",
        f"keyless:{ISSUER}={IDENTITY.upper()}",
        f"keyless:{ISSUER}=https://github.com/acme/*",
        f"keyless:{ISSUER}=.*",
        f"keyless:{ISSUER}/={IDENTITY}",
        f"keyless:https://issuer.example={IDENTITY}",
        f"keyless:*={IDENTITY}",
    ],
)
def test_another_identity_or_issuer_is_another_signer(instance, by):
    assert verdict(bundle_of(), by) == "other-key"


def test_a_signature_of_another_image_is_none(instance):
    assert verdict(bundle_of(), subject=Digest.of(b"another")) == "other-image"


def _payload(value):
    lie = base64.b64encode(statement(Digest.of(b"lie"), SIGNED, {})).decode()
    value["dsseEnvelope"]["payload"] = lie


def _without_timestamp(value):
    del value["verificationMaterial"]["timestampVerificationData"]


def _without_entry(value):
    value["verificationMaterial"]["tlogEntries"] = []


def _later(value):
    [entry] = value["verificationMaterial"]["tlogEntries"]
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 5)


def _without_time(value):
    del value["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]


def _without_proof(value):
    del value["verificationMaterial"]["tlogEntries"][0]["inclusionProof"]


def _without_signature(value):
    value["dsseEnvelope"]["signatures"] = []


def _two_signatures(value):
    value["dsseEnvelope"]["signatures"] *= 2


def _other_type(value):
    value["dsseEnvelope"]["payloadType"] = "text/plain"


def _without_envelope(value):
    del value["dsseEnvelope"]


@pytest.mark.parametrize(
    "change",
    [
        _payload,
        _without_entry,
        _later,
        _without_time,
        _without_proof,
        _without_signature,
        _two_signatures,
        _other_type,
        _without_envelope,
    ],
)
def test_whatever_is_changed_in_a_bundle_that_names_the_identity_is_found(instance, change):
    assert verdict(changed(bundle_of(), change)) == "tampered"


@pytest.mark.parametrize("part", ["certificate", "tlogEntries"])
def test_parts_of_two_bundles_make_no_third(instance, part):
    whole = bundle_of()
    CERTIFIED.clear()
    other = json.loads(bundle_of(statement(SUBJECT, PROVENANCE, {})))["verificationMaterial"][part]
    assert verdict(changed(whole, lambda it: it["verificationMaterial"].update({part: other}))) == "tampered"


def test_a_certificate_that_had_expired_when_the_log_took_the_signature_does_not_hold(instance, tmp_path):
    instance.delay = timedelta(minutes=20)
    assert verdict(unchecked()) == "tampered"
    with pytest.raises(RegistryError, match="cannot sign: the new bundle does not hold: CertValidationError"):
        bundle_of()


def test_another_instances_certificate_for_the_same_identity_does_not_hold(instance, tmp_path, monkeypatch):
    bundle = bundle_of()
    with FakeSigstore() as other:
        monkeypatch.setenv("ENVBUILD_SIGSTORE_TRUST_CONFIG", str(other.trust_config(tmp_path)))
        assert verdict(bundle) == "tampered"


def test_a_key_accepts_no_keyless_bundle_and_an_identity_none_by_a_key(instance, tmp_path):
    private, public = key_pair(tmp_path)
    assert verdict(bundle_of(), str(public)) == "other-key"
    by_key = sign_statement(SAYS, signer_of(str(private)), "")
    assert verdict(by_key) == "other-key"
    # The certificate of a bundle that holds, around what a key of the attacker's signed.
    material = json.loads(bundle_of())["verificationMaterial"]
    assert verdict(changed(by_key, lambda it: it.update(verificationMaterial=material))) == "tampered"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b"[" * 100_000, b'{"verificationMaterial": 1}'])
def test_what_is_no_bundle_is_nobodys(instance, data):
    assert verdict(data) == "other-key"


def test_an_image_is_signed_once_and_found_signed_by_the_identity(instance):
    with FakeRegistry() as registry:
        facts = facts_of(registry.host)
        attest(facts, AttestOptions(key="keyless"), Recorder())
        assert instance.asked == [CERTIFY, LOG, LOG, LOG]
        assert attest(facts, AttestOptions(key="keyless"), Recorder()) == ()
        assert instance.asked == [CERTIFY, LOG, LOG, LOG], "one certificate serves a command"
        [finding] = check_signed(facts.reference, SIGNED_BY)
        [other] = check_signed(facts.reference, SIGNED_BY + "2")
    assert finding.agrees
    assert finding.says.endswith(f"is signed by {IDENTITY}, and so are its provenance and its bill of materials")
    assert not other.agrees
    assert "none of its 3 signatures is by" in other.says
    assert IDENTITY in other.says


def test_signatures_by_a_key_and_by_an_identity_lie_beside_each_other(instance, tmp_path):
    private, public = key_pair(tmp_path)
    with FakeRegistry() as registry:
        facts = facts_of(registry.host)
        for key, new in ((str(private), 6), ("keyless", 3)):
            assert len(attest(facts, AttestOptions(statements=False, key=key), Recorder())) == new
        for by in (public, SIGNED_BY):
            [finding] = check_signed(facts.reference, by)
            assert finding.agrees


def test_another_job_signs_beside_the_first(instance, monkeypatch):
    with FakeRegistry() as registry:
        facts = facts_of(registry.host)
        attest(facts, AttestOptions(statements=False, key="keyless"), Recorder())
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", instance.token("acme/ml/.github/workflows/other.yml@refs/heads/main"))
        assert len(attest(facts, AttestOptions(statements=False, key="keyless"), Recorder())) == 3


@pytest.mark.parametrize("kind", ["legacy", "both"])
def test_an_identity_signs_in_bundles_alone(kind):
    check_key(AttestOptions())
    with pytest.raises(UsageError, match="only written into bundles") as caught:
        check_key(AttestOptions(key="keyless", format=kind))
    assert caught.value.where == f"--sign keyless --signature-format {kind}"


def test_without_a_ci_identity_it_says_what_to_set_up(instance, monkeypatch):
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")
    monkeypatch.setattr("id._internal.oidc.ambient.detect_gcp", lambda _: None)
    with pytest.raises(UsageError, match="no CI identity") as caught:
        check_key(AttestOptions(key="keyless"))
    assert "permissions: id-token: write" in caught.value.todo
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with pytest.raises(UsageError, match="no CI identity"):
        check_key(AttestOptions(key="keyless"))


def test_githubs_token_is_asked_for_and_shown_nowhere(instance, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "request-secret")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{instance.url}/token?api-version=2.0")
    assert verdict(bundle_of()) == "holds"
    assert instance.asked == ["/token", CERTIFY, LOG]
    assert "request-secret" not in caplog.text
    assert "eyJ0eX" not in caplog.text
    CERTIFIED.clear()
    instance.refuse["/token"] = (500, '{"value": "' + instance.token() + '"}')
    with pytest.raises(RegistryError, match=r"cannot get a signing certificate: .*code=500") as caught:
        signer_of("keyless")
    assert "eyJ" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "status", "text", "says"),
    [
        (
            CERTIFY,
            403,
            '{"code": 3, "message": "no such issuer"}',
            "cannot get a signing certificate: .*403.*no such issuer",
        ),
        *(
            (CERTIFY, 201, answer, "cannot get a signing certificate")
            for answer in ("[]", "<html>", '{"signedCertificateEmbeddedSct": {"chain": {"certificates": ["x", "y"]}}}')
        ),
        (LOG, 500, '{"code": 500, "message": "full"}', "cannot sign: RekorClientError: 500: full"),
        (LOG, 502, "<html>", "cannot sign: .*502"),
        (LOG, 201, "{}", "cannot sign"),
    ],
)
def test_a_service_that_refuses_is_the_registrys_error(instance, path, status, text, says):
    instance.refuse[path] = (status, text)
    with pytest.raises(RegistryError, match=says) as caught:
        bundle_of()
    assert "check the network, the clock" in caught.value.todo
    assert caught.value.where == "--sign keyless"


def test_a_log_that_gives_another_entry_signs_nothing(instance):
    bundle_of()
    instance.refuse[LOG] = (201, json.dumps(instance.log(json.loads(instance.bodies[LOG]))))
    with pytest.raises(RegistryError, match="the new bundle does not hold"):
        bundle_of()


def test_a_service_that_does_not_answer_is_waited_for_so_long_and_no_longer(instance, monkeypatch):
    monkeypatch.setattr(keys, "SECONDS", 0.3)
    instance.silent.clear()
    with pytest.raises(RegistryError, match=r"cannot get a signing certificate: no answer within 0\.3 seconds"):
        signer_of("keyless")
    instance.silent.set()


def test_a_certificate_that_names_no_issuer_is_the_registrys_error(instance, monkeypatch):
    instance.extension = "1.2.3.4"
    with pytest.raises(RegistryError, match="cannot get a signing certificate: ExtensionNotFound"):
        signer_of("keyless")


def test_an_instance_that_cannot_be_reached_is_the_registrys_error(instance, tmp_path, monkeypatch):
    with FakeSigstore() as gone:
        monkeypatch.setenv("ENVBUILD_SIGSTORE_TRUST_CONFIG", str(gone.trust_config(tmp_path)))
    with pytest.raises(RegistryError, match="cannot get a signing certificate: ConnectionError"):
        signer_of("keyless")


@pytest.mark.parametrize(("seconds", "says"), [(-60, "Signature has expired"), (None, "Identity token is malformed")])
def test_a_token_that_is_no_good_is_refused_and_not_shown(instance, monkeypatch, seconds, says):
    token = instance.token(seconds=seconds) if seconds else "eyJhbGciOiJub25lIn0.secretsecret.x"
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token)
    with pytest.raises(RegistryError, match=says) as caught:
        signer_of("keyless")
    assert token not in str(caught.value)
    assert "secretsecret" not in str(caught.value)
    assert instance.asked == []


def test_a_trust_config_that_cannot_be_used_is_named(instance, tmp_path, monkeypatch):
    for number, text in enumerate(("", "{}", '{"mediaType": "x"}')):
        path = tmp_path / f"broken-{number}.json"
        path.write_text(text)
        monkeypatch.setenv("ENVBUILD_SIGSTORE_TRUST_CONFIG", str(path))
        with pytest.raises(UsageError, match="the trust config cannot be used") as caught:
            verdict(b"{}")
        assert str(path) in caught.value.where
    monkeypatch.setenv("ENVBUILD_SIGSTORE_TRUST_CONFIG", str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="No such file"):
        signer_of("keyless")


@pytest.mark.parametrize("text", ["keyless:", f"keyless:{ISSUER}", f"keyless:={IDENTITY}", f"keyless:{ISSUER}="])
def test_an_identity_has_an_issuer_and_a_name(text):
    with pytest.raises(UsageError, match="not an identity"):
        public_key_of(text)


def test_an_identity_may_have_an_equals_sign():
    assert public_key_of("keyless:https://a.example=name=1") == Identity(issuer="https://a.example", name="name=1")


def test_without_sigstore_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sigstore", None)
    for ask in (lambda: signer_of("keyless"), lambda: public_key_of(SIGNED_BY)):
        with pytest.raises(MissingComponentError) as caught:
            ask()
        assert caught.value.todo == "pip install 'envbuild[keyless]'"


def test_nothing_else_imports_sigstore(tmp_path):
    private, _ = key_pair(tmp_path)
    code = (
        "import sys, envbuild.cli, envbuild.verify.registries, envbuild.attest.attach\n"
        "from envbuild.attest.bundle import judge, sign_statement\nfrom envbuild.attest.keys import signer_of\n"
        f"sign_statement(b'{{}}', signer_of({str(private)!r}), '')\n"
        "assert not {it for it in sys.modules if it.split('.')[0] in ('sigstore', 'tuf', 'id', 'jwt', 'pydantic')}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
