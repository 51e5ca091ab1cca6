"""The key that has to have signed what `envbuild verify` is given."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import Progress
from envbuild.cli.targets import in_one_line, kind_of
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.stamp import Proof
    from envbuild.verify.findings import Finding

Signed = Annotated[
    str | None,
    typer.Option(
        "--signed",
        help="Refuse stamps and images not signed by this public key, in PEM, or by keyless:ISSUER=IDENTITY.",
        metavar="KEY",
    ),
]
MinimumRecord = Annotated[
    int | None,
    typer.Option(
        "--minimum-record", help="With --signed or --sign: refuse a stamp with a lower number.", metavar="N", min=1
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouching:
    """What was asked."""

    signed: str | None
    required: tuple[str, ...] = ()
    """The policy's keys."""

    @property
    def keys(self) -> tuple[str, ...]:
        """One of these has to have signed; UsageError as `required_keys`."""
        return required_keys(self.signed, self.required)

    def check(self, targets: Sequence[str]) -> None:
        """UsageError for a key where no target can be signed, and for what is no key."""
        kinds = {kind_of(it)[0] for it in targets}
        if self.signed is not None and "model" not in kinds and not references_of(targets):
            todo = "give a stamped model or an image by its reference, or leave --signed out"
            raise UsageError("only models and images in registries are signed", where="--signed", todo=todo)
        for key in self.keys:
            check_key(key)

    def alone(self, targets: Sequence[str]) -> bool:
        """Whether one image is asked for its signature alone, so that nobody has to read what is in it."""
        return bool(self.keys) and [kind_of(it)[0] for it in targets] == ["image"]

    def signatures(self, targets: Sequence[str], progress: Progress) -> "Iterator[Finding]":
        """Whether each image in a registry is signed by one of the keys."""
        if not self.keys:
            return
        from envbuild.verify.registries import check_signed_by_any

        for name, reference in references_of(targets).items():
            progress.step(f"looking for signatures of {in_one_line(name)}")
            yield from (it.with_targets(name, name) for it in check_signed_by_any(reference, self.keys))


def required_keys(signed: str | None, listed: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of which one has to have signed: the one of --signed, else those that the policy lists.

    UsageError where --signed is none of the policy's keys: one of the two may come from a configuration that somebody
    else wrote, so neither replaces the other.
    """
    if signed is None or not listed or signed in listed:
        return (signed,) if signed is not None else listed
    from envbuild.attest.keys import public_key_of

    key = public_key_of(signed)
    if all(public_key_of(it) != key for it in listed):
        todo = "add the key to the policy, or leave --signed out; envbuild config shows where each option comes from"
        what = f"{in_one_line(signed)} is none of the policy's keys: {in_one_line(', '.join(listed))}"
        raise UsageError(what, where="--signed and --policy", todo=todo)
    return (signed,)


def proof_of(keys: Sequence[str], minimum: int | None) -> "Proof | None":
    """What a stamp has to prove; None where no key is named, and UsageError for a lowest record without a key."""
    if keys:
        from envbuild.attest.records import record_keys
        from envbuild.stamp import Proof

        return Proof(keys=record_keys(keys), minimum=minimum or 0)
    if minimum is not None:
        todo = "give --signed KEY too, or leave it out"
        raise UsageError("only a signed record's number counts", where=f"--minimum-record {minimum}", todo=todo)
    return None


def check_key(key: str | None) -> None:
    """Refuse what is no public key before any work; Cloud KMS is asked once, when its key is needed."""
    from envbuild.verify.registries import check_public_key

    if key is not None:
        check_public_key(key)


def references_of(targets: Sequence[str]) -> "dict[str, Reference]":
    """The images among the targets that lie in registries."""
    from envbuild.oci.login import exists
    from envbuild.oci.reference import Reference

    found: dict[str, Reference] = {}
    for text in targets:
        kind, name = kind_of(text)
        plain = name.removeprefix("docker://")
        if kind == "image" and (plain != name or not exists(name.rpartition("@")[0] or name)):
            with suppress(ValueError):  # docker-daemon:NAME, and what else is no reference
                found[text] = Reference.parse(plain)
    return found
