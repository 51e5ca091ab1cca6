"""What is reached over a network: indexes, and the logins for registries."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from envbuild.files import home_folder
from envbuild.lock.client import make_client
from envbuild.lock.settings import IndexSettings, asked_url, bare_url, read_settings
from envbuild.oci.reference import Reference
from envbuild.registry.credentials import find
from envbuild.verify.doctor.checking import ok, wrong
from envbuild.verify.findings import Finding

_SECONDS = 8.0
_APART = 120.0
"""Seconds that clocks may differ; Google refuses tokens that are five minutes off."""
_PROJECT = "pip"
"""Whose page is asked for: the list of all projects can be very long, and any answer will do."""


def indexes() -> Iterator[Finding]:
    """Whether each index answers, by the settings of uv and pip."""
    settings = read_settings()
    for place in settings.find_links:
        if "://" not in place and not Path(place).is_dir():
            yield wrong("index", f"{place} is no folder", "correct find-links in the settings of pip or uv")
    if not settings.indexes:
        yield ok("index", f"no index is asked, by the settings of pip or uv: {settings.places}")
        return
    with make_client(settings) as client:
        for index in settings.indexes:
            yield from _index(client, index, settings)


def _index(client: httpx.Client, index: str, settings: IndexSettings) -> Iterator[Finding]:
    name, whose = bare_url(index), "pip" if settings.from_pip else "uv"
    try:
        answer = client.head(asked_url(index, _PROJECT), timeout=_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        todo = f"check the network, HTTPS_PROXY and the settings of {whose}"
        yield wrong("index", f"{name} does not answer: {str(error) or type(error).__name__}", todo)
        return
    yield answered(name, answer.status_code)
    yield from clock(answer.headers, datetime.now(UTC), name)


def clock(headers: Mapping[str, str], now: datetime, name: str) -> Iterator[Finding]:
    """Hold this machine's clock against the Date of an answer (RFC 9110, section 6.6.1), which caches may have aged."""
    age = headers.get("Age", "")
    try:
        there = parsedate_to_datetime(headers.get("Date", "")) + timedelta(seconds=int(age) if age.isdecimal() else 0)
        apart = (now - there).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a time zone
        return
    if abs(apart) <= _APART:
        yield ok("clock", f"within {_APART / 60:g} minutes of {name}")
        return
    says = f"this machine's clock is {abs(apart) / 60:.0f} minutes {'ahead of' if apart > 0 else 'behind'} {name}"
    why = "certificates and tokens seem expired, or not valid yet, and records get a wrong date"
    yield wrong("clock", says, "set the clock: timedatectl set-ntp true", severity="warning", why=why)


def answered(name: str, status: int) -> Finding:
    """Say what an index's answer means: that it has no such project is an answer too."""
    if status in (401, 403, 407):
        todo = "put user and password into the index's address, netrc or keyring, as for pip"
        return wrong("index", f"{name} wants other credentials ({status})", todo)
    if status >= 500:
        return wrong("index", f"{name} fails ({status})", "try again later, or name another index")
    return ok("index", f"{name} answers")


def registry_logins(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Which registries Docker's settings have a login for, and whether the programs that they name are here."""
    path = Path(environ.get("DOCKER_CONFIG") or Path(home_folder(environ), ".docker"), "config.json")
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        says = f"there is no {path}: of Google's registries, the Google credentials are taken"
        yield ok("registry logins", says)
        return
    except (OSError, ValueError, RecursionError) as error:
        says = f"{path} cannot be read ({type(error).__name__})"
        yield wrong("registry logins", says, "correct or remove it, then: docker login REGISTRY", severity="warning")
        return
    yield from logins(config if isinstance(config, dict) else {}, str(path), environ.get("PATH"))


def logins(config: Mapping[str, object], name: str, path: str | None) -> Iterator[Finding]:
    """Say what Docker's settings say; `path` is where programs are looked for."""
    helpers, auths = ({} if not isinstance(it, dict) else it for it in (config.get("credHelpers"), config.get("auths")))
    store = config.get("credsStore")
    named = {str(it) for it in (*helpers.values(), *([store] if store else []))}
    for helper in sorted(named):
        if shutil.which(f"docker-credential-{helper}", path=path) is None:
            says = f"{name} names docker-credential-{helper}, which is not on PATH"
            yield wrong("registry logins", says, "install it, or correct the file", severity="warning")
    hosts = ", ".join(sorted({*map(str, helpers), *map(str, auths)}))
    yield ok("registry logins", f"{name} has {hosts or 'no registry'}{f', and the store {store}' if store else ''}")


def login_for(reference: Reference) -> Iterator[Finding]:
    """Whether there are credentials for a registry; without any it may still let everybody read."""
    about = f"login {reference.registry}"
    found = find(reference.registry, reference.repository, environ=os.environ)
    if found.credentials:
        yield ok(about, "there are credentials")
    for hint in found.hints:
        yield wrong(about, hint, f"docker login {reference.registry}", severity="warning")
    if not found.credentials and not found.hints:
        yield ok(about, "there are no credentials; what everybody may read can be read")
