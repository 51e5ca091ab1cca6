"""Findings and versions: what they are, and how they are told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    Finding: TypeAlias = dict[str, str]

NAME = "envbuild-check"
LONGEST = 100
"""Characters of a version that count."""
SPELLINGS = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc", "rev": "post", "r": "post"}
"""Words of versions that mean the same (PEP 440, section Normalization)."""


def finding(about: str, says: str, todo: str, severity: str = "error") -> Finding:
    """Return one thing that is not as it has to be; an error is what `strict` stops for."""
    return {"about": about, "says": says, "todo": todo, "severity": severity}


def shown(text: object, most: int = 200) -> str:
    """Return text that can do nothing to a terminal or a log."""
    whole = str(text)
    line = "".join(it if it.isprintable() else ascii(it)[1:-1] for it in whole[:most])
    return line + ("..." if len(whole) > most else "")


def why(error: Exception) -> str:
    """Return what went wrong, without a word of what was read."""
    return getattr(error, "strerror", None) or type(error).__name__


def write(handle: int, text: str) -> str:
    """Write whatever the locale is; return why it cannot be written, nothing where it was."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(handle, data) :]
    except OSError as error:
        return why(error)
    return ""


def tell(text: str) -> None:
    """Say something to people."""
    write(2, "%s: %s\n" % (NAME, text))


def tokens(version: str) -> list[str]:
    """Split a version so that spellings of one are equal: `1.0+cu121` and `v1.0_cu121`, `2022.07.1` and `2022.7.1`."""
    found: list[str] = []
    last = ""
    whole = version[:LONGEST].strip().lower()
    for char in whole[1:] if whole[:1] == "v" else whole:
        kind = "0" if "0" <= char <= "9" else "a" if char.isalpha() else ""
        if kind and kind == last:
            found[-1] += char
        elif kind:
            found.append(char)
        last = kind
    found = [it.lstrip("0") or "0" if "0" <= it[0] <= "9" else SPELLINGS.get(it, it) for it in found]
    while len(found) > 1 and found[-1] == "0":
        found.pop()
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Return a driver's version, to be compared."""
    return tuple(int(it[:18]) for it in tokens(version) if it.isdigit())
