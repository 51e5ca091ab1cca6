"""Signatures under cosign's tags `sha256-HEX.sig` and `sha256-HEX.att`, for clients that do not read bundles.

https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md; the first has signatures on the image as "simple
signing" payloads, the second envelopes of signed statements. Both are images whose layers are the signatures.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Signature, Signer, SSlibKey

from envbuild.attest.bundle import SignatureVerdict, judge_envelope
from envbuild.attest.keys import Identity, hint_of, kms_refusal
from envbuild.attest.statement import SIGNED
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import MANIFEST, Descriptor, canonical_json
from envbuild.registry.client import Registry
from envbuild.registry.tag_list import TagList

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
SUFFIXES = {SIMPLE_SIGNING: "sig", ENVELOPE: "att"}
"""Of the tag that has layers of this media type."""
SIGNATURE = "dev.cosignproject.cosign/signature"
"""The annotation with a payload's signature in base64; empty for an envelope, which has its own."""
KEY = "dev.envbuild.key"
"""The annotation with the name of the key, which neither format has; without it a changed signature is anybody's."""
_CLAIM = "cosign container image signature"
_MOST = 1000
"""Signatures under one tag that are read, as cosign does."""
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSignature:
    """A signature as a layer under one of the tags."""

    kind: str
    """SIMPLE_SIGNING or ENVELOPE."""
    data: bytes
    """Empty if it cannot be read."""
    annotations: Mapping[str, str]

    @property
    def blob(self) -> Descriptor:
        """The layer's descriptor."""
        return Descriptor(self.kind, Digest.of(self.data), len(self.data), self.annotations)

    def judge(self, subject: Digest, key: SSlibKey | Identity) -> SignatureVerdict:
        """Verify the signature by a key, and then that it is about the subject."""
        if not self.data:
            return SignatureVerdict(standing="unreadable", says="its content is gone or was changed")
        if self.kind == SIMPLE_SIGNING:
            return _judge_claim(self, subject, key)
        return judge_envelope(self.data, self.annotations.get(KEY), subject, key)


def sign_image(subject: Digest, name: str, signer: Signer, where: str) -> TagSignature:
    """Sign an image's digest and its repository's name; RegistryError from Cloud KMS."""
    image = {"docker-manifest-digest": str(subject)}
    claim = {"critical": {"identity": {"docker-reference": name}, "image": image, "type": _CLAIM}, "optional": None}
    data = canonical_json(claim)
    try:
        signature = signer.sign(data)
    except Exception as error:
        raise kms_refusal(error, where) from error
    text = base64.b64encode(bytes.fromhex(signature.signature)).decode()
    return TagSignature(kind=SIMPLE_SIGNING, data=data, annotations={SIGNATURE: text, KEY: _name_of(signer)})


def envelope_of(bundle: bytes, kind: str, signer: Signer) -> TagSignature:
    """The envelope in a bundle of a statement of this predicate type."""
    data = canonical_json(json.loads(bundle)["dsseEnvelope"])
    annotations = {SIGNATURE: "", KEY: _name_of(signer), "predicateType": kind}
    return TagSignature(kind=ENVELOPE, data=data, annotations=annotations)


def read_signatures(registry: Registry, repository: str, subject: Digest) -> Iterator[TagSignature]:
    """Yield the signatures under an image's tags.

    One that is malformed is left out, and one whose content is gone, wrong or over 4 MiB is empty, as others may put
    anything there. RegistryError.
    """
    for kind in SUFFIXES:
        listed = _tag_list(registry, repository, subject, kind)
        layers = listed.entries()
        if len(layers) > _MOST:
            what = f"{len(layers)} signatures lie under the tag {listed.tag}, more than {_MOST}"
            todo = f"remove the tag, and sign the image again: crane delete {registry.host}/{repository}:{listed.tag}"
            raise RegistryError(what, where=f"{registry.host}/{repository}", todo=todo)
        for layer in layers:
            try:
                blob = Descriptor.from_dict(layer)
            except _MALFORMED:
                continue
            if blob.media_type == kind:
                data = registry.small_blob(repository, blob)
                yield TagSignature(kind=kind, data=data, annotations=blob.annotations)


def attach_signatures(
    registry: Registry, repository: str, subject: Digest, signatures: Sequence[TagSignature]
) -> tuple[str, ...]:
    """Add signatures to those under an image's tags, and return the tags; RegistryError if they are not there then."""
    tags = []
    for kind in SUFFIXES:
        if not (blobs := [it for it in signatures if it.kind == kind]):
            continue
        for it in blobs:
            registry.put_blob(repository, it.blob, partial(BytesIO, it.data))
        listed = _tag_list(registry, repository, subject, kind)
        listed.extend([it.blob.to_dict() for it in blobs])
        tags.append(listed.tag)
    return tuple(tags)


def _judge_claim(signature: TagSignature, subject: Digest, key: SSlibKey | Identity) -> SignatureVerdict:
    if isinstance(key, Identity):
        return SignatureVerdict(standing="other-key", says="it has no certificate of an identity")
    names_key = signature.annotations.get(KEY) == hint_of(key)
    try:
        data = base64.b64decode(signature.annotations[SIGNATURE], validate=True)
    except _MALFORMED:
        return SignatureVerdict(
            standing="malformed" if names_key else "unreadable", says="its signature is not in base64"
        )
    try:
        key.verify_signature(Signature(key.keyid, data.hex()), signature.data)
    except UnverifiedSignatureError:
        if names_key:
            fault = "the signature does not match: payload or signature was changed"
            return SignatureVerdict(standing="tampered", says=fault, kind=SIGNED)
        return SignatureVerdict(standing="other-key", says="it is by another key")
    return _about(signature.data, subject)


def _about(claim: bytes, subject: Digest) -> SignatureVerdict:
    """Whether what was signed is a claim about the subject."""
    try:
        critical = json.loads(claim)["critical"]
        signed = str(critical["image"]["docker-manifest-digest"])
        if critical["type"] != _CLAIM:
            raise ValueError(critical["type"])
    except _MALFORMED:
        return SignatureVerdict(standing="malformed", says="the key signed something else than an image")
    if signed != str(subject):
        says = f"it was signed for another image, {signed:.80}"
        return SignatureVerdict(standing="other-image", kind=SIGNED, says=says)
    return SignatureVerdict(standing="holds", kind=SIGNED)


def _tag_list(registry: Registry, repository: str, subject: Digest, kind: str) -> TagList:
    instead = "let tags that begin with sha256- move, or sign with --signature-format bundle"
    tag = f"sha256-{subject.hex}.{SUFFIXES[kind]}"
    return TagList(registry=registry, repository=repository, tag=tag, media_type=MANIFEST, instead=instead)


def _name_of(signer: Signer) -> str:
    public = signer.public_key
    assert isinstance(public, SSlibKey)
    return hint_of(public)
