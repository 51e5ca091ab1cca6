"""What an engine answers while it works: one JSON object a line."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import docker

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
    """Post to the engine and yield what it says; leaving the loop hangs up, which ends the engine's work too.

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
    """What an event says against the work; empty when it says nothing."""
    return str(event.get("error") or event.get("message") or "")


def _event(line: bytes) -> Event:
    """One line of an answer; what is no event comes from something before the engine, such as a proxy."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return {"error": line.decode(errors="replace")}
