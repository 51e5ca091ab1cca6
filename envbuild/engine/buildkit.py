"""BuildKit, by a docker client that can: it has secrets and caches, and builds on other machines.

The engine's API takes a BuildKit build only beside a private connection (moby, "session"), which the client knows.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import docker

from envbuild.engine.building import Request, Transcript
from envbuild.errors import MissingComponentError

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
