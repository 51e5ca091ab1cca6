"""Signatures of models and images: which keys have to have signed, and whether they did."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress, one_line
from envbuild.cli.targets import kind_of
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.stamp import Proof
    from envbuild.verify import Finding


def required_keys(signed: str | None, listed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of which one has to have signed: the one of --signed, else those that the policy lists.

    UsageError where --signed is none of the policy's keys: one of the two may come from a configuration that another
    person wrote, so neither replaces the other.
    """
    if signed is None or not listed or signed in listed:
        return (signed,) if signed is not None else listed
    from envbuild.attest.keys import public_key_of

    key = public_key_of(signed)
    if all(public_key_of(it) != key for it in listed):
        todo = "add the key to the policy, or leave --signed out; envbuild config shows where each option comes from"
        what = f"{one_line(signed)} is none of the policy's keys: {one_line(', '.join(listed))}"
        raise UsageError(what, where="--signed and --policy", todo=todo)
    return (signed,)


def proof_of(keys: Sequence[str], minimum: int | None) -> "Proof | None":
    """Return what a stamp has to prove; None without keys, and UsageError for a lowest record without a key."""
    if keys:
        from envbuild.attest.records import record_keys
        from envbuild.stamp import Proof

        return Proof(keys=record_keys(keys), minimum=minimum or 0)
    if minimum is not None:
        todo = "give --signed KEY too, or leave it out"
        raise UsageError("only a signed record's number counts", where=f"--minimum-record {minimum}", todo=todo)
    return None


def check_key(key: str | None) -> None:
    """Refuse anything but a public key, before any work; Cloud KMS is asked once, when its key is needed."""
    from envbuild.verify.signed import check_public_key

    if key is not None:
        check_public_key(key)


def check_signable(targets: Sequence[str]) -> None:
    """UsageError for --signed where no target can be signed."""
    if all(kind_of(it)[0] != "model" for it in targets) and not references_of(targets):
        todo = "give a stamped model or an image by its reference, or leave --signed out"
        raise UsageError("only models and images in registries are signed", where="--signed", todo=todo)


def signature_findings(
    references: "dict[str, Reference]", keys: Sequence[str], progress: Progress
) -> "Iterator[Finding]":
    """Yield whether each image is signed by one of the keys; nothing without keys."""
    if not keys:
        return
    from envbuild.verify.signed import check_signed_by_any

    for name, reference in references.items():
        progress.step(f"looking for signatures of {one_line(name)}")
        yield from (it.held(name, name) for it in check_signed_by_any(reference, keys))


def references_of(targets: Sequence[str]) -> "dict[str, Reference]":
    """Return the images among the targets that lie in registries."""
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
