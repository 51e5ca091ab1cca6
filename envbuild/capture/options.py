"""What a capture was asked for: options of a command line, with a file of settings below them."""

from __future__ import annotations

import shlex
from typing import Sequence

from envbuild.capture.reading import Facts
from envbuild.capture.settings import read_settings

LISTS = {
    "variable": "variables",
    "requires": "requires",
    "data": "data",
    "preprocessing": "preprocessing",
    "load": "load",
}
"""Options that may be repeated, and what `capture()` calls them."""


def settled(given: Facts, command: Sequence[str] | None) -> Facts:
    """Return the arguments of `capture()`: lists add to those of the file, all else wins over it.

    ValueError for what cannot be meant.
    """
    settings = read_settings(given["config"]) if given["config"] else {}
    lists = {ours: [*settings.get(ours, ()), *given[option]] for option, ours in LISTS.items()}
    switches = {name: bool(given[name] or settings.get(name)) for name in ("patch", "deep")}
    return dict(
        lists,
        **switches,
        model_uri=given["model"] or settings.get("model_uri"),
        command=_command(given["command"], command) or settings.get("command"),
        golden=given["golden"],
    )


def _command(text: str | None, words: Sequence[str] | None) -> list[str] | None:
    if text is not None and words is not None:
        raise ValueError("command: give --command or words after --, not both")
    if text is not None:
        words = shlex.split(text)
    if words is not None and not words:
        raise ValueError("command: is empty")
    return None if words is None else list(words)
