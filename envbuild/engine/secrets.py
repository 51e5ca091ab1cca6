"""What a build needs to reach the index, as BuildKit's secrets: files that a step sees and no layer has."""

import netrc
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings

PIP, CERTIFICATES, NETRC = "pip", "ca", "netrc"
"""The ids by which the Dockerfile mounts them."""


def index_secrets(settings: IndexSettings, wheels: Iterable[LockedWheel]) -> dict[str, bytes]:
    """The contents of the secrets, by their ids: settings of pip, the certificates that count here, logins of netrc."""
    hosts = {urlsplit(url).hostname or "" for url in (*settings.indexes, *(wheel.url for wheel in wheels))}
    found = {PIP: pip_configuration(settings), CERTIFICATES: _certificates(settings), NETRC: _logins(sorted(hosts))}
    return {name: data for name, data in found.items() if data}


def pip_configuration(settings: IndexSettings) -> bytes:
    """The index as pip's configuration file has it (pip documentation, "Configuration")."""
    remote = [place for place in settings.find_links if "://" in place and not place.startswith("file:")]
    several = {"extra-index-url": settings.extra, "find-links": remote, "trusted-host": settings.trusted_hosts}
    lines = [f"index-url = {settings.default}"] if settings.default else []
    lines += ["\n    ".join((f"{name} =", *values)) for name, values in several.items() if values]
    return "".join(f"{line}\n" for line in ("[global]", *lines)).encode()


def hidden_words(settings: IndexSettings, secrets: Mapping[str, bytes]) -> tuple[str, ...]:
    """Passwords, as they are and as addresses have them; the longest first, as one may hold another."""
    inside = [urlsplit(url).password for url in (*settings.indexes, *settings.find_links) if "://" in url]
    lines = secrets.get(NETRC, b"").decode().splitlines()
    logins = [line.removeprefix("password ").strip('"') for line in lines if line.startswith("password ")]
    words = {form for word in (*inside, *logins) if word for form in (word, unquote(word))}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


@contextmanager
def secret_files(secrets: Mapping[str, bytes]) -> Iterator[dict[str, Path]]:
    """Write them where this user alone can read them; yield their paths; when the block ends they are gone."""
    with TemporaryDirectory(prefix="envbuild-") as folder:
        paths = {name: Path(folder, name) for name in secrets}
        for name, path in paths.items():
            path.touch(mode=0o600)
            path.write_bytes(secrets[name])
        yield paths


def _certificates(settings: IndexSettings) -> bytes:
    """What this machine believes, as the lock came from there: an image need not know a company's own authority."""
    named = (
        settings.ca_bundle,
        os.environ.get("SSL_CERT_FILE"),
        settings.certificates,
        ssl.get_default_verify_paths().cafile,
    )
    path = next((Path(it) for it in named if it and Path(it).is_file()), None)
    return path.read_bytes() if path else b""


def _logins(hosts: Iterable[str]) -> bytes:
    """The user's own logins for these hosts, and no others."""
    try:
        known = netrc.netrc(os.environ.get("NETRC") or None)
    except (OSError, netrc.NetrcParseError):
        return b""
    lines = []
    for host in hosts:
        with suppress(TypeError, KeyError):
            user, _, password = known.hosts[host]
            lines += [f"machine {host}", f'login "{user}"', f'password "{password}"']
    return "".join(f"{line}\n" for line in lines).encode()
