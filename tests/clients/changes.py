"""Signatures that were changed on their way: cosign and envbuild take the unchanged one, and none of these."""

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from securesystemslib.signer import Signer

from envbuild.attest.bundle import sign_statement
from envbuild.attest.keys import signer_of
from envbuild.attest.signature_tags import (
    ENVELOPE,
    SIGNATURE,
    SIMPLE_SIGNING,
    TagSignature,
    attach_signatures,
    envelope_of,
    sign_image,
)
from envbuild.attest.statement import BUNDLE, PROVENANCE, SIGNED, statement
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.push import push
from envbuild.registry.referrers import Artifact, attach, subject_of
from envbuild.verify.registries import check_signed
from tests.clients.programs import COSIGN_2, COSIGN_3, offline
from tests.clients.rows import Row, verdict_of
from tests.e2e.services import running_registry
from tests.fakes.images import image_of
from tests.unit.attesting import key_pair

CHANGES = 20
"""Of each format."""
_KINDS = {".sig": SIMPLE_SIGNING, ".att": ENVELOPE, "bundle": BUNDLE}
Change = Callable[[bytes], bytes]


def rows(folder: Path) -> Iterator[Row]:
    """Change one bit of a payload or of a signature, or sign another image; ask who still takes it.

    That one refuses what was changed says nothing before it has taken what was not.
    """
    private, public = key_pair(folder)
    signer, chosen = signer_of(str(private)), random.Random(29)
    assert isinstance(signer, Signer)
    with running_registry() as registry:
        for name, kind in _KINDS.items():
            taken = Counter[str]()
            for number in range(-1, CHANGES):
                image = image_of([f"{name} {number}".encode()])
                reference = push(image, Reference(registry.host, "team/changed", f"v{number + 1}")).reference
                assert reference.digest
                subject = Digest.of(b"another") if number >= 0 and number % 5 == 4 else reference.digest
                _attach(reference, subject, kind, signer, _flip(chosen, number % 5))
                for client, verdict in _verdicts(reference, public, kind, folder):
                    if number < 0:
                        yield Row(client=client, what=f"{name}: unchanged", verdict=verdict)
                    taken[client] += number >= 0 and verdict == "yes"
            for title in ("envbuild", COSIGN_2.title, COSIGN_3.title):
                count = taken[title]
                verdict = f"no: {count} are taken" if count else "yes"
                yield Row(client=title, what=f"{name}: {CHANGES} changed, none is taken", verdict=verdict)


def _verdicts(reference: Reference, public: Path, kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Each client, and whether it takes the image."""
    findings = check_signed(reference, public)
    yield "envbuild", "yes" if all(it.agrees for it in findings) else f"no: {findings[-1].says}"
    for client in (COSIGN_2, COSIGN_3):
        words = ("verify-attestation", "--type", "slsaprovenance1") if kind == ENVELOPE else ("verify",)
        command = [client.build(), *words, "--key", public, "--insecure-ignore-tlog", reference]
        if client is COSIGN_2 and kind == BUNDLE:
            command += ["--trusted-root", _root(folder)]
        yield client.title, verdict_of(command, offline(folder))


def _root(folder: Path) -> Path:
    root = folder / "root.json"
    root.write_text('{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}')
    return root


def _flip(chosen: random.Random, part: int) -> tuple[Change, Change]:
    """What is done to the payload, and to the signature: a bit of one of them is changed, or nothing."""

    def same(data: bytes) -> bytes:
        return data

    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[chosen.randrange(len(changed))] ^= 1 << chosen.randrange(8)
        return bytes(changed)

    return (same, same) if part == 4 else (flipped, same) if part % 2 else (same, flipped)


def _attach(reference: Reference, subject: Digest, kind: str, signer: Signer, change: tuple[Change, Change]) -> None:
    """Attach one changed signature; beside a changed statement, the image itself is signed as it should be."""
    on_payload, on_signature = change
    assert reference.digest
    predicate = SIGNED if kind == BUNDLE else PROVENANCE
    bundle = json.loads(sign_statement(statement(subject, predicate, {}), signer, ""))
    envelope = bundle["dsseEnvelope"]
    envelope["payload"] = base64.b64encode(on_payload(base64.b64decode(envelope["payload"]))).decode()
    [signature] = envelope["signatures"]
    signature["sig"] = base64.b64encode(on_signature(base64.b64decode(signature["sig"]))).decode()
    with Registry(reference.registry) as registry:
        if kind == BUNDLE:
            artifact = Artifact(kind=BUNDLE, data=canonical_json(bundle))
            attach(registry, reference.repository, subject_of(registry, reference), [artifact])
            return
        claim = sign_image(reference.digest if kind == ENVELOPE else subject, reference.name, signer, "")
        made = [claim, envelope_of(canonical_json(bundle), PROVENANCE, signer)]
        if kind == SIMPLE_SIGNING:
            text = base64.b64encode(on_signature(base64.b64decode(claim.annotations[SIGNATURE]))).decode()
            annotations = {**claim.annotations, SIGNATURE: text}
            made = [TagSignature(kind=kind, data=on_payload(claim.data), annotations=annotations)]
        attach_signatures(registry, reference.repository, reference.digest, made)
