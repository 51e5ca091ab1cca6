"""What the environment says: Vertex AI's variables (AIP_*) and those of this server (ENVBUILD_*)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


class Unusable(Exception):  # noqa: N818 - what is said is for whoever starts the server
    """Why the server cannot start, and what to do about it."""


@dataclass(frozen=True)
class Settings:
    """How to serve; Vertex AI's page "Custom container requirements" says what AIP_* mean."""

    port: int = 8080
    health_route: str = "/health"
    predict_route: str = "/predict"
    storage_uri: str = ""
    """Where the model lies; empty for the one in the image."""
    model_folder: str = "/model"
    """Where the image has its model."""
    model_name: str = "model"
    """Its name in the routes of KServe."""
    most_rows: int = 1024
    """Rows that one request may hold."""
    most_bytes: int = 1_500_000
    """Bytes of one request's body, as Vertex AI's shared endpoints take them."""
    most_answer_bytes: int = 32 << 20
    """Bytes of one response's body."""
    most_connections: int = 512
    """Connections that are open at a time."""
    request_seconds: float = 30.0
    """How long a client may take to send a request, headers and body, and then to take the response."""
    workers: int = 1
    """Predictions that run at the same time; a framework uses several cores for each."""
    most_waiting: int = 256
    """Requests that are running or wait for a worker; more are refused."""
    drain_seconds: float = 2.0
    """After SIGTERM, how long requests are still taken while the health route says 503."""
    finish_seconds: float = 60.0
    """How long the requests that came are then worked on."""


NAMES = {
    "port": "AIP_HTTP_PORT",
    "health_route": "AIP_HEALTH_ROUTE",
    "predict_route": "AIP_PREDICT_ROUTE",
    "storage_uri": "AIP_STORAGE_URI",
    "model_folder": "ENVBUILD_MODEL_FOLDER",
    "model_name": "ENVBUILD_MODEL_NAME",
    "most_rows": "ENVBUILD_MAX_BATCH",
    "most_bytes": "ENVBUILD_MAX_BYTES",
    "most_answer_bytes": "ENVBUILD_MAX_RESPONSE_BYTES",
    "most_connections": "ENVBUILD_MAX_CONNECTIONS",
    "request_seconds": "ENVBUILD_REQUEST_SECONDS",
    "workers": "ENVBUILD_WORKERS",
    "most_waiting": "ENVBUILD_MAX_WAITING",
    "drain_seconds": "ENVBUILD_DRAIN_SECONDS",
    "finish_seconds": "ENVBUILD_FINISH_SECONDS",
}
"""The variable of each setting."""
LARGEST = {"AIP_HTTP_PORT": 65535}
"""What a variable may be at most, where that is not for whoever sets it to say."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the variables that are set and not empty; Unusable for one that cannot be meant."""
    defaults = Settings()
    values: dict[str, Any] = {}
    for field, name in NAMES.items():
        text = environment.get(name, "")
        if text:
            values[field] = _read(name, text, getattr(defaults, field))
    return Settings(**values)


def _read(name: str, text: str, default: object) -> object:
    if isinstance(default, int):
        return _number(name, text, int, 1)
    if isinstance(default, float):
        return _number(name, text, float, 0.0)
    if name.endswith("_ROUTE") and not text.startswith("/"):
        raise Unusable(f"{name} is to start with a slash, and is {text!r}")
    return text


def _number(name: str, text: str, kind: Callable[[str], Number], least: Number) -> Number:
    try:
        number = kind(text)
    except ValueError:
        number = None
    most = LARGEST.get(name)
    if number is None or not least <= number < float("inf") or (most and number > most):
        raise Unusable(f"{name} is to be a number from {least} {f'to {most}' if most else 'on'}, and is {text!r}")
    return number
