"""Signatures on what lies in a registry, as cosign attaches them and finds them again."""

import json
from collections.abc import Iterator, Sequence

from securesystemslib.signer import SSlibKey

from envbuild.attest.attaching import Place
from envbuild.attest.bundle import BUNDLE, judge, sign_statement
from envbuild.attest.keyless import Identity
from envbuild.attest.keys import signer_of
from envbuild.attest.model import Teller
from envbuild.attest.statement import SIGNED, statement
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry import Registry
from envbuild.registry.referrers import Artifact, Referrer, read_artifact

_CONTENT = "dev.sigstore.bundle.content"
_PREDICATE = "dev.sigstore.bundle.predicateType"
"""Cosign's annotations (specs/BUNDLE_SPEC.md). Of its three the time is left out: no key's signature needs it."""


def attach_signature(reference: Reference, key: str, report: Teller) -> tuple[Digest, ...]:
    """Sign what lies in a registry, an index for instance, unless the key has signed it; errors as `signer_of`."""
    with Registry(reference.registry) as registry:
        place = Place.of(registry, reference)
        return place.put(bundles_for(place, [], key), report)


def bundles_for(place: Place, payloads: Sequence[bytes], key: str) -> list[Artifact]:
    """Statements signed, and the image's own signature, as far as the key has not signed their kind before."""
    signer, subject = signer_of(key), place.subject.digest
    public = signer.public_key
    assert isinstance(public, SSlibKey | Identity)
    there = [
        judge(data, subject, public) for data in bundles_of(place.registry, place.repository, subject, place.found)
    ]
    known = {it.kind for it in there if it.standing == "holds"}
    kinds = {json.loads(it)["predicateType"]: it for it in (*payloads, statement(subject, SIGNED, {}))}
    missing = {kind: payload for kind, payload in kinds.items() if kind not in known}
    made = [_bundle(kind, sign_statement(payload, signer, f"--sign {key}")) for kind, payload in missing.items()]
    if any(judge(it.data, subject, public).standing != "holds" for it in made):
        todo = "check that the key is what its public half says; nothing was attached"
        raise RegistryError("a new signature does not hold by the key's public half", where=f"--sign {key}", todo=todo)
    return made


def bundles_of(registry: Registry, repository: str, subject: Digest, found: Sequence[Referrer]) -> Iterator[bytes]:
    """The signatures on an image; one that cannot be read is empty."""
    return (read_artifact(registry, repository, one, subject) for one in found if one.kind == BUNDLE)


def _bundle(kind: str, data: bytes) -> Artifact:
    return Artifact(kind=BUNDLE, data=data, annotations={_CONTENT: "dsse-envelope", _PREDICATE: kind})
