"""Signatures as sigstore bundles, version 0.3: a DSSE envelope around a statement, and the name of the key.

https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_bundle.proto;
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md. By a key: no transparency log and no time, as its
owner is known, nothing has to be public and nothing expires. Keyless: certificate, log entry and time.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any, Literal

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Signature, Signer, SSlibKey

from envbuild.attest.keyless import Identity, KeylessSigner
from envbuild.attest.keys import hint_of, refused
from envbuild.attest.statement import IN_TOTO, STATEMENT
from envbuild.errors import VerifyError
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

_STATEMENTS = (STATEMENT, "https://in-toto.io/Statement/v0.1")
"""The second is older, and `cosign attest` writes it; its fields are the same (in-toto/attestation, spec/v0.1.0)."""

Standing = Literal["holds", "unreadable", "other-key", "tampered", "malformed", "other-image"]
"""`unreadable` is anybody's; `malformed` names the key or is signed by it, and is no statement all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a bundle is worth, to somebody who has a key and an image."""

    standing: Standing
    kind: str = ""
    """The statement's predicate type, where it can be read."""
    says: str = ""
    """What is wrong, in a few words."""


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
        raise refused(error, where) from error
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


def judge(bundle: bytes, subject: Digest, key: SSlibKey | Identity) -> Judged:
    """Hold a bundle to a key or an identity, and to an image: first the signature, and only then what it says.

    RegistryError and UsageError where an identity's trust root cannot be had.
    """
    opened = _by_identity(bundle, key) if isinstance(key, Identity) else _by_key(bundle, key)
    return opened if isinstance(opened, Judged) else _of_image(*opened, subject)


def _by_identity(bundle: bytes, identity: Identity) -> tuple[bytes, str] | Judged:
    """Payload and payload type of what the identity signed, or what is wrong."""
    try:
        return identity.verify(bundle)
    except VerifyError as error:
        says = error.what
    try:
        value = json.loads(bundle)
        certificate = base64.b64decode(value["verificationMaterial"]["certificate"]["rawBytes"], validate=True)
    except _WRONG:
        return Judged(standing="other-key", says="it has no certificate of an identity")
    if difference := identity.difference(certificate):
        return Judged(standing="other-key", says=f"it is by another identity: {difference}")
    return Judged(standing="tampered", says=says, kind=_kind(value.get("dsseEnvelope")))


def _by_key(bundle: bytes, key: SSlibKey) -> tuple[bytes, str] | Judged:
    """Payload and payload type of what the key signed, or what is wrong."""
    named = _hint(bundle) == hint_of(key)
    try:
        envelope = json.loads(bundle)["dsseEnvelope"]
        payload, kind = base64.b64decode(envelope["payload"], validate=True), envelope["payloadType"]
        signatures = [base64.b64decode(it["sig"], validate=True) for it in envelope["signatures"]]
        data = Envelope(payload, kind, {}).pae()
    except _WRONG:
        return Judged(standing="malformed" if named else "unreadable", says="it is no bundle with a DSSE envelope")
    if not any(_holds(data, it, key) for it in signatures):
        if named:
            what = "what it says is not what was signed: payload or signature was changed"
            return Judged(standing="tampered", says=what, kind=_kind(envelope))
        return Judged(standing="other-key", says="it is by another key")
    return payload, kind


def _of_image(payload: bytes, kind: str, subject: Digest) -> Judged:
    """What a statement is worth that the key has signed."""
    try:
        value: dict[str, Any] = json.loads(payload)
        if kind != IN_TOTO or value["_type"] not in _STATEMENTS:
            raise ValueError(kind)
        said = [str(it["digest"]["sha256"]) for it in value["subject"]]
        predicate = str(value["predicateType"])
    except _WRONG:
        return Judged(standing="malformed", says="what the key signed is no in-toto statement")
    if subject.hex not in said:
        shown = ", ".join(f"sha256:{it:.64}" for it in said[:3])
        return Judged(standing="other-image", kind=predicate, says=f"it was signed for another image, {shown}")
    return Judged(standing="holds", kind=predicate)


def _hint(bundle: bytes) -> str:
    """The key that a bundle names, be the rest of it what it may; empty where it names none."""
    try:
        return str(json.loads(bundle)["verificationMaterial"]["publicKey"]["hint"])
    except _WRONG:
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
    except _WRONG:
        return ""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
