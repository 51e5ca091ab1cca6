"""Statements and signatures attached to an image in its registry, each once, as cosign attaches and finds them.

Libraries that are slow to import are imported where a statement or signature is made.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, Self

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
from envbuild.errors import RegistryError, UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor
from envbuild.oci.reference import Reference
from envbuild.registry import referrers
from envbuild.registry.client import Registry
from envbuild.registry.referrers import Artifact, Referrer
from envbuild.report import Reporter

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from envbuild.attest.bundle import SignatureVerdict
    from envbuild.attest.keys import Identity
    from envbuild.attest.signature_tags import TagSignature

STATEMENT = "dev.envbuild.statement"
"""The annotation by which envbuild finds its own statements again: `bill` or `provenance`."""
SignatureFormat = Literal["bundle", "legacy", "both"]
"""Bundles as referrers, cosign's tags, or both."""
_TITLES = {BILL_TYPE: "bill of materials", IN_TOTO: "provenance"}
_MARKS = {BILL_TYPE: "bill", IN_TOTO: "provenance"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestOptions:
    """What is attached to each pushed image."""

    statements: bool = True
    """Bill of materials and provenance."""
    key: str | None = None
    """What signs: a file with a private key, or `gcpkms://projects/...`; None to sign nothing."""
    format: SignatureFormat | None = None
    """None for all formats that the key can be used with."""

    def formats(self) -> frozenset[str]:
        """The formats to write; UsageError for one that needs a key, without one."""
        if self.key != "keyless":
            return frozenset({"bundle", "legacy"} if self.format in (None, "both") else {self.format})
        if self.format in (None, "bundle"):
            return frozenset({"bundle"})
        what = "certificates are only written into bundles"
        todo = "leave --signature-format out, or sign with a key"
        raise UsageError(what, where=f"--sign keyless --signature-format {self.format}", todo=todo)


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
            statements = cache(partial(_statements, facts))  # made where one is missing: that reads wheels and base
            missing = {kind for kind, mark in _MARKS.items() if options.statements and not subject.has(kind, mark)}
            artifacts = [artifact for artifact, _ in statements() if artifact.kind in missing] if missing else []
            bundles, signatures = _missing(subject, {BILL, PROVENANCE}, lambda: [it for _, it in statements()], options)
            return subject.attach([*artifacts, *bundles], signatures, report)
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
        return subject.attach(*_missing(subject, set(), list, options), report)


def check_key(options: AttestOptions) -> None:
    """Fail before the long work if the key cannot sign: UsageError, MissingComponentError, RegistryError."""
    if options.key:
        from envbuild.attest.keys import signer_of  # noqa: PLC0415 - see above

        options.formats()
        signer_of(options.key)


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

    def bundles(self, key: "SSlibKey | Identity") -> "list[SignatureVerdict]":
        """Verify the signatures in bundles; errors as `bundle.judge`."""
        from envbuild.attest.bundle import judge  # noqa: PLC0415 - see above

        digest, bundles = self.descriptor.digest, [it for it in self.artifacts if it.kind == BUNDLE]
        # A bundle that cannot be read is empty.
        data = (referrers.read_artifact(self.registry, self.repository, it, digest) for it in bundles)
        return [judge(it, digest, key) for it in data]

    def tagged(self, key: "SSlibKey | Identity") -> "list[SignatureVerdict]":
        """Verify the signatures under cosign's tags; RegistryError."""
        from envbuild.attest.signature_tags import read_signatures  # noqa: PLC0415 - see above

        digest = self.descriptor.digest
        return [it.judge(digest, key) for it in read_signatures(self.registry, self.repository, digest)]

    def attach(
        self, artifacts: Sequence[Artifact], signatures: "Sequence[TagSignature]", report: Reporter
    ) -> tuple[Digest, ...]:
        """Attach artifacts, and signatures under cosign's tags; report what they are, and return their digests."""
        attached = referrers.attach(self.registry, self.repository, self.descriptor, artifacts)
        if attached:
            report.note(f"attached to the image: {', '.join(_TITLES.get(it.kind, 'signature') for it in artifacts)}")
        if signatures:
            from envbuild.attest.signature_tags import attach_signatures  # noqa: PLC0415 - see above

            tags = attach_signatures(self.registry, self.repository, self.descriptor.digest, signatures)
            report.note(f"signed for clients without bundles, under {' and '.join(tags)}")
        return *attached, *(it.blob.digest for it in signatures)


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


def _missing(
    subject: Subject, stated: set[str], read_payloads: Callable[[], Sequence[bytes]], options: AttestOptions
) -> "tuple[list[Artifact], list[TagSignature]]":
    """Sign the image itself and the kinds of statements that are `stated`.

    Except for kinds that the key has signed before in the same format; the payloads are read if one is left.
    """
    if not options.key:
        return [], []
    from securesystemslib.signer import Signer, SSlibKey  # noqa: PLC0415 - see above

    from envbuild.attest.bundle import SignatureVerdict, judge, sign_statement  # noqa: PLC0415
    from envbuild.attest.keys import Identity, signer_of  # noqa: PLC0415
    from envbuild.attest.signature_tags import TagSignature, envelope_of, sign_image  # noqa: PLC0415

    signer, digest, where = signer_of(options.key), subject.descriptor.digest, f"--sign {options.key}"
    public = signer.public_key
    assert isinstance(public, SSlibKey | Identity)
    formats, kinds = options.formats(), {*stated, SIGNED}
    in_bundles = kinds - _kinds_that_hold(subject.bundles(public)) if "bundle" in formats else set()
    tagged = kinds - _kinds_that_hold(subject.tagged(public)) if "legacy" in formats else set()
    payloads = read_payloads() if (in_bundles | tagged) - {SIGNED} else ()
    statements = {json.loads(it)["predicateType"]: it for it in (*payloads, statement(digest, SIGNED, {}))}
    image = f"{subject.registry.host}/{subject.repository}"
    artifacts, signatures, new = list[Artifact](), list[TagSignature](), list[SignatureVerdict]()
    for kind, payload in statements.items():
        is_signed = kind in in_bundles or (kind in tagged and kind != SIGNED)
        data = sign_statement(payload, signer, where) if is_signed else b""
        if is_signed:
            new.append(judge(data, digest, public))
        if kind in in_bundles:
            # Of cosign's three annotations (specs/BUNDLE_SPEC.md) the time is left out: a key's signature needs none.
            marks = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": kind}
            artifacts.append(Artifact(kind=BUNDLE, data=data, annotations=marks))
        if kind in tagged:
            assert isinstance(signer, Signer)
            made = sign_image(digest, image, signer, where) if kind == SIGNED else envelope_of(data, kind, signer)
            signatures.append(made)
            new.append(made.judge(digest, public))
    if any(it.standing != "holds" for it in new):
        todo = "check that the private and the public key belong together; nothing was attached"
        raise RegistryError("the public key does not verify a new signature", where=where, todo=todo)
    return artifacts, signatures


def _kinds_that_hold(verdicts: "Sequence[SignatureVerdict]") -> set[str]:
    return {it.kind for it in verdicts if it.standing == "holds"}
