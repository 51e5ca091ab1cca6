"""Google's client libraries, used the same way for each service: credentials, retries, and errors."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from google.api_core import exceptions
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.api_core.retry import Retry, if_exception_type
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.protobuf.json_format import ParseError
from requests import RequestException
from requests.exceptions import ChunkedEncodingError, Timeout
from requests.exceptions import ConnectionError as RequestsConnectionError

from envbuild.errors import EnvbuildError, RegistryError, UsageError

UNSURE = (
    exceptions.BadGateway,
    exceptions.GatewayTimeout,
    exceptions.InternalServerError,
    exceptions.ServiceUnavailable,
    TransportError,
    RequestsConnectionError,
    Timeout,
    ChunkedEncodingError,
)
"""Errors after which it is unknown whether the request was carried out."""
LOGIN = "log in with `gcloud auth application-default login`, or run with a service account"
AGAIN = "check that the network reaches Google's services, then run the command again"
_Client = TypeVar("_Client")

Explanation = Callable[[int, str], tuple[str, str] | None]
"""What and todo of an error, by its HTTP status and the service's message; None for the general ones."""


def is_local(endpoint: str) -> bool:
    """Whether an endpoint is a stand-in on this machine."""
    if not endpoint:
        return False
    from envbuild.network import is_loopback  # noqa: PLC0415 - imports an HTTP library that Google's do not use

    return is_loopback(urlsplit(endpoint).hostname or "")


def connect(
    client: Callable[..., _Client], service: str, error: type[EnvbuildError], endpoint: str = ""
) -> _Client | None:
    """Create a client with the Application Default Credentials; None if there are none, `error` if they are invalid.

    An endpoint on loopback gets no credentials, as a token must not go to whatever listens there.
    """
    options: dict[str, Any] = {"client_options": {"api_endpoint": endpoint}} if endpoint else {}
    if is_local(endpoint):
        options["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        return client(**options)
    except DefaultCredentialsError:
        return None
    except (GoogleAuthError, ValueError, OSError) as cause:
        what = f"the Google credentials cannot be used: {_one_line(str(cause))}"
        raise error(what, where=service, todo=LOGIN) from cause


def no_credentials(service: str, error: type[EnvbuildError]) -> EnvbuildError:
    """The error of a service that cannot be used without credentials."""
    return error("there are no Google credentials here", where=service, todo=LOGIN)


def timeout_of(variable: str) -> float:
    """The seconds that one call may be tried, from 0.01 s to an hour: a variable's, else 60; UsageError."""
    text = os.environ.get(variable) or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"{text!r} is not a number of seconds", where=variable, todo="give a number, such as 60")
    return min(max(seconds, 0.01), 3600.0)


def retry_for(seconds: float, retry: Retry | None = None) -> Retry:
    """Google's retry of calls that may be repeated, for so many seconds; a library may bring its own conditions."""
    retry = retry or Retry(predicate=if_exception_type(exceptions.TooManyRequests, *UNSURE))
    return retry.with_timeout(seconds).with_delay(initial=min(1.0, seconds / 60), maximum=10.0)


@contextmanager
def translated_errors(
    service: str,
    where: str,
    error: type[EnvbuildError],
    explain: Explanation = lambda _code, _message: None,
    *,
    unreachable: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Raise `error` for what a service refuses in the block; `unreachable` are a library's own network errors."""
    network_errors: tuple[type[Exception], ...] = (RequestException, ConnectionError, *unreachable)
    try:
        yield
    except GoogleAPICallError as cause:
        raise _refusal(cause, service, where, error, explain) from cause
    except RetryError as cause:
        if isinstance(cause.cause, GoogleAPICallError):
            raise _refusal(cause.cause, service, where, error, explain, verb="kept answering") from cause
        raise error(f"{service} could not be reached", where=where, todo=AGAIN) from cause
    except GoogleAuthError as cause:
        raise error(f"{service} refused the Google credentials", where=where, todo=LOGIN) from cause
    except ParseError as cause:
        what = f"the answer of {service} cannot be read: {_one_line(str(cause))}"
        raise error(what, where=where, todo="install a newer envbuild, which may know the new value") from cause
    except network_errors as cause:
        what = f"{service} could not be reached, or its answer broke off"
        raise error(what, where=where, todo=AGAIN) from cause


def _refusal(
    cause: GoogleAPICallError,
    service: str,
    where: str,
    error: type[EnvbuildError],
    explain: Explanation,
    verb: str = "refused with",
) -> EnvbuildError:
    code, message = int(cause.code or 0), message_of(cause)
    general = f"{service} {verb} {code}: {message or 'no reason given'}", AGAIN
    if code == 401:
        general = f"{service} refused the Google credentials (401)", LOGIN
    if "SERVICE_DISABLED" in str(cause.details):
        message = f"SERVICE_DISABLED: {message}"
    what, todo = explain(code, message) or general
    fault = error(what, where=where, todo=todo)
    if isinstance(fault, RegistryError):
        fault.status = code or None
    return fault


def message_of(cause: GoogleAPICallError) -> str:
    """One line of the service's own message; empty if there is none. Of a proxy's page only the status line is told."""
    try:
        text = str(cause.response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        text = getattr(cause.response, "reason", None) or str(cause.message or "")
    return _one_line(text)


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:500]
