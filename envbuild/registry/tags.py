"""Tags: they move last; if one may not move, the error names what it points to."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT
from envbuild.oci.reference import Reference
from envbuild.registry.auth import Credentials
from envbuild.registry.client import Registry
from envbuild.registry.pull import named_manifest
from envbuild.retry import Retry

_REFUSALS = frozenset({400, 403, 405, 409, 412})
"""Answers of registries when a tag may not move: they differ."""


def publish(
    images: Mapping[Reference, Iterable[str]],
    attach: Callable[[], object] = lambda: None,
    *,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> None:
    """Attach what belongs to images that a registry has by digest, and only then set their tags.

    Every push ends here, so no tag names an image before its signatures are there. The keys are images and indexes by
    digest, the values their tags. RegistryError; if `attach` raises it, no tag has moved.
    """
    try:
        attach()
    except RegistryError as error:
        *_, last = images
        what = f"{error.what}; no tag was moved, and {last} has what was pushed"
        raise RegistryError(what, where=error.where, todo=error.todo, status=error.status) from error
    for reference, tags in images.items():
        with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
            found = named_manifest(registry, reference, reference.target)
            for tag in tags:
                set_tag(registry, reference.repository, tag, found.data, found.media_type)


def remove_tag(reference: Reference, warn: Callable[[str], object]) -> None:
    """Remove a tag that only a push needed; warn if the registry refuses, as the tag keeps the image."""
    assert reference.tag is not None, "tags are removed by name"
    try:
        with Registry(reference.registry) as registry:
            registry.delete_tag(reference.repository, reference.tag)
    except RegistryError as error:
        if error.status != 404:
            warn(f"cannot remove {reference}, which this push needed: {error.what}; let a cleanup policy remove it")


def stamped_tag(digest: Digest) -> str:
    """`stamped-a1b2c3d4e5f6`: the tag of a stamped image, by which a cleanup policy can keep it."""
    return f"stamped-{digest.short}"


def set_tag(registry: Registry, repository: str, tag: str, data: bytes, media_type: str) -> None:
    """Set a tag to an existing manifest or index; RegistryError with its present digest if it may not move.

    A tag that is right already is left alone, as repositories with immutable tags refuse even the same digest. So they
    do when another client has set it meanwhile, which is checked after a refusal.
    """
    digest = str(Digest.of(data))
    if registry.manifest_digest(repository, tag) == digest:
        return
    try:
        registry.put_manifest(repository, tag, data, media_type)
    except RegistryError as error:
        if error.status not in _REFUSALS:
            raise
        found = None
        with suppress(RegistryError):
            found = registry.manifest_digest(repository, tag)
        if found == digest:
            return
        if found:
            raise _immutable(f"{registry.host}/{repository}:{tag}", found, digest, error.what) from error
        raise


def check_tag(
    reference: Reference, environment: Digest | None, *, indexed: bool = False, retry: Retry | None = None
) -> None:
    """Check before the work that an immutable tag does not name another image than will be built; RegistryError.

    Images of one environment are equal; `environment` is None for builds whose bytes differ each time. `indexed` if the
    tag will name an index with an image of the environment: then only such an index may be there.
    """
    with Registry(reference.registry, retry=retry) as registry:
        found = registry.manifest_digest(reference.repository, reference.target)
        if found is None:
            return
        environments = set[str | None]()
        if environment:
            data = registry.manifest(reference.repository, reference.target).data
            images = [registry.manifest(reference.repository, it).data for it in _images(data)] if indexed else [data]
            environments = {_environment(it) for it in images}
    if environment is None or str(environment) not in environments:
        raise _immutable(str(reference), found)


def _images(index: bytes) -> list[str]:
    """The digests of an index's images; none of another manifest."""
    try:
        return [str(Digest.parse(it["digest"])) for it in json.loads(index).get("manifests") or ()]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return []


def _environment(manifest: bytes) -> str | None:
    """The environment id of an image; None if it has none, or cannot be read."""
    try:
        return str((json.loads(manifest).get("annotations") or {}).get(ENVIRONMENT))
    except (ValueError, AttributeError, RecursionError):
        return None


def _immutable(where: str, present: str, new: str = "", reason: str = "") -> RegistryError:
    """The error for a tag that names another image, and may not move."""
    what = f"the tag names {present or 'another image'} already, and may not move" + (f" to {new}" if new else "")
    todo = "push with another tag or to another image name, as tags of this repository are immutable"
    return RegistryError(f"{what}: {reason}" if reason else what, where=where, todo=todo)
