"""Whether an image is signed by a key or an identity: what refers to it, held to that and to its digest."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild.attest.statement import BILL, PROVENANCE, SIGNED
from envbuild.oci.reference import Reference
from envbuild.verify.findings import Finding

RULE = "signed"
_WHY = "Whoever may write to the registry can put another image in its place, and nobody would see it."
_CALLED = {SIGNED: "the image", PROVENANCE: "its provenance", BILL: "its bill of materials"}
"""What a signed statement is about, for people."""


def check_public_key(public_key: str) -> None:
    """UsageError for what is no public key; one in Cloud KMS is not asked for."""
    from envbuild.attest.keys import KMS, public_key_of  # noqa: PLC0415 - its libraries are slow to import

    if not public_key.startswith(KMS):
        public_key_of(public_key)


def check_signed(reference: Reference, public_key: Path | str) -> tuple[Finding, ...]:
    """Whether the key has signed what the reference names, with everything beside it that claims to be by the key.

    The key is a file in PEM, `gcpkms://projects/...`, the PEM text itself, or `keyless:ISSUER=IDENTITY`. RegistryError
    where the registry cannot be asked or has no such image, UsageError for what is no key.
    """
    from envbuild.attest.attach import bundles_of  # noqa: PLC0415
    from envbuild.attest.bundle import judge  # noqa: PLC0415 - its libraries are slow to import
    from envbuild.attest.keyless import Identity  # noqa: PLC0415
    from envbuild.attest.keys import public_key_of  # noqa: PLC0415
    from envbuild.registry.client import Registry  # noqa: PLC0415
    from envbuild.registry.referrers import referrers, subject_of  # noqa: PLC0415

    key = public_key_of(str(public_key))
    with Registry(reference.registry) as registry:
        subject = subject_of(registry, reference).digest
        found = referrers(registry, reference.repository, subject)
        judged = [judge(data, subject, key) for data in bundles_of(registry, reference.repository, subject, found)]
    held = [it.kind for it in judged if it.standing == "holds"]
    claims = [(it.kind, it.says) for it in judged if it.standing in ("tampered", "malformed", "other-image")]
    others = [it.says for it in judged if it.standing in ("other-key", "unreadable")]
    who = key.name if isinstance(key, Identity) else "the key"
    return tuple(_findings(str(subject), who, held, claims, others))


def check_signed_by_any(reference: Reference, public_keys: Sequence[str]) -> tuple[Finding, ...]:
    """`check_signed` for the first of the keys that signed it; for the first of all where none did."""
    each = [check_signed(reference, it) for it in public_keys]
    return next((it for it in each if all(one.agrees for one in it)), each[0])


def _findings(
    subject: str, who: str, held: Sequence[str], claims: Sequence[tuple[str, str]], others: Sequence[str]
) -> Iterator[Finding]:
    if SIGNED in held:
        more = [name for kind, name in _CALLED.items() if kind in held and kind != SIGNED]
        beside = f", and so are {' and '.join(more)}" if more else ""
        yield Finding(about=RULE, agrees=True, says=f"{subject} is signed by {who}{beside}", wanted="the key's")
    elif not claims:
        yield _wrong(_lacking(who, held, others), found=f"{len(others)} by others", todo=_SIGN)
    # A statement that names the key and is not the key's is somebody's doing, whatever else holds.
    for kind, says in claims:
        name = _CALLED.get(kind, kind)[:200] or "a statement"
        yield _wrong(f"the signature on {name} does not hold: {says}", found="another's", todo=_DOUBT)


def _lacking(who: str, held: Sequence[str], others: Sequence[str]) -> str:
    if held:
        return f"{who} has signed {' and '.join(_CALLED.get(it, it) for it in held)}, and not the image"
    return f"none of its {len(others)} signatures is by {who}: {others[0]}" if others else "it has no signature"


_SIGN = "push it with --sign, or give the key or identity that it is signed by"
_DOUBT = "use it no further before it is known who wrote to the registry; build and push it again"


def _wrong(says: str, found: str, todo: str) -> Finding:
    return Finding(about=RULE, agrees=False, says=says, wanted="the key's", found=found, why=_WHY, todo=todo)
