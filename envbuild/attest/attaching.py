"""Statements and signatures onto an image in its registry, each once."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from envbuild.attest.builder import builder_of
from envbuild.attest.model import Facts, Teller, Wanted
from envbuild.attest.provenance import provenance
from envbuild.attest.statement import BILL, BILL_TYPE, IN_TOTO, PROVENANCE, statement
from envbuild.oci.digest import Digest
from envbuild.oci.image import Descriptor
from envbuild.oci.reference import Reference
from envbuild.registry import Registry
from envbuild.registry.referrers import Artifact, Referrer, attach, referrers, subject_of

STATEMENT = "dev.envbuild.statement"
"""The annotation by which our own statements are found again: `bill` or `provenance`."""
_PREDICATE = "in-toto.io/predicate-type"
_OURS = ((BILL_TYPE, "bill"), (IN_TOTO, "provenance"))
"""The kinds of our statements, and their marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An image in its registry, and what refers to it."""

    registry: Registry
    repository: str
    subject: Descriptor
    found: tuple[Referrer, ...]

    @classmethod
    def of(cls, registry: Registry, reference: Reference) -> Self:
        """Look what is there; RegistryError."""
        subject = subject_of(registry, reference)
        found = referrers(registry, reference.repository, subject.digest)
        return cls(registry=registry, repository=reference.repository, subject=subject, found=found)

    def has(self, kind: str, mark: str | None) -> bool:
        """Whether ours is there from an earlier run: it says how these bytes were made, and stays."""
        return any(it.kind == kind and it.annotations.get(STATEMENT) == mark for it in self.found)

    def put(self, artifacts: Sequence[Artifact], report: Teller) -> tuple[Digest, ...]:
        """Attach, and tell how many."""
        attached = attach(self.registry, self.repository, self.subject, artifacts)
        if attached:
            report.note(f"attached beside the image: {', '.join(_called(it) for it in artifacts)}")
        return attached


def attach_statements(facts: Facts, wanted: Wanted, report: Teller) -> tuple[Digest, ...]:
    """Attach what an image lacks of its statements, and of signatures where there is a key; errors as `signer_of`."""
    with Registry(facts.reference.registry) as registry:
        place, bundles = Place.of(registry, facts.reference), list[Artifact]()
        if not wanted.key and all(place.has(kind, mark) for kind, mark in _OURS):
            return ()
        made = _statements(facts)
        if wanted.key:
            from envbuild.attest.signing import bundles_for  # noqa: PLC0415 - its libraries are slow to import

            bundles = bundles_for(place, [payload for _, payload in made], wanted.key)
        plain = (
            [artifact for artifact, _ in made if not place.has(artifact.kind, artifact.annotations.get(STATEMENT))]
            if wanted.statements
            else []
        )
        return place.put([*plain, *bundles], report)


def _statements(facts: Facts) -> tuple[tuple[Artifact, bytes], ...]:
    """Each as it is attached by itself, and as it is signed."""
    assert facts.reference.digest is not None, "what statements are made of is named by digest"
    from envbuild.attest.bill import bill_of_materials  # noqa: PLC0415 - its library is slow to import

    digest, name = facts.reference.digest, facts.reference.name
    bill = bill_of_materials(facts)
    # What CI says of itself comes by variables alone.
    built = statement(digest, PROVENANCE, provenance(facts, builder_of(os.environ)), name)
    held = statement(digest, BILL, json.loads(bill), name)
    marks = {STATEMENT: "provenance", _PREDICATE: PROVENANCE}
    return (
        (Artifact(kind=BILL_TYPE, data=bill, annotations={STATEMENT: "bill"}), held),
        (Artifact(kind=IN_TOTO, data=built, annotations=marks), built),
    )


def _called(artifact: Artifact) -> str:
    """For people."""
    named = {BILL_TYPE: "bill of materials", IN_TOTO: "provenance"}
    return named.get(artifact.kind, "signature")
