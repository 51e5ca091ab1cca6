"""Referrers of an image: artifacts with a subject, found by the referrers API or by the tag that replaces it.

OCI distribution-spec 1.1, "Listing Referrers" and "Referrers Tag Schema"; image-spec 1.1, "Guidelines for Artifact
Usage". A registry without the API gets an index under the tag `sha256-<hex>`, which several clients may write at once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from typing import Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, MANIFEST, Descriptor, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import fetch_manifest
from envbuild.registry.tag_list import TagList

EMPTY = Descriptor("application/vnd.oci.empty.v1+json", Digest.of(b"{}"), 2)
"""The blob `{}` where an artifact has no config, or no content (manifest.md, "Guidance for an Empty Descriptor")."""
_MOST = 1000
"""Artifacts of one image that are read: each takes requests."""
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An attachment of an image: one blob with its media type."""

    kind: str
    """The media type of the blob and the type of the artifact."""
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def blob(self) -> Descriptor:
        """The blob's descriptor."""
        return Descriptor(self.kind, Digest.of(self.data), len(self.data))

    def manifest(self, subject: Descriptor) -> bytes:
        """The artifact's manifest; equal bytes on an equal subject give an equal one."""
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": self.kind,
            "config": EMPTY.to_dict(),
            "layers": [self.blob.to_dict()],
            "subject": subject.to_dict(),
        }
        return canonical_json(value | ({"annotations": dict(self.annotations)} if self.annotations else {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Referrer:
    """An artifact that refers to an image, as a list has it."""

    digest: Digest
    kind: str
    annotations: Mapping[str, str]


def subject_of(registry: Registry, reference: Reference) -> Descriptor:
    """The descriptor of a tag's or digest's manifest, for an artifact's subject; RegistryError if there is none."""
    found = fetch_manifest(registry, reference, reference.target)
    return Descriptor(found.media_type, Digest.of(found.data), len(found.data))


def referrers(registry: Registry, repository: str, subject: Digest) -> tuple[Referrer, ...]:
    """All referrers of an image, by the API and by the tag.

    Both are read: what was attached before the registry had the API is under the tag alone. RegistryError.
    """
    listed = _list_by_api(registry, repository, subject) or []
    tagged = _tag_list(registry, repository, subject).entries()
    found = {it.digest: it for it in _parse_entries((*listed, *tagged))}
    if len(found) > _MOST:
        what, named = f"{len(found)} artifacts refer to {subject}, more than {_MOST}", f"{registry.host}/{repository}"
        todo = f"list them: `oras discover {named}@{subject}`; remove old ones: `oras manifest delete {named}@DIGEST`"
        raise RegistryError(what, where=named, todo=todo)
    return tuple(_with_own_kind(registry, repository, it) for it in found.values())


def attach(
    registry: Registry, repository: str, subject: Descriptor, artifacts: Sequence[Artifact]
) -> tuple[Digest, ...]:
    """Attach artifacts to an image, read them back, and return their digests; existing ones are left alone.

    RegistryError if the registry refuses them, or does not return them. Under a tag all of them are found, or none.
    """
    manifests = [it.manifest(subject) for it in artifacts]
    if not manifests:
        return ()
    with_list = _list_by_api(registry, repository, subject.digest) is not None
    for blob in (Artifact(kind=EMPTY.media_type, data=b"{}"), *artifacts):
        if not registry.has_blob(repository, blob.blob.digest):
            registry.put_blob(repository, blob.blob, partial(BytesIO, blob.data))
    for data in manifests:
        registry.put_manifest(repository, str(Digest.of(data)), data, MANIFEST)
    if not with_list:
        entries = [
            Descriptor(MANIFEST, Digest.of(data), len(data), it.annotations).to_dict() | {"artifactType": it.kind}
            for it, data in zip(artifacts, manifests, strict=True)
        ]
        _tag_list(registry, repository, subject.digest).extend(entries)
    listed = {it.digest: it for it in referrers(registry, repository, subject.digest)}
    for artifact, data in zip(artifacts, manifests, strict=True):
        found = listed.get(Digest.of(data))
        if found is None or read_artifact(registry, repository, found, subject.digest) != artifact.data:
            what = f"{registry.host} accepted {artifact.kind} for {subject.digest}, but does not list it"
            todo = "push to a registry that keeps artifacts with a subject, or find out who removes them from this one"
            raise RegistryError(what, where=f"{registry.host}/{repository}", todo=todo)
    return tuple(Digest.of(data) for data in manifests)


def read_artifact(registry: Registry, repository: str, referrer: Referrer, subject: Digest) -> bytes:
    """The blob of an artifact; empty if either is gone or malformed, is over 4 MiB, or has another digest or subject.

    RegistryError if the registry does not answer.
    """
    try:
        data = registry.manifest(repository, str(referrer.digest)).data
    except RegistryError as error:
        if error.status != 404:
            raise
        return b""
    try:
        value = json.loads(data)
        blob, about = Descriptor.from_dict(value["layers"][0]), Digest.parse(value["subject"]["digest"])
    except (*_WRONG, IndexError):
        return b""
    if Digest.of(data) != referrer.digest or about != subject:
        return b""
    return registry.small_blob(repository, blob)


def _tag_list(registry: Registry, repository: str, subject: Digest) -> TagList:
    instead = "let tags that begin with sha256- move, or push to a registry with the referrers API"
    tag = f"sha256-{subject.hex}"
    return TagList(registry=registry, repository=repository, tag=tag, media_type=INDEX, instead=instead)


def _list_by_api(registry: Registry, repository: str, subject: Digest) -> list[Mapping[str, Any]] | None:
    """The answer of the referrers API; None without the API.

    Only the answer tells: some registries announce the API by a header, and do not have it.
    """
    pages = registry.referrers(repository, subject)
    if pages is None:
        return None
    try:
        return [it for page in pages for it in json.loads(page)["manifests"] or ()]
    except _WRONG:
        return None  # a proxy's web page


def _with_own_kind(registry: Registry, repository: str, referrer: Referrer) -> Referrer:
    """The referrer with the type in its own manifest, where a list has none or that of the empty config.

    The config's is what go-containerregistry lists, whatever the artifact's type is (pkg/registry/manifest.go).
    """
    if referrer.kind not in ("", EMPTY.media_type):
        return referrer
    try:
        kind = json.loads(registry.manifest(repository, str(referrer.digest)).data)["artifactType"]
    except RegistryError as error:
        if error.status != 404:
            raise
        return referrer
    except _WRONG:
        return referrer
    return replace(referrer, kind=str(kind))


def _parse_entries(entries: Iterable[Mapping[str, Any]]) -> Iterable[Referrer]:
    """The artifacts among the entries of an index; malformed entries are skipped."""
    for entry in entries:
        with suppress(*_WRONG):
            kind = str(entry.get("artifactType") or "")
            annotations = {str(name): str(text) for name, text in (entry.get("annotations") or {}).items()}
            yield Referrer(digest=Digest.parse(entry["digest"]), kind=kind, annotations=annotations)
