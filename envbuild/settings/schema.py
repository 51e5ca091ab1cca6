"""The JSON schema of a configuration."""

from collections.abc import Iterable
from typing import Any

from envbuild.settings.model import OF_CAPTURE, SHARED, TEMPLATES, Option

_KINDS: dict[str, dict[str, Any]] = {
    "flag": {"type": "boolean"},
    "number": {"type": "integer"},
    "text": {"type": "string"},
    "list": {"type": "array", "items": {"type": "string"}},
}


def schema(options: Iterable[Option]) -> dict[str, Any]:
    """Describe envbuild.toml, and [tool.envbuild] of pyproject.toml, with every key that may be there."""
    commands: dict[str, dict[str, Option]] = {}
    for option in options:
        commands.setdefault(option.command, {})[option.key] = option
    shared = {
        key: _value(commands[name][key])
        for key, names in SHARED.items()
        for name in reversed(names)
        if key in commands.get(name, {})
    }
    table, folder, *_ = TEMPLATES
    templates = {table: _table({folder: _KINDS["text"]})}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envbuild.toml",
        **_table(shared | templates | {name: _command(name, it) for name, it in commands.items()}),
    }


def _command(name: str, options: dict[str, Option]) -> dict[str, Any]:
    values = {key: _value(option) for key, option in options.items()}
    if name == "capture":
        values |= {other: values[key] for other, key in OF_CAPTURE.items()}
        values["command"] = {"anyOf": [_KINDS["text"], _KINDS["list"]]}
    chosen = [choice for option in options.values() if option.choosing for choice in option.choices]
    return _table({choice: _table(values) for choice in chosen} | values)


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(option: Option) -> dict[str, Any]:
    described = {"description": option.help} if option.help else {}
    choices: dict[str, Any] = {"enum": list(option.choices)} if option.choices else {}
    if option.kind == "list" and choices:
        return {"type": "array", "items": {"type": "string"} | choices} | described
    return _KINDS[option.kind] | choices | described
