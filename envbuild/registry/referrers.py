"""Referrers of an image: artifacts with a subject, found by the referrers API or by the tag that replaces it.

OCI distribution-spec 1.1, "Listing Referrers" and "Referrers Tag Schema"; image-spec 1.1, "Guidelines for Artifact
Usage". A registry without the API gets an index under the tag `sha256-<hex>`, which several clients may write at once.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import INDEX, MANIFEST, Descriptor, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import MANIFEST_LIMIT, Registry
from envbuild.registry.pull import fetch_manifest
from envbuild.retry import Retry

EMPTY = Descriptor("application/vnd.oci.empty.v1+json", Digest.of(b"{}"), 2)
"""The blob `{}` where an artifact has no config, or no content (manifest.md, "Guidance for an Empty Descriptor")."""
_MOST = 1000
"""Artifacts of one image that are read: each takes requests."""
_RETRY = Retry(tries=6, first=0.07, factor=1.5, longest=0.3)
"""The pause before an index is read again: a client that read it before it was written has written by then."""
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
    tagged = _entries(_read_index(registry, repository, _referrers_tag(subject)))
    found = {it.digest: it for it in _parse_entries((*listed, *tagged))}
    if len(found) > _MOST:
        what, named = f"{len(found)} artifacts refer to {subject}, more than {_MOST}", f"{registry.host}/{repository}"
        todo = f"list them: `oras discover {named}@{subject}`; remove old ones: `oras manifest delete {named}@DIGEST`"
        raise RegistryError(what, where=named, todo=todo)
    return tuple(found.values())


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
        _add_to_index(registry, repository, _referrers_tag(subject.digest), entries)
    listed = {it.digest: it for it in referrers(registry, repository, subject.digest)}
    for artifact, data in zip(artifacts, manifests, strict=True):
        found = listed.get(Digest.of(data))
        if found is None or read_artifact(registry, repository, found, subject.digest) != artifact.data:
            what = f"{registry.host} accepted {artifact.kind} for {subject.digest}, but does not list it"
            todo = "push to a registry that keeps artifacts with a subject, or find out who removes them from this one"
            raise RegistryError(what, where=f"{registry.host}/{repository}", todo=todo)
    return tuple(Digest.of(data) for data in manifests)


def read_artifact(registry: Registry, repository: str, referrer: Referrer, subject: Digest) -> bytes:
    """The blob of an artifact; empty if the artifact is gone, malformed, over 4 MiB, or has another subject.

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
    if Digest.of(data) != referrer.digest or about != subject or blob.size > MANIFEST_LIMIT:
        return b""
    with registry.open_blob(repository, blob) as file:
        return file.read()


def _referrers_tag(subject: Digest) -> str:
    return f"sha256-{subject.hex}"


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


def _parse_entries(entries: Iterable[Mapping[str, Any]]) -> Iterable[Referrer]:
    """The artifacts among the entries of an index; malformed entries are skipped."""
    for entry in entries:
        with suppress(*_WRONG):
            kind = str(entry.get("artifactType") or "")
            annotations = {str(name): str(text) for name, text in (entry.get("annotations") or {}).items()}
            yield Referrer(digest=Digest.parse(entry["digest"]), kind=kind, annotations=annotations)


def _read_index(registry: Registry, repository: str, tag: str) -> dict[str, Any]:
    """The index under a tag; an empty one if there is none, RegistryError for another manifest."""
    try:
        found = registry.manifest(repository, tag)
    except RegistryError as error:
        if error.status != 404:
            raise
        return {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    try:
        value = json.loads(found.data)
        if not isinstance(value["manifests"], list):
            raise TypeError("no list")
    except _WRONG as error:
        todo = "remove that tag, which the OCI specification reserves for referrers"
        where = f"{registry.host}/{repository}:{tag}"
        raise RegistryError("the tag names no index of referrers", where=where, todo=todo) from error
    return dict(value)


def _entries(index: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [it for it in index["manifests"] if isinstance(it, Mapping)]


def _add_to_index(registry: Registry, repository: str, tag: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Put entries into the index under a tag, beside those of others.

    The protocol has no conditional write. So the index is read again after each write, and written again if another
    client's index replaced it.
    """
    where = f"{registry.host}/{repository}:{tag}"
    for number in range(1, _RETRY.tries + 1):
        index = _read_index(registry, repository, tag)
        there = {it.get("digest") for it in _entries(index)}
        missing = [it for it in entries if it["digest"] not in there]
        if not missing:
            return
        data = canonical_json(index | {"manifests": [*index["manifests"], *missing]})
        try:
            registry.put_manifest(repository, tag, data, INDEX)
        except RegistryError as error:
            what = f"{registry.host} has no referrers API, and the tag that replaces it cannot be set: {error.what}"
            todo = "let tags that begin with sha256- move, or push to a registry with the referrers API"
            raise RegistryError(what, where=where, todo=todo, status=error.status) from error
        time.sleep(_RETRY.pause(number))
    what = f"other clients replaced the list of referrers {_RETRY.tries} times"
    raise RegistryError(what, where=where, todo="run it again when they are done")
