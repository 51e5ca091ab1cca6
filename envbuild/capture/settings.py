"""Options of a capture from a file."""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Callable, Dict

from envbuild.capture.reading import Facts
from envbuild.capture.redact import scrub_line

LARGEST_SETTINGS = 1 << 20
"""Bytes."""
IS_MEANT: Dict[str, Callable[[Any], bool]] = {
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a text": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
}
SETTINGS = dict.fromkeys(("requires", "variables", "data", "preprocessing", "load", "command"), "a list of texts")
SETTINGS.update(model="a text", deep="true or false", patch="true or false")
"""What may be in the file, and what it has to be."""


def check_lists(options: Facts) -> None:
    """ValueError for one text where `capture()` takes a list of texts: its letters would be taken for them."""
    for name, value in options.items():
        if SETTINGS.get(name) == "a list of texts" and isinstance(value, (str, bytes)):
            # Not what it is, since that may be a value that was meant to stay secret.
            raise ValueError('%s is one text, and must be a list of texts: %s=["..."]' % (name, name))


def read_settings(path: str) -> Facts:
    """Read arguments of `capture()` from a file, `model` as `model_uri`.

    They are JSON, or in TOML the table [capture], in a pyproject.toml [tool.envbuild.capture]. ValueError names the
    file and what in it cannot be meant.
    """
    where = scrub_line(path)
    try:
        settings = _checked(_loaded(path))
    except OSError as error:
        raise ValueError("%s: cannot be read: %s" % (where, error.strerror)) from None
    except ValueError as error:
        raise ValueError("%s: %s" % (where, scrub_line(str(error)))) from None
    if "model" in settings:
        settings["model_uri"] = settings.pop("model")
    return settings


def _checked(settings: Any) -> Facts:
    if not isinstance(settings, dict):
        raise ValueError("its options must be a table")  # noqa: TRY004 - a fault of the file
    for key, value in settings.items():
        if key not in SETTINGS:
            raise ValueError("%s is no option; these are: %s" % (key[:80], ", ".join(SETTINGS)))
        if not IS_MEANT[SETTINGS[key]](value):
            raise ValueError("%s must be %s" % (key, SETTINGS[key]))
    return dict(settings)


def _loaded(path: str) -> Any:
    # Opening a pipe would wait for whoever writes into it.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("is not a regular file")
    with open(path, "rb") as file:
        data = file.read(LARGEST_SETTINGS + 1)
    if len(data) > LARGEST_SETTINGS:
        raise ValueError("is larger than %d bytes" % LARGEST_SETTINGS)
    try:
        if path.endswith(".toml"):
            return _table(data.decode("utf-8-sig"), os.path.basename(path) == "pyproject.toml")
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_without_repetition)
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _table(text: str, of_project: bool) -> Any:
    try:
        import tomllib
    except ImportError:
        raise ValueError("reading TOML needs Python 3.11 or later; the same options in a JSON file do not") from None
    table: Any = tomllib.loads(text)
    keys = ("tool", "envbuild", "capture") if of_project else ("capture",)
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    if table is None:
        raise ValueError("has no table [%s]" % ".".join(keys))
    return table


def _without_repetition(pairs: list[tuple[str, Any]]) -> Facts:
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("has a key twice")
    return settings
