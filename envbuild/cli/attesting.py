"""The options of what is attached to an image that is pushed: bill of materials, provenance, signatures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.attest.attach import AttestOptions

Sign = Annotated[
    str | None,
    typer.Option(
        help="Sign what is pushed with this private key: a PEM file, env://VARIABLE, or gcpkms://projects/...; "
        "or as this CI job: keyless.",
        metavar="KEY",
    ),
]
NoAttest = Annotated[
    bool, typer.Option("--no-attest", help="Attach no bill of materials and no provenance to what is pushed.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attesting:
    """What is said of the image beside it."""

    sign: Sign = None
    no_attest: NoAttest = False


def wanted_of(group: Attesting) -> "AttestOptions":
    """What is wanted; UsageError for a key without a name."""
    from envbuild.attest.attach import AttestOptions

    if group.sign is not None and not group.sign.strip():
        raise UsageError("--sign is empty", where="--sign", todo="give a key, or leave it out; is a variable unset?")
    return AttestOptions(statements=not group.no_attest, key=group.sign)
