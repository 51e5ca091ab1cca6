"""Authorization: the registry's challenge, and tokens for it (distribution's token and OAuth2 specifications)."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import httpx

from envbuild.errors import RegistryError
from envbuild.network import read_document
from envbuild.registry.credentials import Credentials, Lookup, find
from envbuild.registry.faults import Access, redacted, refusal
from envbuild.registry.transport import Transport, hop, translated_errors
from envbuild.retry import TRANSIENT_STATUSES, Transient

_SCHEME = re.compile(r"[\s,]*([A-Za-z][A-Za-z0-9_-]*)(?=\s|,|$)")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', re.DOTALL)
_TOKEN_LIFE = 60.0
"""Seconds that a token lives when its server does not say (token specification)."""
_MARGIN = 10.0
_CREDENTIALS_LIFE = 600.0
"""Seconds after which credentials are looked up again: Google's are tokens, which end within the hour."""
_ANSWER = 1 << 20


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
                raise refusal(response, read_body(response, _ANSWER), access)
            page = "html" in response.headers.get("content-type", "")
            if response.status_code not in (200, 401) or (page and response.status_code == 200):
                what = f"{self._host} answers, but not as a registry ({response.status_code})"
                raise RegistryError(what, where=redacted(url), todo="check the host", status=response.status_code)
            if response.status_code == 401:
                self._challenge = choose_challenge(response)
                if self._challenge is None:
                    raise refusal(
                        response,
                        read_body(response, _ANSWER),
                        access,
                        ("it supports no authentication that envbuild does",),
                    )
            self._pinged = True

    def _credentials(self, access: Access) -> Credentials | None:
        if self._given is not None:
            return self._given
        if self._found is None or self._found[0] < time.monotonic():
            self._found = (time.monotonic() + _CREDENTIALS_LIFE, find(self._host, access.repository))
        return self._found[1].credentials

    def _token(self, challenge: Challenge, scopes: tuple[str, ...], access: Access) -> _Token:
        realm = hop(self._root, self._root.join("/v2/"), challenge.parameters["realm"])
        credentials, started = self._credentials(access), time.monotonic()
        ask = self._grant if credentials and credentials.identity_token else self._get
        with closing(ask(realm, challenge.parameters.get("service"), scopes, credentials)) as response:
            value, life = self._answer(response, access)
        return _Token(value, started + max(life - _MARGIN, life / 2))

    def _grant(
        self, realm: httpx.URL, service: str | None, scopes: tuple[str, ...], credentials: Credentials | None
    ) -> httpx.Response:
        token = credentials.identity_token if credentials else ""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": token,
            "client_id": "envbuild",
            "scope": " ".join(scopes),
        }
        body = str(httpx.QueryParams(form | ({"service": service} if service else {}))).encode()
        return self._transport.send(
            "POST", realm, headers={"Content-Type": "application/x-www-form-urlencoded"}, content=body
        )

    def _get(
        self, realm: httpx.URL, service: str | None, scopes: tuple[str, ...], credentials: Credentials | None
    ) -> httpx.Response:
        query = realm.params.set("service", service) if service else realm.params
        for scope in scopes:
            query = query.add("scope", scope)
        headers = {"Authorization": credentials.basic} if credentials else {}
        return self._transport.send("GET", realm.copy_with(params=query), headers=headers)

    def _answer(self, response: httpx.Response, access: Access) -> tuple[str, float]:
        if response.status_code in TRANSIENT_STATUSES:
            raise _transient(response, access)
        body = read_body(response, _ANSWER)
        if not response.is_success:
            raise refusal(response, body, access, self.hints)
        try:
            return _read_token(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"the token server of {self._host} sent no valid token"
            raise RegistryError(what, where=redacted(response.request.url), status=response.status_code) from error


def _read_token(body: bytes) -> tuple[str, float]:
    """The token and its lifetime in seconds; ValueError, KeyError, TypeError when there is none."""
    answer = json.loads(body)
    value = answer.get("token") or answer["access_token"]
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise TypeError("token")
    return value, float(answer.get("expires_in") or _TOKEN_LIFE)


def _transient(response: httpx.Response, access: Access) -> Transient:
    return Transient(refusal(response, read_body(response, _ANSWER), access), after=retry_after(response))


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header; its date form is ignored, as clocks differ."""
    text = response.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
