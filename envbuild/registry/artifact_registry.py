"""Artifact Registry's own API: whether a repository takes images, and whether its cleanup policies could delete one.

Google's libraries are slow to import, so only references to Google's hosts import them.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.retry import Retry

if TYPE_CHECKING:
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient

ENDPOINT = "ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
_SERVICE = "Artifact Registry"
_HOST = re.compile(r"(?P<location>[a-z][a-z0-9-]*)-docker\.pkg\.dev\Z")
_GCR = {"gcr.io": "us", "us.gcr.io": "us", "eu.gcr.io": "europe", "asia.gcr.io": "asia"}
"""Container Registry's hosts, which are repositories of these names (docs/transition/transition-from-gcr)."""
_SECONDS = 30.0
_CREATION_SECONDS = 300.0
"""A new repository is mostly there within ten seconds."""
_APPEARING = Retry(tries=7, first=0.1, factor=2)
"""Over about twelve seconds."""
_KEEP, _UNTAGGED = 2, 2
"""Numbers of CleanupPolicy.Action and CleanupPolicyCondition.TagState, as proto-plus names only those that it knows."""
_READER = "artifactregistry.repositories.get, .dockerimages.get and .tags.get", "artifactregistry.reader"
_WRITER = "artifactregistry.repositories.get and .uploadArtifacts", "artifactregistry.writer"
_ADMIN = "artifactregistry.repositories.create", "artifactregistry.admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of a repository, as the API names them."""

    project: str
    """`proj`, or `example.com:proj` for a project of a domain."""
    location: str
    """A region such as `europe-west1`, or `us`, `europe`, `asia`."""
    repository: str
    image: str
    """The path inside the repository; slashes are escaped in names only."""

    @property
    def repository_name(self) -> str:
        """The repository's full name."""
        return f"projects/{self.project}/locations/{self.location}/repositories/{self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository that takes images."""

    name: str
    """`projects/P/locations/L/repositories/R`."""
    immutable_tags: bool = False
    """Whether a tag names the same image for ever."""
    created: bool = False


def package_of(reference: Reference) -> Package | None:
    """Parse `LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE`; None for other registries.

    RegistryError if it names no image inside a repository.
    """
    match = _HOST.match(reference.registry)
    if match is None and reference.registry not in _GCR:
        return None
    parts = reference.repository.split("/")
    count = 2 if "." in parts[0] else 1  # a project of a domain is written `example.com/project` in a reference
    inside = parts[count:] if match else [reference.registry, *parts[count:]]
    if len(inside) < 2:
        todo = f"write {reference.registry}/{'PROJECT/REPOSITORY/IMAGE' if match else 'PROJECT/IMAGE'}"
        raise RegistryError("the reference names no image inside a repository", where=str(reference), todo=todo)
    location = match["location"] if match else _GCR[reference.registry]
    return Package(project=":".join(parts[:count]), location=location, repository=inside[0], image="/".join(inside[1:]))


@contextmanager
def _connected() -> Iterator["ArtifactRegistryClient | None"]:
    """Yield a client with the Application Default Credentials, or None if there are none."""
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient  # noqa: PLC0415 - see above

    from envbuild.google_api import connect  # noqa: PLC0415

    client = connect(
        partial(ArtifactRegistryClient, transport="rest"), _SERVICE, RegistryError, os.environ.get(ENDPOINT) or ""
    )
    if client is None:
        yield None
        return
    with client:
        yield client


def _call_options(seconds: float) -> dict[str, Any]:
    """The options of a call that may be repeated for so many seconds."""
    from envbuild.google_api import retry_for  # noqa: PLC0415 - see above

    return {"retry": retry_for(seconds), "timeout": seconds}


def _api_errors(action: str, where: str, permission: str, role: str) -> AbstractContextManager[None]:
    """Raise RegistryError for what the API refuses in the block; `action` completes "cannot"."""
    from envbuild.google_api import AGAIN, translated_errors  # noqa: PLC0415 - see above

    def explain(code: int, message: str) -> tuple[str, str]:
        what = f"{_SERVICE} cannot {action} ({code}): {message}"
        if code == 403 and ("has not been used" in message or "SERVICE_DISABLED" in message):
            return what, "gcloud services enable artifactregistry.googleapis.com"
        if code in (401, 403):
            return what, f"grant the account {permission} (role {role})"
        return what, "check the project, the location and the name" if code == 404 else AGAIN

    return translated_errors(_SERVICE, where, RegistryError, explain)


def ensure_repository(reference: Reference, *, create: bool = False) -> Repository | None:
    """Check that the repository of a reference exists and is a standard Docker repository, or create it.

    None for other registries, and if there are no Application Default Credentials: then a Docker credential helper may
    still let the push through. RegistryError if the push could not succeed, or the repository cannot be created.
    """
    package = package_of(reference)
    if package is None:
        return None
    name = package.repository_name
    with _connected() as client:
        if client is None:
            if create:
                what = "cannot create a repository without Google credentials"
                todo = "gcloud auth application-default login, or create it first and leave out --create-repository"
                raise RegistryError(what, where=str(reference), todo=todo)
            return None
        found, number = _find_repository(client, name, str(reference)), 1
        created = found is None and create
        if created:
            _create_repository(client, package, str(reference))
            # Somebody else may have begun to create it at the same time.
            while (found := _find_repository(client, name, str(reference))) is None and number < _APPEARING.tries:
                time.sleep(_APPEARING.pause(number))
                number += 1
    if found is None:
        command = f"gcloud artifacts repositories create {package.repository} --repository-format=docker"
        instead = "or let from-manifest, base push or rebase do that by --create-repository"
        todo = f"{command} --location={package.location} --project={package.project}, {instead}"
        raise RegistryError(f"the repository {name} does not exist", where=str(reference), todo=todo, status=404)
    _check_kind(found, name, reference)
    return Repository(name=name, immutable_tags=bool(found.docker_config.immutable_tags), created=created)


def _find_repository(client: "ArtifactRegistryClient", name: str, where: str) -> Any:
    """The API's Repository; None if there is none."""
    from google.api_core.exceptions import NotFound  # noqa: PLC0415 - see above

    with _api_errors(f"show {name}", where, *_WRITER):
        try:
            return client.get_repository(name=name, **_call_options(_SECONDS))
        except NotFound:
            return None


def _create_repository(client: "ArtifactRegistryClient", package: Package, where: str) -> None:
    """Create a repository, unless somebody else has, or an earlier try whose answer was lost."""
    from google.api_core.exceptions import AlreadyExists, Conflict, NotFound  # noqa: PLC0415 - see above
    from google.api_core.future.polling import DEFAULT_POLLING  # noqa: PLC0415
    from google.cloud.artifactregistry_v1 import Repository as ApiRepository  # noqa: PLC0415

    repository = ApiRepository(
        format_=ApiRepository.Format.DOCKER,
        mode=ApiRepository.Mode.STANDARD_REPOSITORY,
        description="images by envbuild",
    )
    name = package.repository_name
    location = name.removesuffix(f"/repositories/{package.repository}")
    request = {"parent": location, "repository_id": package.repository, "repository": repository}
    polling = DEFAULT_POLLING.with_delay(initial=0.2, maximum=5.0).with_timeout(_CREATION_SECONDS)
    with _api_errors(f"create {name}", where, *_ADMIN):
        try:
            operation: Any = client.create_repository(request=request, **_call_options(_SECONDS))
            operation.result(polling=polling)
        except (AlreadyExists, Conflict):
            return
        except NotFound as error:
            todo = "check project and location: gcloud artifacts locations list"
            what = f"cannot create {name}: its project or location does not exist"
            raise RegistryError(what, where=where, todo=todo, status=404) from error
        except TimeoutError as error:
            what = f"{name} was not created within {_CREATION_SECONDS:.0f} s"
            raise RegistryError(what, where=where, todo="run the command again: it may be there by then") from error


def _check_kind(found: Any, name: str, reference: Reference) -> None:
    """RegistryError unless it is a standard repository of images.

    A value that Google's client does not know has no name; then the registry itself decides.
    """
    from google.cloud.artifactregistry_v1 import Repository as ApiRepository  # noqa: PLC0415 - see above

    raw, mode = ApiRepository.pb(found), ApiRepository.Mode
    if raw.format_ != ApiRepository.Format.DOCKER:
        what = f"{name} is a repository of another format than docker"
    elif raw.mode in (mode.VIRTUAL_REPOSITORY, mode.REMOTE_REPOSITORY):
        what = f"{name} is a virtual or remote repository, which takes no pushes"
    else:
        return
    raise RegistryError(what, where=str(reference), todo="name a standard repository of format docker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """An image in its repository, and the repository's policies for it."""

    repository: str
    """`projects/P/locations/L/repositories/R`."""
    digest: Digest | None
    """None if the repository has no such tag."""
    exists: bool
    tags: tuple[str, ...] = ()
    deleted_by: tuple[str, ...] = ()
    """The policies that could delete it; empty if none could, or if one keeps it."""
    kept_by: tuple[str, ...] = ()
    """The policies that keep it by one of its tags, or keep everything."""
    dry_run: bool = False
    """Whether the repository only logs what its policies would delete."""
    unreadable: str = ""
    """Why Google's client cannot read the policies; then nothing is known of them."""


def read_cleanup(reference: Reference, *, seconds: float = 10.0) -> Cleanup | None:
    """Read the cleanup policies for an image; None for other registries, and without Google credentials.

    A policy that keeps wins over those that delete (Artifact Registry, "Cleanup policy overview"). Ages and counts of
    versions are not evaluated: what a policy deletes later is lost as well. RegistryError if the API refuses.
    """
    package = package_of(reference)
    if package is None:
        return None
    with _connected() as client:
        if client is None:
            return None
        with _api_errors(f"show {reference}", str(reference), *_READER):
            return _read_cleanup(client, package, reference, _call_options(seconds))


def _read_cleanup(
    client: "ArtifactRegistryClient", package: Package, reference: Reference, options: dict[str, Any]
) -> Cleanup:
    from google.api_core.exceptions import NotFound  # noqa: PLC0415 - see above
    from google.protobuf.json_format import ParseError  # noqa: PLC0415

    repository, image, policies = package.repository_name, package.image.replace("/", "%2F"), list[tuple[str, Any]]()
    dry_run, unreadable, digest, tags, exists = False, "", reference.digest, tuple[str, ...](), False
    try:
        found = client.get_repository(name=repository, **options)
        policies, dry_run = sorted(found.cleanup_policies.items()), bool(found.cleanup_policy_dry_run)
    except ParseError as error:
        unreadable = str(error)
    try:
        if digest is None:
            tag = client.get_tag(name=f"{repository}/packages/{image}/tags/{reference.target}", **options)
            digest = Digest.parse(tag.version.rpartition("/")[2])
        tags = tuple(client.get_docker_image(name=f"{repository}/dockerImages/{image}@{digest}", **options).tags)
        exists = True
    except NotFound:
        pass
    except ValueError as error:
        raise RegistryError(f"the tag {reference.target} names no digest", where=str(reference)) from error
    kept_by = tuple(name for name, policy in policies if _keeps(policy, package.image, tags))
    # One with an unknown action or condition could delete it, too.
    others = [(name, policy) for name, policy in policies if _action(policy) != _KEEP]
    deleting = tuple(name for name, it in others if _concerns(it.condition, package.image))
    return Cleanup(
        repository=repository,
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


def _concerns(condition: Any, image: str) -> bool:
    return not condition.package_name_prefixes or image.startswith(tuple(condition.package_name_prefixes))


def _keeps(policy: Any, image: str, tags: tuple[str, ...]) -> bool:
    """Whether a policy keeps the image for as long as it has its tags."""
    condition = policy.condition
    if _action(policy) != _KEEP or "condition" not in policy or not _concerns(condition, image):
        return False
    if condition.version_name_prefixes or "older_than" in condition or "newer_than" in condition:
        return False
    tagged = type(condition).pb(condition).tag_state
    if condition.tag_prefixes:
        return tagged != _UNTAGGED and any(tag.startswith(tuple(condition.tag_prefixes)) for tag in tags)
    return tagged in (0, 3) or (tagged == 1 and bool(tags))
