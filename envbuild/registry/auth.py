"""Authorization: credentials from Docker's, podman's and Google's settings, the registry's challenge, and tokens.

Docker's config.json and credential helpers; distribution's token and OAuth2 specifications.
"""

import base64
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from envbuild.errors import RegistryError
from envbuild.files import home_folder
from envbuild.network import read_document
from envbuild.oci.reference import DOCKER_HUB
from envbuild.registry.faults import Access, is_google, printable, redacted, refusal_error
from envbuild.registry.transport import Transport, resolve_location, translated_errors
from envbuild.retry import TRANSIENT_STATUSES, Transient

_SCHEME = re.compile(r"[\s,]*([A-Za-z][A-Za-z0-9_-]*)(?=\s|,|$)")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', re.DOTALL)
_TOKEN_LIFE = 60.0
"""Seconds that a token lives when its server does not say (token specification)."""
_MARGIN = 10.0
_CREDENTIALS_LIFE = 600.0
"""Seconds after which credentials are looked up again: Google's are tokens, which end within the hour."""
_ANSWER = 1 << 20
_HELPER_SECONDS = 30
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io", DOCKER_HUB)
_IDENTITY = "<token>"
"""The user name by which a helper marks its secret as an identity token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user and a password, or an identity token (an OAuth2 refresh token); secrets are not in the repr."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header by user and password."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The credentials or None, and why sources had none."""

    credentials: Credentials | None = None
    hints: tuple[str, ...] = ()


class _Unusable(Exception):  # noqa: N818 - a reason that becomes a hint
    """A source cannot be used; the message is the reason."""


def find_credentials(host: str, repository: str, *, environ: Mapping[str, str] | None = None) -> Lookup:
    """Search Docker's and podman's files and helpers, then Google's; the first with credentials for the host wins.

    A source that fails becomes a hint, not an error: the registry may answer without credentials.
    """
    environ, hints = os.environ if environ is None else environ, []
    for path in _config_files(environ):
        try:
            found = _from_file(path, host, repository)
        except _Unusable as reason:
            hints.append(str(reason))
            continue
        if found:
            return Lookup(credentials=found, hints=tuple(hints))
    if is_google(host):
        try:
            return Lookup(credentials=_google_token(), hints=tuple(hints))
        except _Unusable as reason:
            hints.append(str(reason))
    return Lookup(hints=tuple(hints))


def _config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = home_folder(environ)
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json"
    yield home / ".config" / "containers" / "auth.json"


def _from_file(path: Path, host: str, repository: str) -> Credentials | None:
    """Search a file in Docker's order: the host's helper, the store for all hosts, the file's own entries."""
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _Unusable(f"{path} cannot be read ({type(error).__name__})") from error
    # The most specific key first: podman allows `host/namespace/image`.
    parts = repository.split("/") if repository else []
    own = ["/".join((host, *parts[:count])) for count in range(len(parts), 0, -1)]
    keys = (*own, *(_HUB_KEYS if host == DOCKER_HUB else (host,)))
    helpers = _section(config, "credHelpers")
    store = config.get("credsStore") if isinstance(config, dict) else None
    chosen = next((helpers[key] for key in keys if key in helpers), store)
    if isinstance(chosen, str) and chosen:
        found = _from_helper(chosen, _HUB_KEYS[0] if host == DOCKER_HUB else host)
        if found:
            return found
    entries = {_normalized_key(key): value for key, value in _section(config, "auths").items()}
    return next((found for key in keys if (found := _from_entry(entries.get(_normalized_key(key)), path))), None)


def _section(config: Any, key: str) -> dict[str, Any]:
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, dict) else {}


def _normalized_key(key: str) -> str:
    """A key as Docker compares it: without scheme and the paths /v1/ and /v2/."""
    plain = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    return plain.removesuffix("/v1").removesuffix("/v2")


def _from_entry(entry: Any, path: Path) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            user, _, password = base64.b64decode(str(entry["auth"]), validate=True).decode().rstrip("\0").partition(":")
        except ValueError as error:
            raise _Unusable(f"{path} has an entry that is not base64") from error
    token = str(entry.get("identitytoken") or "")
    return Credentials(username=user, password=password, identity_token=token) if token or user else None


def _from_helper(name: str, host: str) -> Credentials | None:
    """Run `docker-credential-NAME get`; an exit status other than 0 mostly means that it has none."""
    program = f"docker-credential-{name}"
    try:
        command, seconds = [program, "get"], _HELPER_SECONDS
        done = subprocess.run(command, input=host.encode(), capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise _Unusable(f"{program} could not be run ({type(error).__name__})") from error
    if done.returncode:
        if b"not found" in done.stdout:
            return None
        raise _Unusable(f"{program}: {printable(done.stdout.decode(errors='replace'), 120)}")
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise _Unusable(f"{program} did not answer credentials") from error
    return Credentials(identity_token=secret) if user == _IDENTITY else Credentials(username=user, password=secret)


def _google_token() -> Credentials:
    """An access token of the Application Default Credentials, good for about an hour."""
    import google.auth  # noqa: PLC0415 - slow, and only needed for Google's hosts
    import google.auth.exceptions  # noqa: PLC0415
    import google.auth.transport.requests  # noqa: PLC0415

    try:
        found, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        found.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
    except (google.auth.exceptions.GoogleAuthError, OSError) as error:
        why = f"no Google credentials ({type(error).__name__}): gcloud auth application-default login"
        raise _Unusable(why) from error
    return Credentials(username="oauth2accesstoken", password=str(found.token))


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of a WWW-Authenticate header (RFC 9110, 11.6.1); scheme and parameter names in lower case."""

    scheme: str
    parameters: dict[str, str]


def challenges(header: str) -> Iterator[Challenge]:
    """Parse a WWW-Authenticate header up to the first malformed part."""
    place = 0
    while match := _SCHEME.match(header, place):
        place, parameters = match.end(), {}
        while pair := _PARAMETER.match(header, place):
            name, quoted, plain = pair.groups()
            parameters[name.lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
            place = pair.end()
        yield Challenge(match.group(1).lower(), parameters)


def choose_challenge(response: httpx.Response) -> Challenge | None:
    """Choose the challenge to answer: Bearer with a realm before Basic."""
    found = list(challenges(", ".join(response.headers.get_list("www-authenticate"))))
    bearer = (one for one in found if one.scheme == "bearer" and one.parameters.get("realm"))
    return next(bearer, None) or next((one for one in found if one.scheme == "basic"), None)


def read_body(response: httpx.Response, limit: int) -> bytes:
    """Read at most `limit` bytes of a body, and one more if there are more."""
    with translated_errors(response.request.url):
        return read_document(response.iter_raw(), limit)


@dataclass(frozen=True, slots=True)
class _Token:
    value: str
    ends: float


class Authorizer:
    """The Authorization headers for one registry; safe to use from several threads."""

    def __init__(self, transport: Transport, root: httpx.URL, host: str, credentials: Credentials | None) -> None:
        self._transport, self._root, self._host, self._given = transport, root, host, credentials
        self._lock = threading.Lock()
        self._challenge: Challenge | None = None
        self._pinged = False
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._found: tuple[float, Lookup] | None = None

    @property
    def hints(self) -> tuple[str, ...]:
        """Why no credentials were found, for the error after a refusal."""
        return self._found[1].hints if self._found else ()

    def header(self, scopes: tuple[str, ...], access: Access, *, fresh: bool = False) -> dict[str, str]:
        """The header for a request within `scopes`; `fresh` requests a new token."""
        with self._lock:
            if not self._pinged:
                self._ping(access)
            if self._challenge is None:
                return {}
            if self._challenge.scheme == "basic":
                credentials = self._credentials(access)
                return {"Authorization": credentials.basic} if credentials else {}
            token = self._tokens.get(scopes)
            if fresh or token is None or token.ends < time.monotonic():
                token = self._tokens[scopes] = self._token(self._challenge, scopes, access)
            return {"Authorization": f"Bearer {token.value}"}

    def renew(self, response: httpx.Response) -> None:
        """Use the challenge of a 401, and drop the tokens and credentials that led to it."""
        with self._lock:
            self._challenge = choose_challenge(response) or self._challenge
            self._tokens.clear()
            self._found = None

    def _ping(self, access: Access) -> None:
        """Request the challenge (distribution-spec, end-1); a registry answers 200 or 401."""
        url = self._root.join("/v2/")
        with closing(self._transport.send("GET", url, headers={})) as response:
            if response.status_code in TRANSIENT_STATUSES:
                raise _transient(response, access)
            if response.status_code == 403:
                raise refusal_error(response, read_body(response, _ANSWER), access)
            page = "html" in response.headers.get("content-type", "")
            if response.status_code not in (200, 401) or (page and response.status_code == 200):
                what = f"{self._host} answers, but not as a registry ({response.status_code})"
                raise RegistryError(what, where=redacted(url), todo="check the host", status=response.status_code)
            if response.status_code == 401:
                self._challenge = choose_challenge(response)
                if self._challenge is None:
                    hint = "it supports no authentication that envbuild does"
                    raise refusal_error(response, read_body(response, _ANSWER), access, (hint,))
            self._pinged = True

    def _credentials(self, access: Access) -> Credentials | None:
        if self._given is not None:
            return self._given
        if self._found is None or self._found[0] < time.monotonic():
            self._found = (time.monotonic() + _CREDENTIALS_LIFE, find_credentials(self._host, access.repository))
        return self._found[1].credentials

    def _token(self, challenge: Challenge, scopes: tuple[str, ...], access: Access) -> _Token:
        realm = resolve_location(self._root, self._root.join("/v2/"), challenge.parameters["realm"])
        credentials, started = self._credentials(access), time.monotonic()
        service = challenge.parameters.get("service")
        if credentials and credentials.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": "envbuild"}
            form |= {"scope": " ".join(scopes)} | ({"service": service} if service else {})
            headers, body = {"Content-Type": "application/x-www-form-urlencoded"}, str(httpx.QueryParams(form)).encode()
            asked = self._transport.send("POST", realm, headers=headers, content=body)
        else:
            query = realm.params.set("service", service) if service else realm.params
            for scope in scopes:
                query = query.add("scope", scope)
            headers = {"Authorization": credentials.basic} if credentials else {}
            asked = self._transport.send("GET", realm.copy_with(params=query), headers=headers)
        with closing(asked) as response:
            value, life = self._answer(response, access)
        return _Token(value, started + max(life - _MARGIN, life / 2))

    def _answer(self, response: httpx.Response, access: Access) -> tuple[str, float]:
        """The token and its lifetime in seconds."""
        if response.status_code in TRANSIENT_STATUSES:
            raise _transient(response, access)
        body = read_body(response, _ANSWER)
        if not response.is_success:
            raise refusal_error(response, body, access, self.hints)
        try:
            answer = json.loads(body)
            value = answer.get("token") or answer["access_token"]
            if not (value.isascii() and value.isprintable()):
                raise ValueError("not a token")  # noqa: TRY301 - handled like the others
            return str(value), float(answer.get("expires_in") or _TOKEN_LIFE)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"the token server of {self._host} sent no valid token"
            raise RegistryError(what, where=redacted(response.request.url), status=response.status_code) from error


def _transient(response: httpx.Response, access: Access) -> Transient:
    return Transient(refusal_error(response, read_body(response, _ANSWER), access), after=retry_after(response))


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header; its date form is ignored, as clocks differ."""
    text = response.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
