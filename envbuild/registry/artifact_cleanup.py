"""Artifact Registry's cleanup policies: whether one could delete an image, and whether one keeps it by its tag.

A policy that keeps wins over those that delete (Artifact Registry, "Cleanup policy overview"). Ages and counts of
versions are not evaluated: what a policy deletes later is lost as well.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.artifact_registry import Package, api_errors, call_options, connected, package_of

if TYPE_CHECKING:
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient

_READER = "artifactregistry.repositories.get, .dockerimages.get and .tags.get", "artifactregistry.reader"
_KEEP, _UNTAGGED = 2, 2
"""Numbers of CleanupPolicy.Action and CleanupPolicyCondition.TagState, as proto-plus names only those that it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """An image in its repository, and the repository's policies for it."""

    repository: str
    """`projects/P/locations/L/repositories/R`."""
    digest: Digest | None
    """None if the repository has no such tag."""
    exists: bool
    """Whether the repository has the image."""
    tags: tuple[str, ...] = ()
    deleted_by: tuple[str, ...] = ()
    """The policies that could delete it; empty if none could, or if one keeps it."""
    kept_by: tuple[str, ...] = ()
    """The policies that keep it by one of its tags, or keep everything."""
    dry_run: bool = False
    """Whether the repository only logs what its policies would delete."""
    unreadable: str = ""
    """Why Google's client cannot read the policies; then nothing is known of them."""


def read_cleanup(reference: Reference, *, endpoint: str | None = None, seconds: float = 10.0) -> Cleanup | None:
    """Read the cleanup policies for an image; None for other registries, and without Google credentials.

    RegistryError if the API refuses.
    """
    package = package_of(reference)
    if package is None:
        return None
    with connected(endpoint) as client:
        if client is None:
            return None
        with api_errors(f"show {reference}", str(reference), *_READER):
            return _read(client, package, reference, call_options(seconds))


def _read(client: "ArtifactRegistryClient", package: Package, reference: Reference, options: dict[str, Any]) -> Cleanup:
    from google.api_core.exceptions import NotFound  # noqa: PLC0415 - only for Google's hosts
    from google.protobuf.json_format import ParseError  # noqa: PLC0415

    policies, dry_run, unreadable = list[tuple[str, Any]](), False, ""
    try:
        repository = client.get_repository(name=package.repository_name, **options)
        policies, dry_run = sorted(repository.cleanup_policies.items()), bool(repository.cleanup_policy_dry_run)
    except ParseError as error:
        unreadable = str(error)
    digest, tags, exists = reference.digest, tuple[str, ...](), False
    try:
        if digest is None:
            tag = client.get_tag(name=f"{package.name}/tags/{reference.target}", **options)
            digest = Digest.parse(tag.version.rpartition("/")[2])
        tags = tuple(client.get_docker_image(name=f"{package.image_prefix}@{digest}", **options).tags)
        exists = True
    except NotFound:
        pass
    except ValueError as error:
        raise RegistryError(f"the tag {reference.target} names no digest", where=package.name) from error
    kept_by = tuple(name for name, policy in policies if _keeps(policy, package.image, tags))
    deleting = tuple(name for name, policy in policies if _could_delete(policy, package.image))
    return Cleanup(
        repository=package.repository_name,
        digest=digest,
        exists=exists,
        tags=tags,
        deleted_by=() if kept_by else deleting,
        kept_by=kept_by if deleting else (),
        dry_run=dry_run,
        unreadable=unreadable,
    )


def _action(policy: Any) -> int:
    return int(type(policy).pb(policy).action)


def _concerns(prefixes: Any, image: str) -> bool:
    return not prefixes or image.startswith(tuple(prefixes))


def _could_delete(policy: Any, image: str) -> bool:
    """Whether a policy could delete the image now or later; one with an unknown action or condition could."""
    return _action(policy) != _KEEP and _concerns(policy.condition.package_name_prefixes, image)


def _keeps(policy: Any, image: str, tags: tuple[str, ...]) -> bool:
    """Whether a policy keeps the image for as long as it has its tags."""
    condition = policy.condition
    if _action(policy) != _KEEP or "condition" not in policy or not _concerns(condition.package_name_prefixes, image):
        return False
    if condition.version_name_prefixes or "older_than" in condition or "newer_than" in condition:
        return False
    tagged = type(condition).pb(condition).tag_state
    if condition.tag_prefixes:
        return tagged != _UNTAGGED and any(tag.startswith(tuple(condition.tag_prefixes)) for tag in tags)
    return tagged in (0, 3) or (tagged == 1 and bool(tags))
