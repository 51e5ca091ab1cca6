"""The client of Artifact Registry's API, and what it refuses, in our words."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from google.api_core.exceptions import (
    BadGateway,
    Forbidden,
    GatewayTimeout,
    GoogleAPICallError,
    InternalServerError,
    NotFound,
    RetryError,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)
from google.api_core.retry import Retry, if_exception_type
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud.artifactregistry_v1 import ArtifactRegistryClient
from google.protobuf.json_format import ParseError
from requests import RequestException

from envbuild.errors import RegistryError
from envbuild.network import is_loopback
from envbuild.registry.faults import printable

ENDPOINT = "ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
_PASSING = (BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable, TooManyRequests)


@contextmanager
def connected(endpoint: str | None) -> Iterator[ArtifactRegistryClient | None]:
    """Yield a client with the Application Default Credentials, or None where there are none."""
    address = endpoint or os.environ.get(ENDPOINT) or ""
    options: dict[str, Any] = {"client_options": {"api_endpoint": address}} if address else {}
    # Without credentials on loopback only: a token must not go to whatever answers there.
    if is_loopback(urlsplit(address).hostname or ""):
        options["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        client = ArtifactRegistryClient(transport="rest", **options)
    except DefaultCredentialsError:
        yield None
        return
    except (GoogleAuthError, ValueError, OSError) as error:
        what = f"the Google credentials cannot be used: {printable(str(error))}"
        raise RegistryError(what, where="Artifact Registry", todo=_LOGIN) from error
    with client:
        yield client


def patiently(seconds: float) -> dict[str, Any]:
    """Say how long a call that changes nothing when it is repeated may take, with tries while the service fails."""
    retry = Retry(predicate=if_exception_type(*_PASSING), initial=0.3, maximum=5.0, timeout=seconds)
    return {"retry": retry, "timeout": seconds}


@contextmanager
def told(what: str, where: str, permission: str, role: str) -> Iterator[None]:
    """Make RegistryError of what the API refuses in the block; `what` it is then said not to do."""
    try:
        yield
    except RetryError as error:
        raise _refused(error.cause or error, what, where, permission, role) from error
    except ParseError as error:
        said = f"Artifact Registry does not {what} so that it can be read: {printable(str(error))}"
        raise RegistryError(said, where=where, todo=_UPDATE) from error
    except (GoogleAPICallError, GoogleAuthError, RequestException) as error:
        raise _refused(error, what, where, permission, role) from error


def _refused(error: BaseException, what: str, where: str, permission: str, role: str) -> RegistryError:
    said = printable(str(getattr(error, "message", None) or type(error).__name__))
    status = error.code if isinstance(error, GoogleAPICallError) else None
    todo = _todo(error, permission, role)
    return RegistryError(f"Artifact Registry does not {what}: {said}", where=where, todo=todo, status=status)


def _todo(error: BaseException, permission: str, role: str) -> str:
    match error:
        case Forbidden() if "has not been used" in str(error) or "SERVICE_DISABLED" in str(error):
            return "gcloud services enable artifactregistry.googleapis.com"
        case Forbidden() | Unauthorized():
            return f"the account needs {permission} (role {role})"
        case NotFound():
            return "check the project, the location and the name"
        case _:
            return _AGAIN


_LOGIN = "gcloud auth application-default login"
_UPDATE = "see in the Google Cloud console what is unusual there; a newer envbuild may know it"
_AGAIN = f"check the network and: {_LOGIN}"
