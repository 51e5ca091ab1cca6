"""Credentials for a registry: from Docker's and podman's files and helpers, then Google's tokens."""

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.files import home_folder
from envbuild.oci.reference import DOCKER_HUB
from envbuild.registry.faults import is_google, printable

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


def find(host: str, repository: str, *, environ: Mapping[str, str] | None = None) -> Lookup:
    """Search all sources in order; the first with credentials for the host wins.

    A source that fails becomes a hint, not an error: the registry may answer without credentials.
    """
    environ, hints = os.environ if environ is None else environ, []
    for path in _files(environ):
        try:
            found = _from_file(path, host, repository)
        except _Unusable as reason:
            hints.append(str(reason))
            continue
        if found:
            return Lookup(credentials=found, hints=tuple(hints))
    if is_google(host):
        try:
            return Lookup(credentials=google(), hints=tuple(hints))
        except _Unusable as reason:
            hints.append(str(reason))
    return Lookup(hints=tuple(hints))


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = home_folder(environ)
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json"
    yield home / ".config" / "containers" / "auth.json"


def _from_file(path: Path, host: str, repository: str) -> Credentials | None:
    """Search a file in Docker's order: the host's helper, the store for all hosts, the file's own entries."""
    config = _read(path)
    keys = tuple(_keys(host, repository))
    helpers, store = _table(config, "credHelpers"), config.get("credsStore")
    chosen = [helpers[key] for key in keys if key in helpers] or [store]
    if isinstance(chosen[0], str) and chosen[0]:
        found = _from_helper(chosen[0], _HUB_KEYS[0] if host == DOCKER_HUB else host)
        if found:
            return found
    entries = {_plain(key): value for key, value in _table(config, "auths").items()}
    return next((found for key in keys if (found := _from_entry(entries.get(_plain(key)), path))), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise _Unusable(f"{path} cannot be read ({type(error).__name__})") from error
    return value if isinstance(value, dict) else {}


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _keys(host: str, repository: str) -> Iterator[str]:
    """The most specific key first: podman allows `host/namespace/image`."""
    hosts = _HUB_KEYS if host == DOCKER_HUB else (host,)
    parts = repository.split("/") if repository else []
    yield from ("/".join((host, *parts[:count])) for count in range(len(parts), 0, -1))
    yield from hosts


def _plain(key: str) -> str:
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
        except (binascii.Error, ValueError) as error:
            raise _Unusable(f"{path} has an entry that is not base64") from error
    token = str(entry.get("identitytoken") or "")
    return Credentials(username=user, password=password, identity_token=token) if token or user else None


def _from_helper(name: str, host: str) -> Credentials | None:
    """Run `docker-credential-NAME get`; an exit status other than 0 mostly means that it has none."""
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run(
            [program, "get"], input=host.encode(), capture_output=True, timeout=_HELPER_SECONDS, check=False
        )
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


def google() -> Credentials:
    """An access token of the Application Default Credentials, good for about an hour."""
    import google.auth  # noqa: PLC0415 - slow, and only needed for Google's hosts
    import google.auth.exceptions  # noqa: PLC0415
    import google.auth.transport.requests  # noqa: PLC0415

    try:
        found, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        found.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
    except (google.auth.exceptions.GoogleAuthError, OSError) as error:
        raise _Unusable(
            f"no Google credentials ({type(error).__name__}): gcloud auth application-default login"
        ) from error
    return Credentials(username="oauth2accesstoken", password=str(found.token))
