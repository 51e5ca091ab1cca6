"""Tags: they move last, and where they may not move it is said what they name."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import ENVIRONMENT
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.pull import named_manifest
from envbuild.retry import Retry

_REFUSALS = frozenset({400, 403, 405, 409, 412})
"""How registries answer who moves a tag that may not: they do not agree on one."""


def publish(
    images: Mapping[Reference, Iterable[str]],
    attach: Callable[[], object] = lambda: None,
    *,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> None:
    """Attach what belongs to images that a registry has by digest, and only then let their tags name them.

    Every push of an image ends here, so no tag names one before its signatures are there. The keys are images and
    indexes by digest, the values their tags. RegistryError; where `attach` raises it, no tag has moved.
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
    """Remove a tag that only a push needed; warn where the registry does not let it, as the tag keeps the image."""
    assert reference.tag is not None, "tags are removed by name"
    try:
        with Registry(reference.registry) as registry:
            registry.delete_tag(reference.repository, reference.tag)
    except RegistryError as error:
        if error.status != 404:
            warn(f"cannot remove {reference}, which this push needed: {error.what}; let a cleanup policy remove it")


def stamped_tag(digest: Digest) -> str:
    """`stamped-a1b2c3d4e5f6`: the tag of an image that is written on a model, by which a policy can keep it."""
    return f"stamped-{digest.short}"


def tag_stamped(reference: Reference, *, credentials: Credentials | None = None, retry: Retry | None = None) -> str:
    """Give an image, by its digest, the tag of a stamped one; RegistryError where the registry does not let it."""
    assert reference.digest is not None, "what is stamped is named by its digest"
    tag = stamped_tag(reference.digest)
    publish({reference: (tag,)}, credentials=credentials, retry=retry)
    return tag


def set_tag(registry: Registry, repository: str, tag: str, data: bytes, media_type: str) -> None:
    """Let a tag name a manifest or index that is there; RegistryError that says what it names where it may not move.

    One that is right already is left alone: repositories with immutable tags refuse even the same again. So do they
    when somebody else set it between the question and the answer, which is looked at afterwards.
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
            raise taken(f"{registry.host}/{repository}:{tag}", found, digest, error.what) from error
        raise


def check_tag(
    reference: Reference,
    environment: Digest | None,
    *,
    indexed: bool = False,
    credentials: Credentials | None = None,
    retry: Retry | None = None,
) -> None:
    """Find out before the work that a tag which may not move names another image than will be made; RegistryError.

    Images of one environment are equal; `environment` is None for what has other bytes each time it is made. `indexed`
    where the tag will name an index, one of whose images is of the environment: then only such an index may be there.
    """
    with Registry(reference.registry, credentials=credentials, retry=retry) as registry:
        found = registry.manifest_digest(reference.repository, reference.target)
        if found is None:
            return
        there = set[str | None]()
        if environment:
            there = _environments(registry, reference, indexed=indexed)
    if environment is None or str(environment) not in there:
        raise taken(str(reference), found)


def _environments(registry: Registry, reference: Reference, *, indexed: bool) -> set[str | None]:
    """Those of the image that a tag names, or of the images of the index if it is to name one."""
    data = registry.manifest(reference.repository, reference.target).data
    if not indexed:
        return {_environment(data)}
    return {_environment(registry.manifest(reference.repository, it).data) for it in _listed(data)}


def _listed(index: bytes) -> list[str]:
    """The digests of the images that an index names; none of another manifest."""
    try:
        return [str(Digest.parse(it["digest"])) for it in json.loads(index).get("manifests") or ()]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return []


def _environment(manifest: bytes) -> str | None:
    try:
        annotations = json.loads(manifest).get("annotations") or {}
        return str(annotations.get(ENVIRONMENT))
    except (ValueError, AttributeError, RecursionError):
        return None


def taken(where: str, found: str, wanted: str = "", said: str = "") -> RegistryError:
    """Say that a tag names another image, and may not move."""
    what = f"the tag names {found or 'another image'} already, and may not move" + (f" to {wanted}" if wanted else "")
    todo = "push with another tag or to another image name, as tags of this repository are immutable"
    return RegistryError(f"{what}: {said}" if said else what, where=where, todo=todo)
