"""Images in registries: whether what a model is stamped with is still there, and whether images are signed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.attest.statement import BILL, PROVENANCE, SIGNED
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.auth import Credentials
from envbuild.registry.client import Registry
from envbuild.registry.pull import environment_tag, read_manifest
from envbuild.retry import Retry
from envbuild.stamp.record import Stamp, StampedImage
from envbuild.verify.findings import Finding

_GONE = "the model cannot be run from its stamp, and the environment that it was trained in is lost"
_PUSH_AGAIN = (
    "push it again from where it still is, or build it again from the manifest and the lock beside the model; stamp "
    "the model again, and check that no cleanup policy removes stamped images"
)
_MOVED = "the tag leads to another environment than the model's"
RULE = "signed"
_WHY = "Everybody with write access to the registry can replace the image unseen."
_STATEMENTS = {SIGNED: "the image", PROVENANCE: "its provenance", BILL: "its bill of materials"}
"""What a signed statement is about, for people."""
_SIGN = "push it with --sign, or give the key or identity that it is signed by"
_DOUBT = "use it no further before it is known who wrote to the registry; build and push it again"


def registry_findings(
    stamp: Stamp, *, credentials: Credentials | None = None, retry: Retry | None = None
) -> Iterator[Finding]:
    """Whether each stamped image is still there by its digest, and the tag of its environment still names it.

    Only manifests are fetched. RegistryError where a registry does not answer.
    """
    for image in stamp.images:
        about, digest, digests = _about(image), str(image.digest), [*map(str, image.digests)]
        if image.reference is None:
            says = "it lies in an OCI layout, and no registry is known to have it"
            yield Finding(about=about, agrees=True, says=says, rule="digest-gone", wanted=digest)
            continue
        reference = Reference.parse(image.reference)
        with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
            missing = [str(it) for it in image.digests if not registry.has_manifest(reference.repository, it)]
            if missing:
                says = f"{reference.name} no longer has {' and '.join(missing)}, which the model is stamped with"
                yield Finding(
                    about=about, agrees=False, says=says, rule="digest-gone", wanted=missing[0], found="nothing",
                    why=_GONE, todo=_PUSH_AGAIN,
                )  # fmt: skip
                continue
            says = f"{reference.registry} has {' and '.join(digests)}"
            yield Finding(about=about, agrees=True, says=says, rule="digest-gone", wanted=digest, found=digest)
            if image.role == "train":  # the environment's own image
                tagged = replace(reference, tag=environment_tag(image.environment), digest=None)
                yield from _tagged(registry, image, tagged, "the tag of its environment", [digest])
            if image.tag:
                tagged = replace(reference, tag=image.tag, digest=None)
                yield from _tagged(registry, image, tagged, "the tag that it was pushed under", digests)


def tag_findings(
    stamp: Stamp, given: Reference, *, credentials: Credentials | None = None, retry: Retry | None = None
) -> Iterator[Finding]:
    """Whether the tag of an image that was given beside its model names one that the model is stamped with.

    Nothing for a reference by digest, and for a repository that the stamp does not name. RegistryError where
    there is no such tag.
    """
    those = [it for it in stamp.images if it.reference and Reference.parse(it.reference).name == given.name]
    if given.digest or not those:
        return
    tagged = replace(given, tag=given.target)
    with Registry(given.registry, credentials=credentials, retry=retry) as registry:
        digests = _digests(registry, tagged)
    if digests is None:
        todo = "check the tag, or give the image by the digest that the model is stamped with"
        raise RegistryError(f"{tagged} does not exist", where=str(tagged), todo=todo, status=404)
    if image := next((it for it in those if not {*map(str, it.digests)}.isdisjoint(digests)), None):
        says = f"{tagged} is the model's image for {image.role} {image.variant} {image.platform}"
        yield Finding(about="tag", agrees=True, says=says, rule="tag-moved", wanted=str(image.digest), found=digests[0])
    else:
        wanted = ", ".join(str(it.digest) for it in those)
        says = f"{tagged} names {digests[0]}, the model's stamp {wanted}: it was moved, or the model stamped again"
        todo = "name the image by its digest, or stamp the model with the new one if that is meant"
        yield Finding(
            about="tag", agrees=False, says=says, rule="tag-moved", wanted=wanted, found=digests[0], why=_MOVED,
            todo=todo,
        )  # fmt: skip


def _tagged(
    registry: Registry, image: StampedImage, tagged: Reference, which: str, wanted: Sequence[str]
) -> Iterator[Finding]:
    """Whether a tag names all `wanted`, if there is one: images that an engine built have none of their environment."""
    about, digests = _about(image), _digests(registry, tagged)
    if not digests:
        return
    if not (others := [it for it in wanted if it not in digests]):
        yield Finding(about=about, agrees=True, says=f"{tagged} names it", rule="tag-moved", found=digests[0])
    else:
        says = f"{tagged}, {which}, names {digests[0]}, and the stamp names {' and '.join(others)}"
        first = f"tag {image.image} again" if len(wanted) == 1 else "push it again with --compression gzip,zstd"
        yield Finding(
            about=about, agrees=False, says=says, rule="tag-moved", severity="warning", wanted=others[0],
            found=digests[0],
            why="cleanup policies remove images without a tag first, and builds take the other image from now on",
            todo=f"{first}, or stamp the model with the other one",
        )  # fmt: skip


def _digests(registry: Registry, tagged: Reference) -> tuple[str, ...] | None:
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
    return f"image {image.role} {image.variant} {image.platform}"


def check_public_key(public_key: str) -> None:
    """UsageError for an invalid public key; a key in Cloud KMS is not fetched."""
    from envbuild.attest.keys import KMS, public_key_of  # noqa: PLC0415 - its libraries are slow to import

    if not public_key.startswith(KMS):
        public_key_of(public_key)


def check_signed(reference: Reference, public_key: Path | str) -> tuple[Finding, ...]:
    """Whether the key has signed what the reference names, with everything beside it that claims to be by the key.

    Both formats count, and what is wrong in either is an error.

    The key is a file in PEM, `gcpkms://projects/...`, the PEM text itself, or `keyless:ISSUER=IDENTITY`. RegistryError
    where the registry cannot be asked or has no such image, UsageError for an invalid key.
    """
    from envbuild.attest.attach import Subject  # noqa: PLC0415 - its libraries are slow to import
    from envbuild.attest.keys import Identity, public_key_of  # noqa: PLC0415

    key = public_key_of(str(public_key))
    with Registry(reference.registry) as registry:
        image = Subject.of(registry, reference)
        judged = [*image.bundles(key), *image.tagged(key)]
    subject = image.descriptor.digest
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
        more = [name for kind, name in _STATEMENTS.items() if kind in held and kind != SIGNED]
        beside = f", and so are {' and '.join(more)}" if more else ""
        yield Finding(about=RULE, agrees=True, says=f"{subject} is signed by {who}{beside}", wanted="the key's")
    elif not claims:
        says = f"none of its {len(others)} signatures is by {who}: {others[0]}" if others else "it has no signature"
        if held:
            says = f"{who} has signed {' and '.join(_STATEMENTS.get(it, it) for it in held)}, and not the image"
        yield _wrong(says, found=f"{len(others)} by others", todo=_SIGN)
    # A statement that names the key and is not the key's is somebody's doing, whatever else holds.
    for kind, says in claims:
        name = _STATEMENTS.get(kind, kind)[:200] or "a statement"
        yield _wrong(f"the signature on {name} does not hold: {says}", found="another's", todo=_DOUBT)


def _wrong(says: str, found: str, todo: str) -> Finding:
    return Finding(about=RULE, agrees=False, says=says, wanted="the key's", found=found, why=_WHY, todo=todo)
