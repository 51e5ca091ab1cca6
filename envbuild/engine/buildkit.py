"""BuildKit, by a docker client that can: it has secrets and caches, and builds on other machines.

The engine's API takes a BuildKit build only beside a private connection (moby, "session"), which the client knows.
"""

import netrc
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import docker

from envbuild.engine.transcript import Request, Transcript
from envbuild.errors import MissingComponentError
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings

Running = Callable[..., AbstractContextManager["subprocess.Popen[bytes]"]]
"""Starts a program, of which nothing is left when the block ends."""

_SECONDS = 20
"""For a client to say what it is."""
_LINE = re.compile(r"#(\d+) (?:\d+\.\d+ )?(.*)")
_TIMED = re.compile(r"#\d+ \d+\.\d+ ")
_SAID = re.compile(r"(DONE|CACHED|CANCELED|transferring|sha256:|extracting|resolve |exporting|writing|naming)\b")
_SECTION = "------"
_NO_PLUGIN = "install Docker's buildx plugin, or leave out --builder-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A docker command that can use BuildKit."""

    path: str
    buildx: bool
    """Whether it has the plugin, without which it knows the engine's own BuildKit only."""


def find_client(path: str | None = None) -> Client | None:
    """Find a docker command that can use BuildKit; None where there is none, or DOCKER_BUILDKIT=0 asks for the other.

    The first on PATH need not be one: since version 23 clients want the plugin, and Debian's have it not.
    """
    if os.environ.get("DOCKER_BUILDKIT") == "0":
        return None
    found = [client for it in _commands(path or os.environ.get("PATH", "")) if (client := _client(it))]
    return next((client for client in found if client.buildx), None) or next(iter(found), None)


def require_buildx(client: Client | None, name: str) -> Client:
    """See that builders of buildx can be used; MissingComponentError."""
    if client is None or not client.buildx:
        raise MissingComponentError(
            "no docker command here has buildx", where=f"--builder-name {name}", todo=_NO_PLUGIN
        )
    return client


def can_buildkit(client: docker.DockerClient) -> bool:
    """Whether the engine is Docker's, and has BuildKit (Docker 18.09, API 1.39)."""
    version = client.version()
    names = {one.get("Name") for one in version.get("Components") or ()}
    major, _, minor = str(version.get("ApiVersion") or "0.0").partition(".")
    return "Engine" in names and (int(major), int(minor)) >= (1, 39)


def build_locally(client: Client, request: Request, tag: str, transcript: Transcript, running: Running) -> None:
    """Build by the engine's own BuildKit and tag the image; BuildError when a step fails."""
    _run(client, [client.path, "build", "--tag", tag, *_options(request)], transcript, running)


def build_remotely(
    client: Client, request: Request, name: str, builder: str, transcript: Transcript, running: Running, metadata: Path
) -> None:
    """Build by a builder of buildx, which pushes the image to `name` by digest; `metadata` gets what came of it."""
    output = f"type=image,name={name},push=true,push-by-digest=true,oci-mediatypes=true"
    options = ["--builder", builder, "--output", output, "--metadata-file", str(metadata), "--platform"]
    command = [client.path, "buildx", "build", *options, request.platform, *_options(request)]
    _run(client, command, transcript, running)


def _options(request: Request) -> list[str]:
    given = [f"--build-arg={name}={value}" for name, value in request.arguments.items()]
    # Known to every build and written into none (Dockerfile reference, "Predefined ARGs"); their values may be secret.
    proxies = [f"--build-arg={name}" for name in os.environ if request.network and name.lower().endswith("_proxy")]
    secrets = [f"--secret=id={name},src={path}" for name, path in request.secrets.items()]
    network = [] if request.network else ["--network=none"]
    file = f"--file={request.context / request.dockerfile}"
    return ["--progress=plain", file, *network, *given, *proxies, *secrets, str(request.context)]


def _run(client: Client, command: list[str], transcript: Transcript, running: Running) -> None:
    heard = _Heard(transcript)
    with running(command, _environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            heard.line(line.decode(errors="replace").rstrip("\n"))
        if process.wait():
            raise transcript.failure(heard.reason or f"{client.path} ended with {process.returncode}", heard.failed)


def _environment() -> Mapping[str, str]:
    """Without another builder than the engine's own, and without attestations, which make indexes of images."""
    kept = {name: value for name, value in os.environ.items() if name != "BUILDX_BUILDER"}
    return kept | {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDKIT_PROGRESS": "plain"}


class _Heard:
    """What is read off plain progress (BuildKit, util/progress/progressui)."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript, self._summary = transcript, False
        self.failed: str | None = None
        """The number of the step that failed."""
        self.reason = ""

    def line(self, line: str) -> None:
        """Take one line."""
        if line == _SECTION:
            self._summary = not self._summary  # what was printed already stands between two of them
        elif self._summary or not line.strip():
            return
        elif found := _LINE.fullmatch(line):
            self._of_step(found[1], found[2], printed=_TIMED.match(line) is not None)
        else:
            self.reason = line

    def _of_step(self, step: str, text: str, *, printed: bool) -> None:
        if printed:
            self._transcript.add(text, step)
        elif text.startswith("ERROR"):
            self.failed, self.reason = step, text.removeprefix("ERROR: ")
        elif not _SAID.match(text) and text != "...":
            self._transcript.begin(step, text)


def _commands(path: str) -> Iterator[str]:
    """Every docker command on PATH, the first one first."""
    found = (shutil.which("docker", path=folder) for folder in path.split(os.pathsep) if folder)
    yield from dict.fromkeys(str(Path(it).resolve()) for it in found if it)


def _client(path: str) -> Client | None:
    version = re.match(r"Docker version (\d+)\.", _said(path, "--version"))
    if version is None:
        return None  # podman's stand-in, or nothing that runs
    buildx = bool(_said(path, "buildx", "version"))
    return Client(path=path, buildx=buildx) if buildx or 18 <= int(version[1]) < 23 else None


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


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
