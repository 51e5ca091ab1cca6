"""Signatures as sigstore bundles, version 0.3: a DSSE envelope around a statement, and the name of the key.

https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_bundle.proto;
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md. By a key: no transparency log and no time, as its
owner is known and nothing expires. Keyless: certificate, log entry and time.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Signature, Signer, SSlibKey

from envbuild.attest.keyless import Identity, KeylessSigner
from envbuild.attest.keys import hint_of, kms_refusal, public_key_of, signer_of
from envbuild.attest.statement import BUNDLE, IN_TOTO, STATEMENT, statement
from envbuild.errors import VerifyError
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

_STATEMENTS = (STATEMENT, "https://in-toto.io/Statement/v0.1")
"""`cosign attest` writes the second, which is older with the same fields (in-toto/attestation, spec/v0.1.0)."""

Standing = Literal["holds", "unreadable", "other-key", "tampered", "malformed", "other-image"]
"""`unreadable` may be by anybody; `malformed` names the key or is signed by it, but has no valid statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleVerdict:
    """The verdict on a bundle for a key and an image."""

    standing: Standing
    kind: str = ""
    """The statement's predicate type, if it can be read."""
    says: str = ""
    """The fault."""


def sign_statement(payload: bytes, signer: Signer | KeylessSigner, where: str) -> bytes:
    """Sign a statement; the bundle's bytes differ each time, as ECDSA signatures do.

    RegistryError from Cloud KMS, Fulcio or Rekor.
    """
    if isinstance(signer, KeylessSigner):
        return signer.sign(payload, where)
    envelope = Envelope(payload, IN_TOTO, {})
    try:
        signature = envelope.sign(signer)
    except Exception as error:
        raise kms_refusal(error, where) from error
    public = signer.public_key
    assert isinstance(public, SSlibKey)
    value = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint_of(public)}},
        "dsseEnvelope": {
            "payload": _text(payload),
            "payloadType": IN_TOTO,
            "signatures": [{"sig": _text(bytes.fromhex(signature.signature))}],
        },
    }
    return canonical_json(value)


def judge(bundle: bytes, subject: Digest, key: SSlibKey | Identity) -> BundleVerdict:
    """Hold a bundle to a key or an identity, and to an image: first the signature, and only then what it says.

    RegistryError and UsageError where an identity's trust root cannot be had.
    """
    opened = _by_identity(bundle, key) if isinstance(key, Identity) else _by_key(bundle, key)
    return opened if isinstance(opened, BundleVerdict) else _of_image(*opened, subject)


def _by_identity(bundle: bytes, identity: Identity) -> tuple[bytes, str] | BundleVerdict:
    """Payload and payload type of what the identity signed, or what is wrong."""
    try:
        return identity.verify(bundle)
    except VerifyError as error:
        says = error.what
    try:
        value = json.loads(bundle)
        certificate = base64.b64decode(value["verificationMaterial"]["certificate"]["rawBytes"], validate=True)
    except _MALFORMED:
        return BundleVerdict(standing="other-key", says="it has no certificate of an identity")
    if difference := identity.difference(certificate):
        return BundleVerdict(standing="other-key", says=f"it is by another identity: {difference}")
    return BundleVerdict(standing="tampered", says=says, kind=_kind(value.get("dsseEnvelope")))


def _by_key(bundle: bytes, key: SSlibKey) -> tuple[bytes, str] | BundleVerdict:
    """Payload and payload type of what the key signed, or what is wrong."""
    named = _hint(bundle) == hint_of(key)
    try:
        envelope = json.loads(bundle)["dsseEnvelope"]
        payload, kind = base64.b64decode(envelope["payload"], validate=True), envelope["payloadType"]
        signatures = [base64.b64decode(it["sig"], validate=True) for it in envelope["signatures"]]
        data = Envelope(payload, kind, {}).pae()
    except _MALFORMED:
        standing: Standing = "malformed" if named else "unreadable"
        return BundleVerdict(standing=standing, says="it is no bundle with a DSSE envelope")
    if not any(_holds(data, it, key) for it in signatures):
        if named:
            what = "what it says is not what was signed: payload or signature was changed"
            return BundleVerdict(standing="tampered", says=what, kind=_kind(envelope))
        return BundleVerdict(standing="other-key", says="it is by another key")
    return payload, kind


def _of_image(payload: bytes, kind: str, subject: Digest) -> BundleVerdict:
    """What a statement is worth that the key has signed."""
    try:
        value: dict[str, Any] = json.loads(payload)
        if kind != IN_TOTO or value["_type"] not in _STATEMENTS:
            raise ValueError(kind)
        said = [str(it["digest"]["sha256"]) for it in value["subject"]]
        predicate = str(value["predicateType"])
    except _MALFORMED:
        return BundleVerdict(standing="malformed", says="what the key signed is no in-toto statement")
    if subject.hex not in said:
        shown = ", ".join(f"sha256:{it:.64}" for it in said[:3])
        return BundleVerdict(standing="other-image", kind=predicate, says=f"it was signed for another image, {shown}")
    return BundleVerdict(standing="holds", kind=predicate)


def _hint(bundle: bytes) -> str:
    """The key that a bundle names, be the rest of it what it may; empty where it names none."""
    try:
        return str(json.loads(bundle)["verificationMaterial"]["publicKey"]["hint"])
    except _MALFORMED:
        return ""


def _holds(data: bytes, signature: bytes, key: SSlibKey) -> bool:
    try:
        key.verify_signature(Signature(key.keyid, signature.hex()), data)
    except UnverifiedSignatureError:
        return False
    return True


def _kind(envelope: Any) -> str:
    """What a statement says that it is, believed or not."""
    try:
        return str(json.loads(base64.b64decode(envelope["payload"]))["predicateType"])
    except _MALFORMED:
        return ""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


RECORD = "https://envbuild.dev/stamp-record/v1"
"""The predicate of a record's signature; a signature of an image has another, so that neither stands for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeys:
    """Public keys, one of which has to have signed a record."""

    keys: tuple[SSlibKey | Identity, ...]

    def fault(self, bundle: bytes, record: Digest) -> str:
        """What is wrong with a signature of a record; empty if one of the keys signed this record."""
        says = "there is no key"
        for key in self.keys:
            judged = judge(bundle, record, key)
            if judged.standing == "holds" and judged.kind == RECORD:
                return ""
            says = f"it is a statement about something else: {judged.kind:.200}" if not judged.says else judged.says
            says = "it was signed for another record" if judged.standing == "other-image" else says
        return says


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSigner(RecordKeys):
    """A private key that signs records."""

    signer: Signer | KeylessSigner
    where: str
    minimum: int = 0
    """The lowest counter of a record that it continues; 0 where it may write the first one."""

    def sign(self, record: Digest) -> bytes:
        """Sign a record; RegistryError where Cloud KMS does not sign."""
        return sign_statement(statement(record, RECORD, {}), self.signer, self.where)


def record_keys(keys: Sequence[str]) -> RecordKeys:
    """The public keys that are named; errors as `public_key_of`."""
    return RecordKeys(keys=tuple(public_key_of(it) for it in keys))


def record_signer(key: str, trusted: Sequence[str] = (), minimum: int = 0) -> RecordSigner:
    """What signs with a key, and continues records of this key and of those that are trusted; errors as `signer_of`.

    It refuses to continue a record with a counter below `minimum`.
    """
    signer = signer_of(key)
    public = signer.public_key
    assert isinstance(public, SSlibKey | Identity)
    keys = (public, *(public_key_of(it) for it in trusted))
    return RecordSigner(keys=keys, signer=signer, where=f"--sign {key}", minimum=minimum)
