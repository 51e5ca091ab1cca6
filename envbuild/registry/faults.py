"""Errors of a registry: what failed, where, and what to do. They contain no secrets."""

import json
import re
import ssl
from dataclasses import dataclass

import httpx

from envbuild.errors import RegistryError

CHECK_REGISTRY = "check the registry, and any proxy before it"
"""The remedy for answers that violate the specification."""
_ADDRESS = re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]*")
_SECRET = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_MESSAGE = 300
_NOT_ALLOWED = {
    "push": "push to another registry: this one may be a read-only mirror or cache, or no registry",
    "pull": "check the host and its port: what answers there may be no registry",
}
"""The remedy when a method is not allowed (405)."""


def redacted(url: httpx.URL | str) -> str:
    """Write a URL without user, query and fragment: upload and storage URLs carry signatures in their query."""
    url = httpx.URL(url)
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def printable(text: str, limit: int = _MESSAGE) -> str:
    """One line of foreign text, of limited length, without control characters, URL queries and credentials."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * limit])
    line = _SECRET.sub(r"\1 ***", _ADDRESS.sub(r"\1?***", " ".join(line.split())))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def registry_message(body: bytes) -> str:
    """The registry's own message: `CODE: message` of each error (distribution-spec, "Error codes"), or nothing."""
    try:
        errors = [[str(it[key]) for key in ("code", "message") if it.get(key)] for it in json.loads(body)["errors"][:3]]
        return printable("; ".join(": ".join(words) for words in errors))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access that a request needs, for the error and for the token's scope."""

    host: str
    repository: str = ""
    action: str = "pull"
    """`pull` or `push`."""


def is_google(host: str) -> bool:
    """True for Artifact Registry's and gcr.io's hosts."""
    return host == "gcr.io" or host.endswith((".pkg.dev", ".gcr.io"))


def _login_advice(access: Access) -> str:
    if not is_google(access.host):
        who = f"with an account that may {access.action} {access.repository}".rstrip()
        return f"docker login {access.host}, {who}"
    right = "downloadArtifacts (role reader)"
    if access.action == "push":
        right = "uploadArtifacts (role artifactregistry.writer)"
    return f"gcloud auth configure-docker {access.host}; the account needs artifactregistry.repositories.{right}"


def _explain_status(access: Access, status: int) -> tuple[str, str]:
    """What failed and what to do, by status."""
    host, name = access.host, access.repository or "this registry"
    match status:
        case 401 | 403:
            return f"{host} does not let this account {access.action} {name} ({status})", _login_advice(access)
        case 404:
            return f"{name} does not exist on {host} (404)", "check the name; some registries need it to be created"
        case 413:
            return f"{host} refuses the upload as too large (413)", "raise the limit of the registry or its proxy"
        case 429:
            return f"{host} got too many requests (429)", f"wait, and run it again: {_RESUME}"
        case _ if status >= 500:
            return f"{host} failed ({status})", f"run it again later: {_RESUME}"
        case _:
            todo = "check the host and the name, and the registry's log"
            return f"{host} refused with {status}", _NOT_ALLOWED[access.action] if status == 405 else todo


_RESUME = "blobs that are there are not sent again"


def refusal_error(response: httpx.Response, body: bytes, access: Access, hints: tuple[str, ...] = ()) -> RegistryError:
    """Explain an answer that is not a success; `hints` are reasons why no credentials were found."""
    status = response.status_code
    what, todo = _explain_status(access, status)
    message = registry_message(body)
    if not message and "html" in response.headers.get("content-type", ""):
        message = "the answer is a web page, so this may be no registry, or there is a proxy before it"
    todo = "; ".join((todo, *hints)) if status in (401, 403) else todo
    where = f"{response.request.method} {redacted(response.request.url)}"
    return RegistryError(f"{what}: {message}" if message else what, where=where, todo=todo, status=status)


def is_tls_error(error: BaseException | None) -> bool:
    """True when TLS itself failed, which another try does not change."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


def unreachable_error(error: Exception, url: httpx.URL) -> RegistryError:
    """Explain a connection that could not be made or broke."""
    where, reason = redacted(url), printable(str(error) or type(error).__name__)
    if is_tls_error(error):
        todo = "check the certificate; SSL_CERT_FILE names a CA bundle; plain HTTP is used for loopback hosts only"
        return RegistryError(f"{url.netloc.decode()} cannot be trusted: {reason}", where=where, todo=todo)
    if isinstance(error, httpx.TimeoutException):
        reason = f"no answer in time ({type(error).__name__}: {reason})"
    todo = "check the host name, the registry, the network, and HTTPS_PROXY"
    return RegistryError(f"{url.netloc.decode()} cannot be reached: {reason}", where=where, todo=todo)
