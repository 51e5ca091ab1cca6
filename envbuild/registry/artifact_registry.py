"""What Artifact Registry's own API knows: whether a repository exists and takes images, before gigabytes are sent.

Whether an image is there, and under which digest, the registry itself says; the API is not asked for that.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference

_HOST = re.compile(r"(?P<location>[a-z][a-z0-9-]*)-docker\.pkg\.dev\Z")
_OLD = {"gcr.io": "us", "us.gcr.io": "us", "eu.gcr.io": "europe", "asia.gcr.io": "asia"}
"""Container Registry's hosts, which are repositories of these names (docs/transition/transition-from-gcr)."""
_MULTIPLE = frozenset({"us", "europe", "asia"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
    def name(self) -> str:
        """The repository's full name."""
        return f"{self.parent}/repositories/{self.repository}"

    @property
    def package(self) -> str:
        """The package's full name."""
        return f"{self.name}/packages/{self._escaped}"

    @property
    def images(self) -> str:
        """What the full names of its images begin with, before the @."""
        return f"{self.name}/dockerImages/{self._escaped}"

    @property
    def multiple(self) -> bool:
        """Whether it lies in several regions."""
        return self.location in _MULTIPLE

    @property
    def _escaped(self) -> str:
        return self.image.replace("/", "%2F")


def place_of(reference: Reference) -> Place | None:
    """Return what `LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE` names; None for other registries.

    RegistryError where it names no image inside a repository.
    """
    found = _HOST.match(reference.registry)
    if found is None and reference.registry not in _OLD:
        return None
    project, rest = _split(reference)
    inside = [reference.registry, *rest] if found is None else rest
    if len(inside) < 2:
        path = "PROJECT/IMAGE" if found is None else "PROJECT/REPOSITORY/IMAGE"
        todo = f"write {reference.registry}/{path}"
        raise RegistryError("the reference names no image inside a repository", where=str(reference), todo=todo)
    location = found["location"] if found else _OLD[reference.registry]
    return Place(project=project, location=location, repository=inside[0], image="/".join(inside[1:]))


def _split(reference: Reference) -> tuple[str, list[str]]:
    """Project and path; a project of a domain is written `example.com/project` in a reference."""
    parts = reference.repository.split("/")
    count = 2 if "." in parts[0] else 1
    return ":".join(parts[:count]), parts[count:]


if TYPE_CHECKING:
    from google.cloud.artifactregistry_v1 import ArtifactRegistryClient

_SECONDS = 30.0
_CREATING = 300.0
"""Seconds that a new repository may take; mostly it is there within ten."""
_TRIES = 7
"""Over about twelve seconds."""
_WRITER = "artifactregistry.repositories.get and .uploadArtifacts", "artifactregistry.writer"
_ADMIN = "artifactregistry.repositories.create", "artifactregistry.admin"


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
    """What its maker should know of it."""


def check_repository(
    reference: Reference, *, create: bool = False, endpoint: str | None = None, seconds: float = _SECONDS
) -> Repository | None:
    """Check that the repository of a reference exists and is a standard Docker repository, or create it.

    None for other registries, and when there are no Application Default Credentials: then a Docker credential helper
    may still let the push through. RegistryError when the push could not succeed, or the repository not be created.
    """
    place = place_of(reference)
    if place is None:
        return None
    from envbuild.registry.artifact_client import connected  # noqa: PLC0415 - slow, and only for Google's hosts

    with connected(endpoint) as client:
        if client is None:
            _check_unasked(reference, create=create)
            return None
        found = _get(client, place, str(reference), seconds)
        created = found is None and create
        if created:
            _create(client, place, str(reference))
            found = _appeared(client, place, str(reference), seconds)
        if found is None:
            raise _absent(place, reference)
    _fits(found, place.name, reference)
    hint = _hint(place) if created else ""
    return Repository(
        name=place.name, immutable_tags=bool(found.docker_config.immutable_tags), created=created, hint=hint
    )


def _check_unasked(reference: Reference, *, create: bool) -> None:
    if create:
        what = "there are no Google credentials here to create a repository with"
        todo = "gcloud auth application-default login, or create it first and leave out --create-repository"
        raise RegistryError(what, where=str(reference), todo=todo)


def _get(client: "ArtifactRegistryClient", place: Place, where: str, seconds: float) -> Any:
    """The API's Repository; None where there is none."""
    from google.api_core.exceptions import NotFound  # noqa: PLC0415

    from envbuild.registry.artifact_client import patiently, told  # noqa: PLC0415

    with told(f"show {place.name}", where, *_WRITER):
        try:
            return client.get_repository(name=place.name, **patiently(seconds))
        except NotFound:
            return None


def _appeared(client: "ArtifactRegistryClient", place: Place, where: str, seconds: float) -> Any:
    """Get it, when what somebody else began to create at the same time is there."""
    for tried in range(_TRIES):
        found = _get(client, place, where, seconds)
        if found is not None:
            return found
        time.sleep(0.1 * 2.0**tried)
    return None


def _create(client: "ArtifactRegistryClient", place: Place, where: str) -> None:
    """Have it created, or find that it is: by somebody else meanwhile, or by a try whose answer was lost."""
    from google.api_core.exceptions import AlreadyExists, Conflict, NotFound  # noqa: PLC0415
    from google.api_core.future.polling import DEFAULT_POLLING  # noqa: PLC0415
    from google.cloud.artifactregistry_v1 import Repository as Wanted  # noqa: PLC0415

    from envbuild.registry.artifact_client import patiently, told  # noqa: PLC0415

    wanted = Wanted(
        format_=Wanted.Format.DOCKER, mode=Wanted.Mode.STANDARD_REPOSITORY, description="images by envbuild"
    )
    request = {"parent": place.parent, "repository_id": place.repository, "repository": wanted}
    polling = DEFAULT_POLLING.with_delay(initial=0.2, maximum=5.0).with_timeout(_CREATING)
    with told(f"create {place.name}", where, *_ADMIN):
        try:
            started: Any = client.create_repository(request=request, **patiently(_SECONDS))
            started.result(polling=polling)
        except (AlreadyExists, Conflict):
            return
        except NotFound as error:
            todo = (
                f"check the project {place.project} and the location {place.location}: gcloud artifacts locations list"
            )
            what = f"there is no place to create {place.name} in"
            raise RegistryError(what, where=where, todo=todo, status=404) from error
        except TimeoutError as error:
            what = f"{place.name} was not created within {_CREATING:.0f} s"
            raise RegistryError(what, where=where, todo="run the command again: it may be there by then") from error


def _hint(place: Place) -> str:
    """What choosing a location decides, which nobody can change afterwards."""
    if not place.multiple:
        return ""
    return (
        f"{place.location} is several regions: Vertex AI predicts only with images of a repository in the endpoint's "
        f"own region, such as {_REGIONS[place.location]}"
    )


_REGIONS = {"us": "us-central1", "europe": "europe-west1", "asia": "asia-east1"}


def _absent(place: Place, reference: Reference) -> RegistryError:
    command = f"gcloud artifacts repositories create {place.repository} --repository-format=docker"
    instead = "or let from-manifest, base push or rebase do that by --create-repository"
    todo = f"{command} --location={place.location} --project={place.project}, {instead}"
    return RegistryError(f"the repository {place.name} does not exist", where=str(reference), todo=todo, status=404)


def _fits(found: Any, name: str, reference: Reference) -> None:
    kind, mode = _enums(found)
    if kind != "DOCKER":
        what = f"{name} holds {kind}, not DOCKER images"
    elif mode not in ("STANDARD_REPOSITORY", "MODE_UNSPECIFIED", ""):
        what = f"{name} is a {mode}, which takes no pushes"
    else:
        return
    raise RegistryError(what, where=str(reference), todo="name a standard repository of format docker")


def _enums(found: Any) -> tuple[str, str]:
    """Format and mode by their names; what is newer than Google's client has none, and the registry itself decides."""
    from google.cloud.artifactregistry_v1 import Repository as Wanted  # noqa: PLC0415

    raw = Wanted.pb(found)
    return _name(Wanted.Format, raw.format_) or f"format {raw.format_}", _name(Wanted.Mode, raw.mode)


def _name(kind: Callable[[int], Any], number: int) -> str:
    try:
        return str(kind(number).name)
    except ValueError:
        return ""
