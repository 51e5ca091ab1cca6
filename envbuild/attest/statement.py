"""A claim about an image: an in-toto Statement v1, whose subject is the image's digest.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from collections.abc import Mapping
from typing import Any

from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json

IN_TOTO = "application/vnd.in-toto+json"
"""The media type of a statement, and the payload type of its envelope."""
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"
BILL_TYPE = "application/vnd.cyclonedx+json"
"""The media type of a bill by itself (IANA, "Vendor Tree")."""
SIGNED = "https://sigstore.dev/cosign/sign/v1"
"""What cosign says of an image that it signs: nothing but its digest (cosign, pkg/types/predicate.go)."""


def statement(subject: Digest, kind: str, predicate: Mapping[str, Any], name: str = "_") -> bytes:
    """Say something of an image; consumers go by the digest, and the name is for people.

    `_` is in-toto's name for what has none: sigstore refuses a subject without a name.
    """
    value = {
        "_type": STATEMENT,
        "subject": [{"digest": {"sha256": subject.hex}, "name": name}],
        "predicateType": kind,
        "predicate": dict(predicate),
    }
    return canonical_json(value)
