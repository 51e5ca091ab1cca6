"""What a registry's refusal means, in words: what, where, and what to do. No secret gets in here."""

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from envbuild.errors import RegistryError

CHECK_REGISTRY = "check the registry, and any proxy before it"
"""What to do where it sends what it should not."""
_ADDRESS = re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]*")
_SECRET = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_MESSAGE = 300
_DEAF = {
    "push": "push to another registry: this one may be read-only, such as a mirror or a cache, or none at all",
    "pull": "check the host and its port: what answers there may be no registry",
}
"""What to do where a method is not allowed (405)."""


def redacted(url: httpx.URL | str) -> str:
    """Write a URL without user, query and fragment: upload and storage URLs carry signatures in their query."""
    url = httpx.URL(url)
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def printable(text: str, limit: int = _MESSAGE) -> str:
    """One line of foreign text, bounded, without control characters, URL queries and credentials."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * limit])
    line = _SECRET.sub(r"\1 ***", _ADDRESS.sub(r"\1?***", " ".join(line.split())))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def said(body: bytes) -> str:
    """What the registry itself said: `CODE: message` of each error (distribution-spec, "Error codes"), or nothing."""
    try:
        errors = json.loads(body)["errors"]
        return printable("; ".join(_one(error) for error in errors[:3]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def _one(error: dict[str, object]) -> str:
    return ": ".join(str(error[key]) for key in ("code", "message") if error.get(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a request wanted, for the error and for the token's scope."""

    host: str
    repository: str = ""
    action: str = "pull"
    """`pull` or `push`."""

    @property
    def google(self) -> bool:
        """True when Google runs the registry."""
        return is_google(self.host)


def is_google(host: str) -> bool:
    """True for Artifact Registry's and gcr.io's hosts."""
    return host == "gcr.io" or host.endswith((".pkg.dev", ".gcr.io"))


def _login(aim: Aim) -> str:
    if not aim.google:
        return f"docker login {aim.host}, with an account that may {aim.action} {aim.repository}".rstrip()
    verb = (
        "uploadArtifacts (role artifactregistry.writer)" if aim.action == "push" else "downloadArtifacts (role reader)"
    )
    return f"gcloud auth configure-docker {aim.host}; the account needs artifactregistry.repositories.{verb}"


def _reasons(aim: Aim, status: int) -> tuple[str, str]:
    """What happened and what to do, by status."""
    name = aim.repository or "this registry"
    match status:
        case 401 | 403:
            return f"{aim.host} does not let this account {aim.action} {name} ({status})", _login(aim)
        case 404:
            return f"{name} does not exist on {aim.host} (404)", "check the name; some registries need it to be created"
        case 413:
            return f"{aim.host} finds the upload too large (413)", "raise the limit of the registry or its proxy"
        case 429:
            return f"{aim.host} had too many requests (429)", "wait and run it again: what is there is not sent again"
        case _ if status >= 500:
            return f"{aim.host} failed ({status})", "run it again later: what is there is not sent again"
        case _:
            todo = "check the host and the name, and look into the registry's log"
            return f"{aim.host} refused with {status}", _DEAF[aim.action] if status == 405 else todo


def refusal(response: httpx.Response, body: bytes, aim: Aim, hints: tuple[str, ...] = ()) -> RegistryError:
    """Explain an answer that is no success; `hints` are reasons why no credentials were found."""
    status = response.status_code
    what, todo = _reasons(aim, status)
    message = said(body)
    if not message and "html" in response.headers.get("content-type", ""):
        message = "the answer is a web page, so this may be no registry, or a proxy stands before it"
    todo = "; ".join((todo, *hints)) if status in (401, 403) else todo
    where = f"{response.request.method} {redacted(response.request.url)}"
    return RegistryError(f"{what}: {message}" if message else what, where=where, todo=todo, status=status)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_tls(error: BaseException) -> bool:
    """True when TLS itself failed, which trying again does not mend."""
    return any(isinstance(cause, ssl.SSLError) for cause in _causes(error))


def unreachable(error: Exception, url: httpx.URL) -> RegistryError:
    """Explain a connection that could not be made or broke."""
    where, reason = redacted(url), printable(str(error) or type(error).__name__)
    if is_tls(error):
        todo = "check the certificate; SSL_CERT_FILE names a CA bundle; plain HTTP is spoken to loopback hosts only"
        return RegistryError(f"{url.netloc.decode()} cannot be trusted: {reason}", where=where, todo=todo)
    if isinstance(error, httpx.TimeoutException):
        reason = f"no answer in time ({type(error).__name__}: {reason})"
    todo = "check the host's name, that the registry runs, the network, and HTTPS_PROXY"
    return RegistryError(f"{url.netloc.decode()} cannot be reached: {reason}", where=where, todo=todo)
