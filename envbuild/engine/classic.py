"""The builder that every engine has, podman's too: by the engine's API, without secrets and without caches."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import docker
from docker.auth import encode_header

from envbuild.engine.image import Event, events, fault_of
from envbuild.engine.transcript import Request, Transcript
from envbuild.errors import MissingComponentError
from envbuild.oci.tar import END, Entry, header, padding

_STEP = re.compile(r"(?:\[\d+/\d+\] )?(?:Step|STEP) \d+/\d+ ?: (.*)")
"""As Docker says it, and as podman does; so for images."""
_CONTAINER = re.compile(r" ---> Running in ([0-9a-f]{12,64})")
_IMAGE = re.compile(r"(?: -)?--> ([0-9a-f]{11,64})")
_CHUNK = 1 << 20
_QUIET = None
"""Copying gigabytes from one stage to the next says nothing for as long as it takes."""

Left = Callable[[str, str], None]
"""Told what a build makes on its way: `container` or `image`, and its id; before that the `step`, as it is written."""


def build_classic(
    client: docker.DockerClient,
    request: Request,
    tag: str,
    transcript: Transcript,
    left: Left,
    logins: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Build the context and tag the image; BuildError when a step fails, MissingComponentError when the engine dies.

    `logins` are what bases are pulled with, by their registries (Docker Engine API, "Build an image").
    """
    parameters = {
        "t": tag,
        "dockerfile": request.dockerfile,
        "platform": request.platform,
        "networkmode": "default" if request.network else "none",
        # What is made on the way is removed, so there never is a cache to look into.
        "nocache": "true",
        "rm": "true",
        "forcerm": "true",
        "buildargs": json.dumps(dict(request.arguments)),
    }
    headers = {"Content-Type": "application/x-tar", "X-Registry-Config": encode_header(dict(logins or {}))}
    answered = events(
        client, "/build", data=packed(request.context), params=parameters, headers=headers, timeout=_QUIET
    )
    done = False
    with closing(answered):
        for event in answered:
            if reason := fault_of(event):
                raise transcript.failure(reason)
            _hear(event, transcript, left)
            done = done or _is_end(event)
    if not done:
        todo = "see the engine's own log, then run the command again"
        raise MissingComponentError("the engine stopped answering in the build", where="container engine", todo=todo)


def packed(folder: Path) -> Iterator[bytes]:
    """The files of a folder as a tar stream, equal for equal files."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            yield header(Entry(name, "directory", 0o755))
            continue
        size = path.stat().st_size
        yield header(Entry(name, "file", 0o644, size))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
        yield bytes(padding(size))
    yield END


def _hear(event: Event, transcript: Transcript, left: Left) -> None:
    for line in str(event.get("stream") or "").split("\n"):
        if found := _STEP.match(line):
            left("step", found[1])
            transcript.begin(line, line)
        elif found := _CONTAINER.fullmatch(line):
            left("container", found[1])
        elif found := _IMAGE.fullmatch(line):
            left("image", found[1])
        else:
            transcript.add(line)


def _is_end(event: Event) -> bool:
    """Whether the image is whole: Docker gives its id, podman says so too, older ones in words."""
    said = str(event.get("stream") or "")
    return "ID" in (event.get("aux") or {}) or said.startswith(("Successfully built", "Successfully tagged"))
