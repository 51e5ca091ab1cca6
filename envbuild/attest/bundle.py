"""Signatures as sigstore bundles, version 0.3: a DSSE envelope around a statement, and the name of the key.

https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_bundle.proto;
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md. By a key: no transparency log and no time, as its
owner is known and nothing expires. Keyless: certificate, log entry and time.
"""

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Signature, Signer, SSlibKey

from envbuild.attest.keys import Identity, KeylessSigner, hint_of, kms_refusal, public_key_of, signer_of
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
class SignatureVerdict:
    """The verdict on a signature for a key and an image."""

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
            "payload": base64.b64encode(payload).decode(),
            "payloadType": IN_TOTO,
            "signatures": [{"sig": base64.b64encode(bytes.fromhex(signature.signature)).decode()}],
        },
    }
    return canonical_json(value)


def judge(bundle: bytes, subject: Digest, key: SSlibKey | Identity) -> SignatureVerdict:
    """Verify a bundle by a key or an identity, and then that its statement is about the subject.

    RegistryError and UsageError if an identity's trust root is not available.
    """
    return _about(_by_identity(bundle, key) if isinstance(key, Identity) else _by_key(bundle, key), subject)


def judge_envelope(envelope: bytes, hint: object, subject: Digest, key: SSlibKey | Identity) -> SignatureVerdict:
    """Verify an envelope that is in no bundle, beside which `hint` names its key; then as `judge`."""
    if isinstance(key, Identity):
        return SignatureVerdict(standing="other-key", says="it has no certificate of an identity")
    value: Any = None
    with suppress(*_MALFORMED):
        value = json.loads(envelope)
    return _about(_envelope_by_key(value, key, names_key=hint == hint_of(key)), subject)


def _about(signed: tuple[bytes, str] | SignatureVerdict, subject: Digest) -> SignatureVerdict:
    """Whether what was signed is a statement about the subject; a fault before that stays."""
    if isinstance(signed, SignatureVerdict):
        return signed
    payload, kind = signed
    try:
        value: dict[str, Any] = json.loads(payload)
        if kind != IN_TOTO or value["_type"] not in _STATEMENTS:
            raise ValueError(kind)
        subjects = [str(it["digest"]["sha256"]) for it in value["subject"]]
        predicate = str(value["predicateType"])
    except _MALFORMED:
        return SignatureVerdict(standing="malformed", says="the key signed something else than an in-toto statement")
    if subject.hex not in subjects:
        shown = ", ".join(f"sha256:{it:.64}" for it in subjects[:3])
        return SignatureVerdict(
            standing="other-image", kind=predicate, says=f"it was signed for another image, {shown}"
        )
    return SignatureVerdict(standing="holds", kind=predicate)


def _by_identity(bundle: bytes, identity: Identity) -> tuple[bytes, str] | SignatureVerdict:
    """Payload and payload type that the identity signed, or the fault."""
    try:
        return identity.verify(bundle)
    except VerifyError as error:
        fault = error.what
    try:
        value = json.loads(bundle)
        certificate = base64.b64decode(value["verificationMaterial"]["certificate"]["rawBytes"], validate=True)
    except _MALFORMED:
        return SignatureVerdict(standing="other-key", says="it has no certificate of an identity")
    if difference := identity.difference(certificate):
        return SignatureVerdict(standing="other-key", says=f"it is by another identity: {difference}")
    return SignatureVerdict(standing="tampered", says=fault, kind=_predicate_type(value.get("dsseEnvelope")))


def _by_key(bundle: bytes, key: SSlibKey) -> tuple[bytes, str] | SignatureVerdict:
    """Payload and payload type that the key signed, or the fault."""
    value: Any = None
    hint: Any = None  # cosign's attestations of other keys have none
    with suppress(*_MALFORMED):
        value = json.loads(bundle)
        hint = value["verificationMaterial"]["publicKey"]["hint"]
    envelope = value.get("dsseEnvelope") if isinstance(value, dict) else None
    return _envelope_by_key(envelope, key, names_key=str(hint) == hint_of(key))


def _envelope_by_key(envelope: Any, key: SSlibKey, *, names_key: bool) -> tuple[bytes, str] | SignatureVerdict:
    """Payload and payload type that the key signed, or the fault."""
    try:
        payload, kind = base64.b64decode(envelope["payload"], validate=True), envelope["payloadType"]
        signatures = [base64.b64decode(it["sig"], validate=True) for it in envelope["signatures"]]
        data = Envelope(payload, kind, {}).pae()
    except _MALFORMED:
        standing: Standing = "malformed" if names_key else "unreadable"
        return SignatureVerdict(standing=standing, says="it has no DSSE envelope")
    for signature in signatures:
        with suppress(UnverifiedSignatureError):
            key.verify_signature(Signature(key.keyid, signature.hex()), data)
            return payload, kind
    if names_key:
        fault = "the signature does not match: payload or signature was changed"
        return SignatureVerdict(standing="tampered", says=fault, kind=_predicate_type(envelope))
    return SignatureVerdict(standing="other-key", says="it is by another key")


def _predicate_type(envelope: Any) -> str:
    """The unverified predicate type of a statement; empty if there is none."""
    try:
        return str(json.loads(base64.b64decode(envelope["payload"]))["predicateType"])
    except _MALFORMED:
        return ""


RECORD = "https://envbuild.dev/stamp-record/v1"
"""The predicate type of a record's signature; that of an image differs, so neither can replace the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeys:
    """Public keys, one of which must have signed a record."""

    keys: tuple[SSlibKey | Identity, ...]

    def fault(self, bundle: bytes, record: Digest) -> str:
        """The fault of a record's signature; empty if one of the keys signed this record."""
        fault = "there is no key"
        for key in self.keys:
            verdict = judge(bundle, record, key)
            if verdict.standing == "holds" and verdict.kind == RECORD:
                return ""
            fault = verdict.says or f"it is a statement about something else: {verdict.kind:.200}"
            if verdict.standing == "other-image":
                fault = "it was signed for another record"
        return fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSigner(RecordKeys):
    """A private key that signs records."""

    signer: Signer | KeylessSigner
    where: str
    minimum: int = 0
    """The lowest counter of a record that it continues; 0 to allow the first one."""

    def sign(self, record: Digest) -> bytes:
        """Sign a record; RegistryError if Cloud KMS does not sign."""
        return sign_statement(statement(record, RECORD, {}), self.signer, self.where)

    def has_signed(self, bundle: bytes, record: Digest) -> bool:
        """Whether the key itself signed a record, and not another one that is trusted."""
        return not RecordKeys(keys=self.keys[:1]).fault(bundle, record)


def record_keys(keys: Sequence[str]) -> RecordKeys:
    """Load public keys; errors as `public_key_of`."""
    return RecordKeys(keys=tuple(public_key_of(it) for it in keys))


def record_signer(key: str, trusted: Sequence[str] = (), minimum: int = 0) -> RecordSigner:
    """A signer that continues records of its key and of the trusted ones; errors as `signer_of`.

    It refuses to continue a record with a counter below `minimum`.
    """
    signer = signer_of(key)
    public = signer.public_key
    assert isinstance(public, SSlibKey | Identity)
    keys = (public, *(public_key_of(it) for it in trusted))
    return RecordSigner(keys=keys, signer=signer, where=f"--sign {key}", minimum=minimum)
