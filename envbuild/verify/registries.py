"""Images in registries: whether what a model is stamped with is still there, and whether images are signed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.attest.statement import BILL, PROVENANCE, SIGNED
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.pull import environment_tag, read_manifest
from envbuild.retry import Retry
from envbuild.stamp.record import Stamp, StampedImage
from envbuild.verify.findings import Finding

_GONE = "whoever runs the model from its stamp gets nothing, and what it was trained in is lost"
_MOVED = "whoever names the image by its tag gets another environment than the model's"
RULE = "signed"
_WHY = "Whoever may write to the registry can put another image in its place, and nobody would see it."
_CALLED = {SIGNED: "the image", PROVENANCE: "its provenance", BILL: "its bill of materials"}
"""What a signed statement is about, for people."""
_SIGN = "push it with --sign, or give the key or identity that it is signed by"
_DOUBT = "use it no further before it is known who wrote to the registry; build and push it again"


def registry_findings(
    stamp: Stamp, *, credentials: Credentials | None = None, retry: Retry | None = None
) -> Iterator[Finding]:
    """Whether each stamped image is still there by its digest, and the tag of its environment still names it.

    Only manifests are asked for. RegistryError where a registry cannot be asked.
    """
    for image in stamp.images:
        if image.reference is None:
            about, says = _about(image), "it lies in an OCI layout, and no registry is known to have it"
            yield Finding(about=about, agrees=True, says=says, rule="digest-gone", wanted=str(image.digest))
            continue
        reference = Reference.parse(image.reference)
        with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
            there = registry.has_manifest(reference.repository, image.digest)
            yield _there(image, reference) if there else _gone(image, reference)
            if there:
                if image.role == "train":  # the environment's own image
                    yield from _tagged(
                        registry, image, reference, environment_tag(image.environment), "the tag of its environment"
                    )
                if image.tag:
                    yield from _tagged(registry, image, reference, image.tag, "the tag that it was pushed under")


def tag_findings(
    stamp: Stamp, given: Reference, *, credentials: Credentials | None = None, retry: Retry | None = None
) -> Iterator[Finding]:
    """Whether the tag of an image that was given beside its model names one that the model is stamped with.

    Nothing is said of a reference by digest, and of a repository that the stamp does not name. RegistryError where
    there is no such tag.
    """
    those = [it for it in stamp.images if it.reference and Reference.parse(it.reference).name == given.name]
    if given.digest or not those:
        return
    tagged = replace(given, tag=given.target)
    with Registry(given.registry, credentials=credentials, retry=retry) as registry:
        named = _named(registry, tagged)
    if named is None:
        todo = "check the tag, or give the image by the digest that the model is stamped with"
        raise RegistryError(f"{tagged} does not exist", where=str(tagged), todo=todo, status=404)
    if image := next((it for it in those if str(it.digest) in named), None):
        says = f"{tagged} is the model's image for {_words(image)}"
        yield Finding(about="tag", agrees=True, says=says, rule="tag-moved", wanted=str(image.digest), found=named[0])
    else:
        yield _moved(tagged, those, named[0])


def _there(image: StampedImage, reference: Reference) -> Finding:
    says = f"{reference.registry} has {image.digest}"
    about, digest = _about(image), str(image.digest)
    return Finding(about=about, agrees=True, says=says, rule="digest-gone", wanted=digest, found=digest)


def _gone(image: StampedImage, reference: Reference) -> Finding:
    again = "push it again from where it still is, or build it again from the manifest and the lock beside the model"
    return Finding(
        about=_about(image),
        agrees=False,
        says=f"{reference.name} no longer has {image.digest}, which the model is stamped with",
        rule="digest-gone",
        wanted=str(image.digest),
        found="nothing",
        why=_GONE,
        todo=f"{again}, stamp the model anew, and see to it that no cleanup policy removes stamped images",
    )


def _moved(tagged: Reference, those: list[StampedImage], found: str) -> Finding:
    wanted = ", ".join(str(it.digest) for it in those)
    return Finding(
        about="tag",
        agrees=False,
        says=f"{tagged} names {found}, the model's stamp {wanted}: the tag was moved, or the model stamped anew",
        rule="tag-moved",
        wanted=wanted,
        found=found,
        why=_MOVED,
        todo="name the image by its digest, or stamp the model with the new one if that is meant",
    )


def _tagged(registry: Registry, image: StampedImage, reference: Reference, tag: str, which: str) -> Iterator[Finding]:
    """Whether a tag names it, if there is one: images that an engine built have none of their environment."""
    tagged = replace(reference, tag=tag, digest=None)
    named = _named(registry, tagged)
    if named is None:
        return
    if str(image.digest) in named:
        says = f"{tagged} names it"
        yield Finding(about=_about(image), agrees=True, says=says, rule="tag-moved", found=named[0])
        return
    yield Finding(
        about=_about(image),
        agrees=False,
        says=f"{tagged}, {which}, names {named[0]}, and the stamp names {image.digest}",
        rule="tag-moved",
        severity="warning",
        wanted=str(image.digest),
        found=named[0],
        why="an image without a tag is what cleanup policies remove first, and builds take the other one from now on",
        todo=f"tag {image.image} again, or stamp the model with the other one",
    )


def _named(registry: Registry, tagged: Reference) -> tuple[str, ...] | None:
    """The digest that a tag names, and those in it where that is an index; None without such a tag."""
    try:
        value, data = read_manifest(registry, tagged, tagged.target)
        entries = value.get("manifests") or ()
        return str(Digest.of(data)), *(str(Digest.parse(entry["digest"])) for entry in entries)
    except RegistryError as error:
        if error.status == 404:
            return None
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RegistryError(f"{tagged} has a manifest that cannot be read", where=str(tagged)) from error


def _about(image: StampedImage) -> str:
    return f"image {_words(image)}"


def _words(image: StampedImage) -> str:
    return f"{image.role} {image.variant} {image.platform}"


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


def _wrong(says: str, found: str, todo: str) -> Finding:
    return Finding(about=RULE, agrees=False, says=says, wanted="the key's", found=found, why=_WHY, todo=todo)
