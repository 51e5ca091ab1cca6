"""What Artifact Registry's own API knows: whether a repository exists and takes images, before gigabytes are sent."""

import os
import re
from typing import Any
from urllib.parse import urlsplit

from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference
from envbuild.registry.faults import printable
from envbuild.registry.transport import is_loopback

_HOST = re.compile(r"(?P<location>[a-z][a-z0-9-]*)-docker\.pkg\.dev\Z")
_SECONDS = 30.0
ENDPOINT = "ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""


def check_repository(reference: Reference, *, endpoint: str | None = None) -> None:
    """Check that `LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/...` exists and is a standard Docker repository.

    Does nothing for other registries, nor when there are no Application Default Credentials: then a Docker
    credential helper may still let the push through. RegistryError when the push could not succeed.
    """
    match = _HOST.match(reference.registry)
    if match is None:
        return
    project, repository = _parts(reference)
    name = f"projects/{project}/locations/{match['location']}/repositories/{repository}"
    found = _get(name, endpoint or os.environ.get(ENDPOINT) or "", reference)
    if found is not None:
        _fits(found, name, reference)


def _parts(reference: Reference) -> tuple[str, str]:
    """Project and repository; a project of a domain is written `example.com/project` in a reference."""
    parts = reference.repository.split("/")
    project = ":".join(parts[:2]) if "." in parts[0] else parts[0]
    rest = parts[project.count(":") + 1 :]
    if len(rest) < 2:
        todo = f"write {reference.registry}/PROJECT/REPOSITORY/IMAGE"
        raise RegistryError("the reference names no image inside a repository", where=str(reference), todo=todo)
    return project, rest[0]


def _get(name: str, endpoint: str, reference: Reference) -> Any:
    """The API's Repository, or None without credentials."""
    import google.api_core.exceptions as refused  # noqa: PLC0415 - slow, and only needed for Google's hosts
    import google.auth.exceptions as auth  # noqa: PLC0415
    import requests  # noqa: PLC0415 - google-auth's transport lets its errors through
    from google.cloud import artifactregistry_v1  # noqa: PLC0415

    try:
        with artifactregistry_v1.ArtifactRegistryClient(transport="rest", **_options(endpoint)) as client:
            return client.get_repository(name=name, timeout=_SECONDS)
    except auth.DefaultCredentialsError:
        return None
    except refused.NotFound as error:
        raise _absent(name, reference) from error
    except (refused.Forbidden, refused.Unauthorized) as error:
        todo = "the account needs artifactregistry.repositories.get and .uploadArtifacts (role artifactregistry.writer)"
        raise RegistryError(_said(name, error), where=str(reference), todo=todo, status=error.code) from error
    except (refused.GoogleAPICallError, auth.GoogleAuthError, requests.RequestException) as error:
        todo = "check the network and: gcloud auth application-default login"
        status = getattr(error, "code", None)
        raise RegistryError(_said(name, error), where=str(reference), todo=todo, status=status) from error


def _options(endpoint: str) -> dict[str, Any]:
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415

    options: dict[str, Any] = {"client_options": {"api_endpoint": endpoint}} if endpoint else {}
    # Without credentials on loopback only: a token must not go to whatever answers there.
    loopback = is_loopback(urlsplit(endpoint).hostname or "")
    return options | ({"credentials": AnonymousCredentials()} if loopback else {})  # type: ignore[no-untyped-call]


def _said(name: str, error: Exception) -> str:
    return (
        f"Artifact Registry does not show {name}: {printable(getattr(error, 'message', None) or type(error).__name__)}"
    )


def _absent(name: str, reference: Reference) -> RegistryError:
    _, project, _, location, _, repository = name.split("/")
    command = f"gcloud artifacts repositories create {repository} --repository-format=docker"
    todo = f"{command} --location={location} --project={project}"
    return RegistryError(f"the repository {name} does not exist", where=str(reference), todo=todo, status=404)


def _fits(found: Any, name: str, reference: Reference) -> None:
    kind, mode = found.format_.name, found.mode.name
    if kind != "DOCKER":
        what = f"{name} holds {kind}, not DOCKER images"
    elif mode not in ("STANDARD_REPOSITORY", "MODE_UNSPECIFIED"):
        what = f"{name} is a {mode}, which takes no pushes"
    else:
        return
    raise RegistryError(what, where=str(reference), todo="name a standard repository of format docker")
