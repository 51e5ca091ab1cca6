"""Builds by BuildKit through the docker command: what is built, its output, and the secrets that it mounts.

The engine's API takes a BuildKit build only beside a private connection (moby, "session"), which the command knows.
"""

import netrc
import os
import re
import secrets
import shutil
import ssl
import subprocess
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from docker.errors import DockerException, ImageNotFound
from requests import RequestException

from envbuild.engine.client import AGAIN
from envbuild.engine.container import owner_suffix, remove_leftovers
from envbuild.engine.load import Loaded, load_into
from envbuild.errors import BuildError, MissingComponentError
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings, without_credentials
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.process import running
from envbuild.report import Reporter

if TYPE_CHECKING:
    import docker

BASE = "envbuild-base"
"""The name of a base in the engine while a build uses it; no registry needs to have it."""
PIP, CERTIFICATES, NETRC = "pip", "ca", "netrc"
"""The ids by which the Dockerfile mounts secrets."""
_SECONDS = 20
"""For the command to print its version."""
_LINE = re.compile(r"#(\d+) (\d+\.\d+ )?(.*)")
_STATUS = re.compile(r"(DONE|CACHED|CANCELED|transferring|sha256:|extracting|resolve |exporting|writing|naming)\b")
_SECTION = "------"
_LINES = 15
"""Lines of a failed step that are quoted."""
_LINE_LENGTH, _TITLE_LENGTH = 500, 150
_EXIT_CODE = re.compile(r"(?:exit code: |non-zero code: |exit status )(\d+)")
"""BuildKit repeats the whole command before it, which is in the Dockerfile."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\u00a0-\U0010ffff]")
"""What drives terminals: colours, and the line ends of progress bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be built."""

    context: Path
    """The folder, of which all files are sent."""
    dockerfile: str
    """Its name in the context."""
    platform: str
    """`linux/amd64`."""
    network: bool
    """Whether steps may reach anything but the files of the context."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Files that steps may mount, by their ids."""
    hidden: Collection[str] = ()
    """Passwords that no line may show."""


class Transcript:
    """The output of a build, by steps."""

    def __init__(self, request: Request, report: Reporter) -> None:
        self._request, self._report = request, report
        self._titles: dict[str, str] = {}
        self._lines: dict[str, deque[str]] = {}
        self._last = ""

    def begin(self, step: str, title: str) -> None:
        """Begin a step, or set the title of one that has begun."""
        self._last = step
        if step not in self._titles:
            self._titles[step] = " ".join(self.clean(title).split())[:_TITLE_LENGTH]
            self._report.note(self._titles[step])

    def add(self, line: str, step: str) -> None:
        """Add a line that a step printed."""
        if text := self.clean(line):
            self._last = step
            self._lines.setdefault(step, deque(maxlen=_LINES)).append(text)
            self._report.note(text)

    def clean(self, line: str) -> str:
        """The line without credentials and without control sequences."""
        text = without_credentials(_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]))
        for secret in self._request.hidden:
            text = text.replace(secret, "***")
        return text.rstrip()[:_LINE_LENGTH]

    def failure(self, reason: str, step: str | None = None) -> BuildError:
        """Explain a failed step: which one, and its last lines."""
        chosen = self._last if step is None else step
        lines, where = list(self._lines.get(chosen, ())), self._titles.get(chosen) or "container engine"
        exit_code = _EXIT_CODE.search(reason)
        why = f"a step ended with exit code {exit_code[1]}" if exit_code else self.clean(reason)
        quoted = "".join(f"\n  | {line}" for line in lines)
        if any("No space left on device" in line for line in (why, *lines)):
            todo = "free space where the engine keeps its data: docker system prune"
            return BuildError(f"the engine's disk is full{quoted}", where=where, todo=todo)
        todo = "read the step's lines; a build without --builder docker writes the same context to --out"
        return BuildError(f"the build failed: {why}{quoted}", where=where, todo=todo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A docker command that can use BuildKit."""

    path: str
    buildx: bool
    """Whether it has the buildx plugin; without it, it can use only the engine's own BuildKit."""


def find_client(path: str | None = None) -> Client | None:
    """Find a docker command that can use BuildKit; None if there is none.

    The first on PATH need not be one: since version 23 the command needs the plugin, and Debian's has none.
    """
    folders = (path or os.environ.get("PATH", "")).split(os.pathsep)
    commands = (shutil.which("docker", path=folder) for folder in folders if folder)
    clients = []
    for command in dict.fromkeys(str(Path(it).resolve()) for it in commands if it):
        # No version: podman's stand-in, or a command that does not run.
        if version := re.match(r"Docker version (\d+)\.", _output(command, "--version")):
            buildx = bool(_output(command, "buildx", "version"))
            if buildx or 18 <= int(version[1]) < 23:
                clients.append(Client(path=command, buildx=buildx))
    return next((client for client in clients if client.buildx), None) or next(iter(clients), None)


def require_buildx(client: Client | None, name: str) -> Client:
    """Return the client if it has buildx; else MissingComponentError."""
    if client is None or not client.buildx:
        what, todo = "no docker command here has buildx", "install Docker's buildx plugin, or omit --builder-name"
        raise MissingComponentError(what, where=f"--builder-name {name}", todo=todo)
    return client


def require_buildkit(engine: "docker.DockerClient", instead: str) -> Client:
    """Return a docker command that builds by the engine's BuildKit (Docker 18.09, API 1.39); MissingComponentError.

    `instead` is what the user can do without one.
    """
    version = engine.version()
    names = {one.get("Name") for one in version.get("Components") or ()}
    major, _, minor = str(version.get("ApiVersion") or "0.0").partition(".")
    if "Engine" not in names or (int(major), int(minor)) < (1, 39):
        what = "the container engine has no BuildKit: podman, or Docker before 18.09"
        todo = f"let DOCKER_HOST name a current Docker engine, or {instead}"
        raise MissingComponentError(what, where="container engine", todo=todo)
    client = find_client()
    if client is None:
        todo = f"install Docker's command line with its buildx plugin, or {instead}"
        raise MissingComponentError("no docker command here can use BuildKit", where="PATH", todo=todo)
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that the engine has."""

    client: "docker.DockerClient"
    id: str
    """The engine's own id of it."""

    def tag(self, name: Reference, image: Image) -> Loaded:
        """Give it a permanent name."""
        self.client.api.tag(self.id, name.name, name.tag or "latest", force=True)
        return Loaded(id=self.id, image=image, sent=0, existing=sum(it.descriptor.size for it in image.layers))


@contextmanager
def loaded_base(client: "docker.DockerClient", image: Image, report: Reporter) -> Iterator[str]:
    """Load a base into the engine; yield a name that only this build uses, and remove it when the block ends.

    A shared name would let two builds take it from each other. Leftovers of killed commands are removed first.
    """
    remove_leftovers(client, report)
    name = f"{BASE}:{image.digest.short}-{owner_suffix()}"
    try:
        load_into(client, image, [Reference.parse(name)], report)
        yield name
    finally:
        _remove(client, name)


@contextmanager
def built(client: "docker.DockerClient", request: Request, report: Reporter, *, buildkit: Client) -> Iterator[Built]:
    """Build by BuildKit; yield the image, which loses its temporary name when the block ends.

    BuildError when a step fails, MissingComponentError when the engine stops answering.
    """
    tag = f"envbuild-build:{secrets.token_hex(8)}"
    command = [buildkit.path, "build", "--tag", tag, *_options(request)]
    try:
        try:
            _run(buildkit, command, Transcript(request, report))
        except BuildError as error:
            try:
                client.ping()
            except (DockerException, RequestException):  # which the docker command reports as a failed step
                what = "the engine stopped answering during the build"
                raise MissingComponentError(what, where="container engine", todo=AGAIN) from error
            raise
        try:
            found = client.images.get(tag)
        except ImageNotFound as error:
            todo = "check that DOCKER_HOST and Docker's context name the same engine for all clients"
            raise BuildError("the engine does not have the built image", where=tag, todo=todo) from error
        yield Built(client=client, id=str(found.id))
    finally:
        _remove(client, tag)


def _remove(client: "docker.DockerClient", name: str) -> None:
    """Remove a name, and the image with its last name; an engine that died has lost both."""
    with suppress(DockerException, RequestException):
        client.api.remove_image(name, force=False)


def build_remotely(
    client: Client, request: Request, name: str, builder: str, transcript: Transcript, metadata: Path
) -> None:
    """Build by a builder of buildx, which pushes the image to `name` by digest and writes the digest to `metadata`."""
    output = f"type=image,name={name},push=true,push-by-digest=true,oci-mediatypes=true"
    options = ["--builder", builder, "--output", output, "--metadata-file", str(metadata), "--platform"]
    command = [client.path, "buildx", "build", *options, request.platform, *_options(request)]
    _run(client, command, transcript)


def _options(request: Request) -> list[str]:
    arguments = [f"--build-arg={name}={value}" for name, value in request.arguments.items()]
    # Known to every build and written into none (Dockerfile reference, "Predefined ARGs"); their values may be secret.
    proxies = [f"--build-arg={name}" for name in os.environ if request.network and name.lower().endswith("_proxy")]
    mounts = [f"--secret=id={name},src={path}" for name, path in request.secrets.items()]
    network = [] if request.network else ["--network=none"]
    file = f"--file={request.context / request.dockerfile}"
    return ["--progress=plain", file, *network, *arguments, *proxies, *mounts, str(request.context)]


def _run(client: Client, command: list[str], transcript: Transcript) -> None:
    """Run a build, and read its plain progress (BuildKit, util/progress/progressui)."""
    # No other builder than the engine's own, and no attestations, which would turn images into indexes.
    environment = {name: value for name, value in os.environ.items() if name != "BUILDX_BUILDER"}
    environment |= {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDKIT_PROGRESS": "plain"}
    failed_step, reason, in_summary = None, "", False
    with running(command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for data in process.stdout:
            line = data.decode(errors="replace").rstrip("\n")
            if line == _SECTION:
                in_summary = not in_summary  # between two of these BuildKit repeats the step's output
            elif in_summary or not line.strip():
                continue
            elif (match := _LINE.fullmatch(line)) is None:
                reason = line
            elif match[2]:
                transcript.add(match[3], match[1])
            elif match[3].startswith("ERROR"):
                failed_step, reason = match[1], match[3].removeprefix("ERROR: ")
            elif not _STATUS.match(match[3]) and match[3] != "...":
                transcript.begin(match[1], match[3])
        if process.wait():
            raise transcript.failure(reason or f"{client.path} ended with {process.returncode}", failed_step)


def _output(*command: str) -> str:
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


def index_secrets(settings: IndexSettings, wheels: Iterable[LockedWheel]) -> dict[str, bytes]:
    """The contents of the secrets by id: pip's configuration, this machine's certificates, logins of netrc."""
    hosts = {urlsplit(url).hostname or "" for url in (*settings.indexes, *(wheel.url for wheel in wheels))}
    # The certificates that this machine trusts: an image need not know a company's own authority.
    default = ssl.get_default_verify_paths().cafile
    candidates = (settings.ca_bundle, os.environ.get("SSL_CERT_FILE"), settings.certificates, default)
    path = next((Path(it) for it in candidates if it and Path(it).is_file()), None)
    certificates = path.read_bytes() if path else b""
    contents = {PIP: pip_configuration(settings), CERTIFICATES: certificates, NETRC: _logins(sorted(hosts))}
    return {name: data for name, data in contents.items() if data}


def pip_configuration(settings: IndexSettings) -> bytes:
    """The index as pip's configuration file has it (pip documentation, "Configuration")."""
    remote = [place for place in settings.find_links if "://" in place and not place.startswith("file:")]
    several = {"extra-index-url": settings.extra, "find-links": remote, "trusted-host": settings.trusted_hosts}
    lines = [f"index-url = {settings.default}"] if settings.default else []
    lines += ["\n    ".join((f"{name} =", *values)) for name, values in several.items() if values]
    return "".join(f"{line}\n" for line in ("[global]", *lines)).encode()


def hidden_words(settings: IndexSettings, contents: Mapping[str, bytes]) -> tuple[str, ...]:
    """Passwords, plain and as in URLs; the longest first, as one may contain another."""
    in_urls = [urlsplit(url).password for url in (*settings.indexes, *settings.find_links) if "://" in url]
    lines = contents.get(NETRC, b"").decode().splitlines()
    logins = [line.removeprefix("password ").strip('"') for line in lines if line.startswith("password ")]
    words = {form for word in (*in_urls, *logins) if word for form in (word, unquote(word))}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


@contextmanager
def secret_files(contents: Mapping[str, bytes]) -> Iterator[dict[str, Path]]:
    """Write secrets to files that only this user can read; yield their paths; remove them when the block ends."""
    with TemporaryDirectory(prefix="envbuild-") as folder:
        paths = {name: Path(folder, name) for name in contents}
        for name, path in paths.items():
            path.touch(mode=0o600)
            path.write_bytes(contents[name])
        yield paths


def _logins(hosts: Iterable[str]) -> bytes:
    """The user's logins for these hosts, and no others."""
    try:
        entries = netrc.netrc(os.environ.get("NETRC") or None).hosts
    except (OSError, netrc.NetrcParseError):
        return b""
    lines = []
    for host in hosts:
        with suppress(TypeError, KeyError):
            user, _, password = entries[host]
            lines += [f"machine {host}", f'login "{user}"', f'password "{password}"']
    return "".join(f"{line}\n" for line in lines).encode()
