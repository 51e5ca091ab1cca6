"""Typed getters for JSON: each fault is noted with its dotted path, and all of them are told at once."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version

T = TypeVar("T")
_LONGEST = 200
"""Characters of a name or version; file systems allow 255 for a whole file name."""

Check = Callable[[str], str | None]
"""Says what is wrong with a text, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong, and where."""

    path: str
    """`distributions[3].origin.kind`."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A JSON object, where it lies, and the list that its faults go to; unknown keys are ignored.

    A getter that finds a fault returns an empty value, so that reading goes on to the next fault.
    """

    values: dict[str, Any]
    path: str = ""
    faults: list[Fault] = field(default_factory=list)

    def text(self, key: str, check: Check | None = None) -> str:
        """Get a text that has to be there and has to pass `check`."""
        return self.optional_text(key, check, required=True) or ""

    def optional_text(self, key: str, check: Check | None = None, *, required: bool = False) -> str | None:
        """Get a text; None where it is absent or null."""
        value = self._get(key, str, required=required)
        wrong = value is not None and ((check and check(value)) or (check is not any_text and printable(value)))
        if wrong:
            self.fault(key, wrong)
        return None if wrong else value

    def integer(self, key: str) -> int | None:
        """Get a number of things or bytes: whole and not negative."""
        value = self._get(key, int)
        if value is not None and value < 0:
            self.fault(key, f"must not be negative, is {value}")
        return value

    def boolean(self, key: str) -> bool:
        """Get true or false; false where it is absent."""
        return self._get(key, bool) or False

    def texts(self, key: str) -> tuple[str, ...]:
        """Get a list of texts; empty where it is absent."""
        items = Table(values=dict(self._items(key)), path=self.path, faults=self.faults)
        return tuple(items.text(name) for name in items.values)

    def pairs(self, key: str, check_key: Check, check_value: Check) -> tuple[tuple[str, str], ...]:
        """Get an object of texts as pairs, sorted; empty where it is absent."""
        table = self.table(key, required=False)
        if table is None:
            return ()
        wrong = {name: what for name in table.values if (what := check_key(name))}
        for what in wrong.values():
            self.fault(key, what)
        return tuple((name, table.text(name, check_value)) for name in sorted(table.values.keys() - wrong))

    def table(self, key: str, *, required: bool = True) -> "Table | None":
        """Get an object; None where it is absent, null or no object."""
        value = self._get(key, dict, required=required)
        return None if value is None else Table(values=value, path=self.at(key), faults=self.faults)

    def tables(self, key: str, *, required: bool = False) -> "list[Table]":
        """Get a list of objects; what is no object is left out."""
        items = Table(values=dict(self._items(key, required=required)), path=self.path, faults=self.faults)
        return [table for name in items.values if (table := items.table(name)) is not None]

    def fault(self, key: str, what: str) -> None:
        """Note what is wrong with a key."""
        self.faults.append(Fault(path=self.at(key), what=what))

    def at(self, key: str) -> str:
        """Return the dotted path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def _items(self, key: str, *, required: bool = False) -> list[tuple[str, Any]]:
        values = self._get(key, list, required=required) or []
        return [(f"{key}[{index}]", value) for index, value in enumerate(values)]

    def _get(self, key: str, kind: type[T], *, required: bool = False) -> T | None:
        value = self.values.get(key)
        # bool is an int to Python, and no number to JSON.
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        if value is not None:
            self.fault(key, f"must be {JSON_NAMES[kind]}, is {json_name(value)}")
        elif required:
            self.fault(key, "is null" if key in self.values else "is missing")
        return None


JSON_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def json_name(value: object) -> str:
    """Say what JSON calls a value."""
    return JSON_NAMES[type(value)]


def any_text(value: str) -> str | None:
    """Accept what an environment variable can hold: line ends too."""
    if "\0" in value:
        return "holds a NUL character"
    return "is no Unicode text" if any("\ud800" <= char <= "\udfff" for char in value) else None


def printable(value: str) -> str | None:
    """Refuse control characters, line ends and lone surrogates."""
    if any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in value):
        return f"holds control characters: {shown(value)}"
    return None


def version(value: str) -> str | None:
    """Refuse what is no version by packaging's rules."""
    try:
        # Version itself takes spaces around it, and letters that lower() makes ASCII.
        valid = len(value) <= _LONGEST and value.isascii() and value == value.strip() and bool(Version(value))
    except ValueError:
        valid = False
    return None if valid else f"is no version: {shown(value)}"


def exact_python(value: str) -> str | None:
    """Refuse what is no exact version of an interpreter."""
    exact = re.fullmatch(r"\d{1,4}\.\d{1,4}\.\d{1,4}((a|b|rc)\d{1,4})?\+?", value)
    return None if exact else f"is no exact Python version such as 3.11.7: {shown(value)}"


def without_password(value: str) -> str | None:
    """Refuse an address with a password in it; a capture cuts them, and the manifest is copied beside the model."""
    return "holds a password; take it out of the manifest" if re.search(r"://[^/\s:]*:[^/]*@", value) else None


def distribution_name(value: str) -> str | None:
    """Refuse what is no distribution name by packaging's rules."""
    try:
        valid = len(value) <= _LONGEST and value.isascii() and bool(canonicalize_name(value, validate=True))
    except InvalidName:
        valid = False
    return None if valid else f"is no distribution name: {shown(value)}"


def variable_name(value: str) -> str | None:
    """Refuse what cannot name an environment variable."""
    wrong = not value or "=" in value or " " in value or printable(value)
    return f"cannot name a variable: {shown(value)}" if wrong else None


def numbers(value: str) -> str | None:
    """Refuse what is not numbers with dots: `12.5.1`."""
    return None if re.fullmatch(r"[0-9]+(\.[0-9]+)*", value) else f"must be numbers with dots, is {shown(value)}"


def sha256(value: str) -> str | None:
    """Refuse what is no hexadecimal SHA-256 digest."""
    return None if re.fullmatch("[0-9a-f]{64}", value) else f"is no SHA-256 digest: {shown(value)}"


def one_of(*choices: str) -> Check:
    """Make a check for a fixed list of words."""
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}, is {shown(value)}"


def shown(value: str) -> str:
    """Quote a text for a message: on one line, ASCII, and not without end."""
    return ascii(value if len(value) <= 80 else value[:79] + "…")
