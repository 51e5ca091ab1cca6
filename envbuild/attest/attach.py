"""Statements and signatures attached to an image in its registry, each once, as cosign attaches and finds them.

Libraries that are slow to import are imported where a statement or signature is made.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from envbuild.attest.statement import (
    BILL,
    BILL_TYPE,
    BUNDLE,
    IN_TOTO,
    PROVENANCE,
    SIGNED,
    Facts,
    builder_of,
    provenance,
    statement,
)
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor
from envbuild.oci.reference import Reference
from envbuild.registry import referrers
from envbuild.registry.client import Registry
from envbuild.registry.referrers import Artifact, Referrer
from envbuild.report import Reporter

STATEMENT = "dev.envbuild.statement"
"""The annotation by which envbuild finds its own statements again: `bill` or `provenance`."""
_TITLES = {BILL_TYPE: "bill of materials", IN_TOTO: "provenance"}
_MARKS = {BILL_TYPE: "bill", IN_TOTO: "provenance"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestOptions:
    """What is attached to each pushed image."""

    statements: bool = True
    """Bill of materials and provenance."""
    key: str | None = None
    """What signs: a file with a private key, or `gcpkms://projects/...`; None to sign nothing."""


def attest(facts: Facts, options: AttestOptions, report: Reporter) -> tuple[Digest, ...]:
    """Attach statements and signatures to a pushed image; return the digests of what is new.

    Attachments of an earlier run stay, and nothing is attached twice. If the registry refuses statements, that is a
    warning; RegistryError only if a signature is requested. UsageError for a key that cannot be used.
    """
    if not options.statements and not options.key:
        return ()
    try:
        with Registry(facts.reference.registry) as registry:
            subject = Subject.of(registry, facts.reference)
            missing = {kind for kind, mark in _MARKS.items() if not subject.has(kind, mark)}
            if not options.key and not missing:
                return ()
            statements = _statements(facts)
            artifacts = [artifact for artifact, _ in statements if options.statements and artifact.kind in missing]
            if options.key:
                artifacts += _missing_bundles(subject, [payload for _, payload in statements], options.key)
            return subject.attach(artifacts, report)
    except RegistryError as error:
        if options.key:
            raise
        report.warn(f"the registry has no bill of materials and no provenance of the image: {error.what}")
        return ()


def sign(reference: Reference, options: AttestOptions, report: Reporter) -> tuple[Digest, ...]:
    """Sign what a registry has under a digest, such as an index of images, unless the key has signed it before.

    Without a key nothing happens. Errors as `attest`.
    """
    if not options.key:
        return ()
    with Registry(reference.registry) as registry:
        subject = Subject.of(registry, reference)
        return subject.attach(_missing_bundles(subject, [], options.key), report)


def check_key(options: AttestOptions) -> None:
    """Fail before the long work if the key cannot sign: UsageError, MissingComponentError, RegistryError."""
    if options.key:
        from envbuild.attest.keys import signer_of  # noqa: PLC0415 - see above

        signer_of(options.key)


def bundles_of(registry: Registry, repository: str, subject: Digest, artifacts: Sequence[Referrer]) -> Iterator[bytes]:
    """Yield the signature bundles of an image; one that cannot be read is empty."""
    return (referrers.read_artifact(registry, repository, it, subject) for it in artifacts if it.kind == BUNDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image in its registry, and the artifacts that refer to it."""

    registry: Registry
    repository: str
    descriptor: Descriptor
    artifacts: tuple[Referrer, ...]

    @classmethod
    def of(cls, registry: Registry, reference: Reference) -> Self:
        """Read an image's descriptor and its referrers; RegistryError."""
        descriptor = referrers.subject_of(registry, reference)
        artifacts = referrers.referrers(registry, reference.repository, descriptor.digest)
        return cls(registry=registry, repository=reference.repository, descriptor=descriptor, artifacts=artifacts)

    def has(self, kind: str, mark: str) -> bool:
        """Whether a statement of an earlier run is there: it describes how these bytes were built, and stays."""
        return any(it.kind == kind and it.annotations.get(STATEMENT) == mark for it in self.artifacts)

    def attach(self, artifacts: Sequence[Artifact], report: Reporter) -> tuple[Digest, ...]:
        """Attach artifacts and report their kinds."""
        attached = referrers.attach(self.registry, self.repository, self.descriptor, artifacts)
        if attached:
            report.note(f"attached to the image: {', '.join(_TITLES.get(it.kind, 'signature') for it in artifacts)}")
        return attached


def _statements(facts: Facts) -> tuple[tuple[Artifact, bytes], ...]:
    """Each statement as an artifact of its own, and as the payload that is signed."""
    assert facts.reference.digest is not None, "a subject has a digest"
    from envbuild.attest.bill import bill_of_materials  # noqa: PLC0415 - see above

    digest, name = facts.reference.digest, facts.reference.name
    bill = bill_of_materials(facts)
    origin = statement(digest, PROVENANCE, provenance(facts, *builder_of(os.environ)), name)
    origin_marks = {STATEMENT: _MARKS[IN_TOTO], "in-toto.io/predicate-type": PROVENANCE}
    return (
        (
            Artifact(kind=BILL_TYPE, data=bill, annotations={STATEMENT: _MARKS[BILL_TYPE]}),
            statement(digest, BILL, json.loads(bill), name),
        ),
        (Artifact(kind=IN_TOTO, data=origin, annotations=origin_marks), origin),
    )


def _missing_bundles(subject: Subject, payloads: Sequence[bytes], key: str) -> list[Artifact]:
    """Sign the statements and the image itself, except for kinds that the key has signed before."""
    from securesystemslib.signer import SSlibKey  # noqa: PLC0415 - see above

    from envbuild.attest.bundle import judge, sign_statement  # noqa: PLC0415
    from envbuild.attest.keys import Identity, signer_of  # noqa: PLC0415

    signer, digest = signer_of(key), subject.descriptor.digest
    public = signer.public_key
    assert isinstance(public, SSlibKey | Identity)
    bundles = bundles_of(subject.registry, subject.repository, digest, subject.artifacts)
    verdicts = [judge(bundle, digest, public) for bundle in bundles]
    signed = {it.kind for it in verdicts if it.standing == "holds"}
    kinds = {json.loads(it)["predicateType"]: it for it in (*payloads, statement(digest, SIGNED, {}))}
    artifacts = []
    for kind in (it for it in kinds if it not in signed):
        data = sign_statement(kinds[kind], signer, f"--sign {key}")
        if judge(data, digest, public).standing != "holds":
            todo = "check that the private and the public key belong together; nothing was attached"
            what = "the public key does not verify a new signature"
            raise RegistryError(what, where=f"--sign {key}", todo=todo)
        # Of cosign's three annotations (specs/BUNDLE_SPEC.md) the time is left out: a key's signature does not need it.
        marks = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": kind}
        artifacts.append(Artifact(kind=BUNDLE, data=data, annotations=marks))
    return artifacts
