"""Which of Artifact Registry's repositories a reference is about."""

import re
from dataclasses import dataclass

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
