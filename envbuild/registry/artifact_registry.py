"""Artifact Registry's own API: whether a repository exists and takes images, before gigabytes are sent.

Whether an image is there, and under which digest, the registry itself answers; the API is not asked for that. Google's
libraries are slow to import, so only references to Google's hosts import them.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference
from envbuild.retry import Retry

if TYPE_CHECKING:
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient

ENDPOINT = "ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
SERVICE = "Artifact Registry"
_HOST = re.compile(r"(?P<location>[a-z][a-z0-9-]*)-docker\.pkg\.dev\Z")
_GCR = {"gcr.io": "us", "us.gcr.io": "us", "eu.gcr.io": "europe", "asia.gcr.io": "asia"}
"""Container Registry's hosts, which are repositories of these names (docs/transition/transition-from-gcr)."""
_MULTI_REGIONS = {"us": "us-central1", "europe": "europe-west1", "asia": "asia-east1"}
"""Locations of several regions, with one region of each."""
_SECONDS = 30.0
_CREATION_SECONDS = 300.0
"""A new repository is mostly there within ten seconds."""
_APPEARING = Retry(tries=7, first=0.1, factor=2)
"""Over about twelve seconds."""
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
    def parent(self) -> str:
        """Project and location."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def repository_name(self) -> str:
        """The repository's full name."""
        return f"{self.parent}/repositories/{self.repository}"

    @property
    def name(self) -> str:
        """The package's full name."""
        return f"{self.repository_name}/packages/{self.image.replace('/', '%2F')}"

    @property
    def image_prefix(self) -> str:
        """The beginning of the full names of its images, before the @."""
        return f"{self.repository_name}/dockerImages/{self.image.replace('/', '%2F')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository that takes images."""

    name: str
    """`projects/P/locations/L/repositories/R`."""
    immutable_tags: bool = False
    """Whether a tag names the same image for ever."""
    created: bool = False
    """Whether it is new."""
    hint: str = ""
    """A consequence of its location that its owner should know."""


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
def connected(endpoint: str | None) -> Iterator["ArtifactRegistryClient | None"]:
    """Yield a client with the Application Default Credentials, or None if there are none."""
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient  # noqa: PLC0415 - see above

    from envbuild.google_api import connect  # noqa: PLC0415

    address = endpoint or os.environ.get(ENDPOINT) or ""
    client = connect(partial(ArtifactRegistryClient, transport="rest"), SERVICE, RegistryError, address)
    if client is None:
        yield None
        return
    with client:
        yield client


def call_options(seconds: float) -> dict[str, Any]:
    """The options of a call that may be repeated for so many seconds."""
    from envbuild.google_api import retry_for  # noqa: PLC0415 - see above

    return {"retry": retry_for(seconds), "timeout": seconds}


def api_errors(action: str, where: str, permission: str, role: str) -> AbstractContextManager[None]:
    """Raise RegistryError for what the API refuses in the block; `action` completes "cannot"."""
    from envbuild.google_api import AGAIN, translated_errors  # noqa: PLC0415 - see above

    def explain(code: int, message: str) -> tuple[str, str]:
        what = f"{SERVICE} cannot {action} ({code}): {message}"
        if code == 403 and ("has not been used" in message or "SERVICE_DISABLED" in message):
            return what, "gcloud services enable artifactregistry.googleapis.com"
        if code in (401, 403):
            return what, f"grant the account {permission} (role {role})"
        return what, "check the project, the location and the name" if code == 404 else AGAIN

    return translated_errors(SERVICE, where, RegistryError, explain)


def check_repository(
    reference: Reference, *, create: bool = False, endpoint: str | None = None, seconds: float = _SECONDS
) -> Repository | None:
    """Check that the repository of a reference exists and is a standard Docker repository, or create it.

    None for other registries, and if there are no Application Default Credentials: then a Docker credential helper may
    still let the push through. RegistryError if the push could not succeed, or the repository cannot be created.
    """
    package = package_of(reference)
    if package is None:
        return None
    name = package.repository_name
    with connected(endpoint) as client:
        if client is None:
            if create:
                what = "cannot create a repository without Google credentials"
                todo = "gcloud auth application-default login, or create it first and leave out --create-repository"
                raise RegistryError(what, where=str(reference), todo=todo)
            return None
        found = _get(client, name, str(reference), seconds)
        created = found is None and create
        if created:
            _create(client, package, str(reference))
            # Somebody else may have begun to create it at the same time.
            for number in range(1, _APPEARING.tries + 1):
                if (found := _get(client, name, str(reference), seconds)) is not None:
                    break
                time.sleep(_APPEARING.pause(number))
    if found is None:
        command = f"gcloud artifacts repositories create {package.repository} --repository-format=docker"
        instead = "or let from-manifest, base push or rebase do that by --create-repository"
        todo = f"{command} --location={package.location} --project={package.project}, {instead}"
        raise RegistryError(f"the repository {name} does not exist", where=str(reference), todo=todo, status=404)
    _check_kind(found, name, reference)
    hint = ""
    if created and package.location in _MULTI_REGIONS:
        hint = (
            f"{package.location} is several regions: Vertex AI predicts only with images of a repository in the "
            f"endpoint's own region, such as {_MULTI_REGIONS[package.location]}"
        )
    return Repository(name=name, immutable_tags=bool(found.docker_config.immutable_tags), created=created, hint=hint)


def _get(client: "ArtifactRegistryClient", name: str, where: str, seconds: float) -> Any:
    """The API's Repository; None if there is none."""
    from google.api_core.exceptions import NotFound  # noqa: PLC0415 - see above

    with api_errors(f"show {name}", where, *_WRITER):
        try:
            return client.get_repository(name=name, **call_options(seconds))
        except NotFound:
            return None


def _create(client: "ArtifactRegistryClient", package: Package, where: str) -> None:
    """Create a repository, unless somebody else has, or an earlier try whose answer was lost."""
    from google.api_core.exceptions import AlreadyExists, Conflict, NotFound  # noqa: PLC0415 - see above
    from google.api_core.future.polling import DEFAULT_POLLING  # noqa: PLC0415
    from google.cloud.artifactregistry_v1 import Repository as ApiRepository  # noqa: PLC0415

    repository = ApiRepository(
        format_=ApiRepository.Format.DOCKER,
        mode=ApiRepository.Mode.STANDARD_REPOSITORY,
        description="images by envbuild",
    )
    request = {"parent": package.parent, "repository_id": package.repository, "repository": repository}
    polling = DEFAULT_POLLING.with_delay(initial=0.2, maximum=5.0).with_timeout(_CREATION_SECONDS)
    name = package.repository_name
    with api_errors(f"create {name}", where, *_ADMIN):
        try:
            operation: Any = client.create_repository(request=request, **call_options(_SECONDS))
            operation.result(polling=polling)
        except (AlreadyExists, Conflict):
            return
        except NotFound as error:
            todo = (
                f"check the project {package.project} and the location {package.location}: "
                "gcloud artifacts locations list"
            )
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

    raw = ApiRepository.pb(found)
    kind = _enum_name(ApiRepository.Format, raw.format_) or f"format {raw.format_}"
    mode = _enum_name(ApiRepository.Mode, raw.mode)
    if kind != "DOCKER":
        what = f"{name} holds {kind}, not DOCKER images"
    elif mode not in ("STANDARD_REPOSITORY", "MODE_UNSPECIFIED", ""):
        what = f"{name} is a {mode}, which takes no pushes"
    else:
        return
    raise RegistryError(what, where=str(reference), todo="name a standard repository of format docker")


def _enum_name(kind: Callable[[int], Any], number: int) -> str:
    try:
        return str(kind(number).name)
    except ValueError:
        return ""
