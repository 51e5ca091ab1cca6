"""Images of an engine: found or pulled, with the digest by which a registry knows them; and the engine's events."""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag

from envbuild.engine.client import explanation
from envbuild.errors import RegistryError, UsageError, counted
from envbuild.report import Reporter

Event = Mapping[str, Any]


def events(
    client: docker.DockerClient,
    path: str,
    *,
    data: Iterator[bytes] | bytes = b"",
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None,
) -> Generator[Event, None, None]:
    """Post to the engine and yield its events; closing the generator hangs up, which ends the engine's work.

    docker-py's own methods keep the connection open after an error or Ctrl-C. `timeout` is seconds of silence.
    """
    api = client.api
    url = f"{api.base_url}/v{api.api_version}{path}"
    with closing(api.post(url, data=data, params=params, headers=headers, stream=True, timeout=timeout)) as response:
        for line in filter(bytes.strip, response.iter_lines()):
            yield _event(line)
        if not response.ok:
            yield {"error": f"status {response.status_code}"}


def fault_of(event: Event) -> str:
    """The error that an event reports; empty when there is none."""
    return str(event.get("error") or event.get("message") or "")


def _event(line: bytes) -> Event:
    """Parse a line; anything but an event comes from a proxy, and is an error."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return {"error": line.decode(errors="replace")}


_QUIET = 600
"""Seconds of silence while the engine unpacks layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalImage:
    """An image that the engine has."""

    reference: str
    id: str
    """The engine's own id of it."""
    digest: str | None
    """`repository@sha256:...`, if it was pulled or pushed."""
    path: tuple[str, ...]
    """The folders of its PATH."""


def find_image(client: docker.DockerClient, reference: str, report: Reporter) -> LocalImage:
    """Find an image, or pull it; UsageError for an invalid reference, RegistryError if it cannot be pulled."""
    try:
        attributes = _attributes(client, reference)
    except ImageNotFound:
        _pull(client, reference, report)
        attributes = _attributes(client, reference)
    variables = dict(item.partition("=")[::2] for item in (attributes.get("Config") or {}).get("Env") or ())
    # Engines set this if the image does not.
    path = variables.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return LocalImage(
        reference=reference,
        id=str(attributes["Id"]),
        digest=registry_digest(reference, attributes.get("RepoDigests") or ()),
        path=tuple(folder for folder in path.split(":") if folder.startswith("/")),
    )


def _attributes(client: docker.DockerClient, reference: str) -> Mapping[str, Any]:
    try:
        attributes: Mapping[str, Any] = client.images.get(reference).attrs
    except (APIError, docker.errors.NullResource) as error:
        if isinstance(error, ImageNotFound):
            raise
        todo = "give it as for docker run: HOST/NAME:TAG, NAME@sha256:..., or an image id"
        raise UsageError("not an image reference", where=f"--image {reference}", todo=todo) from error
    return attributes


def registry_digest(reference: str, digests: Iterable[str]) -> str | None:
    """Choose the `repository@digest` of the reference's own repository, else the first by name."""
    known = sorted(digests)
    repository, _ = parse_repository_tag(reference)
    own = [digest for digest in known if digest.partition("@")[0] == repository]
    exact = [digest for digest in known if digest == reference]
    return next(iter(exact + own + known), None)


def _pull(client: docker.DockerClient, reference: str, report: Reporter) -> None:
    report.step(f"Pulling {reference}, which the engine does not have")
    repository, tag = parse_repository_tag(reference)
    layers, done = dict[str, int](), set[str]()
    client.api.timeout = _QUIET
    try:
        for event in client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if "error" in event:
                raise _not_pulled(reference, str(event["error"]))
            layer, status = str(event.get("id")), event.get("status")
            if status == "Downloading":
                detail = event.get("progressDetail") or {}
                layers[layer] = max(layers.get(layer, 0), int(detail.get("current") or 0))
                report.progress("pulled", sum(layers.values()), None)
            elif status == "Pull complete":
                done.add(layer)
    except APIError as error:
        raise _not_pulled(reference, explanation(error)) from error
    if done:
        report.note(f"pulled {counted(len(done), 'layer')}")


def _not_pulled(reference: str, reason: str) -> RegistryError:
    what = f"the image is not here and cannot be pulled: {reason}"
    todo = "check the name and the registry, log in with `docker login`, or build it first"
    return RegistryError(what, where=f"--image {reference}", todo=todo)
