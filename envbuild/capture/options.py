"""What a capture was asked for: options of a command line, with a file of settings below them."""

from __future__ import annotations

import re
import shlex
from typing import Sequence

from envbuild.capture.reading import Facts
from envbuild.capture.settings import read_settings
from envbuild.capture.variables import VARIABLE

NO_PLACE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*)?=|")
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
    check_given(given)
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


def check_given(given: Facts) -> None:
    """ValueError for an option that says nothing, as when the variable that it was to hold is not set.

    What is wrong is not repeated, since it may be a value that was meant to stay secret.
    """
    for name, value in given.items():
        if value == "":
            raise ValueError("%s: is empty; leave the option out, or see what the shell made of it" % name)
    for name in ("variable", "requires"):
        for number, text in enumerate(given.get(name, ()), 1):
            if not VARIABLE.fullmatch(text):
                raise ValueError("%s: number %d cannot name a variable; give the name alone" % (name, number))
    for number, place in enumerate(given.get("data", ()), 1):
        if NO_PLACE.fullmatch(place):
            raise ValueError("data: number %d names no place; give URI or NAME=URI" % number)


def _command(text: str | None, words: Sequence[str] | None) -> list[str] | None:
    if text is not None and words is not None:
        raise ValueError("command: give --command or words after --, not both")
    if text is not None:
        words = shlex.split(text)
    if words is not None and not words:
        raise ValueError("command: is empty")
    return None if words is None else list(words)
