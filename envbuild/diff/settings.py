"""What two images' configs say (OCI image-spec, config.md), by its meaning: absent and empty are the same."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.capture.redact import scrub
from envbuild.diff.secrets import ANOTHER, SECRET, without_secrets
from envbuild.errors import BuildError
from envbuild.oci.image import Image

_PLATFORM = ("architecture", "os", "variant")
_SINGLE = ("Entrypoint", "Cmd", "User", "WorkingDir", "StopSignal", "Shell", "Healthcheck", "OnBuild")
_SETS = ("ExposedPorts", "Volumes")
_WRONG = (ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that the configs say differently."""

    name: str
    """`Env PATH`, `Labels maintainer`, `Entrypoint`."""
    before: Any
    """None where it is not set."""
    after: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.before)} -> {_shown(self.after)}"

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {"name": self.name, "before": self.before, "after": self.after}


def settings(a: Image, b: Image, names: tuple[str, str]) -> tuple[Setting, ...]:
    """List what differs; BuildError for a config that is none."""
    before, after = _said(a, names[0]), _said(b, names[1])
    keys = dict.fromkeys((*before, *after))
    return tuple(_setting(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key))


def _setting(name: str, before: Any, after: Any) -> Setting:
    """A setting that differs, without the secrets in its values."""
    kind, _, key = name.partition(" ")
    one, other = without_secrets(key or kind, before, after, sure=True)
    return Setting(name=scrub(name), before=one, after=other)


def _said(image: Image, name: str) -> dict[str, Any]:
    try:
        return {key: value for key, value in _settings(json.loads(image.config)) if value is not None}
    except _WRONG as error:
        raise BuildError("the image's config cannot be read", where=name, todo="make the image again") from error


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    said: Mapping[str, Any] = config.get("config") or {}
    yield from ((key, config.get(key) or None) for key in _PLATFORM)
    for entry in said.get("Env") or ():
        variable, _, value = str(entry).partition("=")
        yield f"Env {variable}", value
    for key in _SINGLE:
        found = said.get(key) or None
        yield key, None if (key, found) == ("WorkingDir", "/") else found
    yield from ((f"Labels {label}", value) for label, value in (said.get("Labels") or {}).items())
    yield from ((key, sorted(said.get(key) or ()) or None) for key in _SETS)


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value) if value in (SECRET, ANOTHER) else json.dumps(value, ensure_ascii=False)
