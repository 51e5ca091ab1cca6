"""The kinds of text that a manifest holds: for each the check that reading does and the JSON Schema that says so."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version as PackageVersion

_LONGEST = 200
"""Characters of a name or version; file systems allow 255 for a whole file name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text has to be: `check` says what is wrong with it, or None; `schema` is the same for other readers."""

    check: Callable[[str], str | None]
    schema: dict[str, Any] = field(hash=False, compare=False)


def shown(value: str) -> str:
    """Quote a text for a message: on one line, ASCII, and not without end."""
    return ascii(value if len(value) <= 80 else value[:79] + "…")


def _any_text(value: str) -> str | None:
    if "\0" in value:
        return "holds a NUL character"
    return "is no Unicode text" if any("\ud800" <= char <= "\udfff" for char in value) else None


def _printable(value: str) -> str | None:
    if any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in value):
        return f"holds control characters: {shown(value)}"
    return None


def _version(value: str) -> str | None:
    try:
        # Version itself takes spaces around it, and letters that lower() makes ASCII.
        valid = len(value) <= _LONGEST and value.isascii() and value == value.strip() and bool(PackageVersion(value))
    except ValueError:
        valid = False
    return None if valid else f"is no version: {shown(value)}"


def _exact_python(value: str) -> str | None:
    exact = re.fullmatch(r"\d{1,4}\.\d{1,4}\.\d{1,4}((a|b|rc)\d{1,4})?\+?", value, re.ASCII)
    return None if exact else f"is no exact Python version such as 3.11.7: {shown(value)}"


def _address(value: str) -> str | None:
    # A capture cuts passwords; whoever wrote one by hand must not find it copied beside the model.
    wrong = re.search(r"://[^/\s:]*:[^/]*@", value)
    return "holds a password; take it out of the manifest" if wrong else _printable(value)


def _distribution_name(value: str) -> str | None:
    try:
        valid = len(value) <= _LONGEST and value.isascii() and bool(canonicalize_name(value, validate=True))
    except InvalidName:
        valid = False
    return None if valid else f"is no distribution name: {shown(value)}"


def _variable_name(value: str) -> str | None:
    wrong = not value or "=" in value or " " in value or _printable(value)
    return f"cannot name a variable: {shown(value)}" if wrong else None


def _numbers(value: str) -> str | None:
    return None if re.fullmatch(r"[0-9]+(\.[0-9]+)*", value) else f"must be numbers with dots, is {shown(value)}"


def _timestamp(value: str) -> str | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return f"is no RFC 3339 time: {shown(value)}"
    return None if moment.tzinfo else f"has no time zone: {shown(value)}"


def _matching(pattern: str, what: str) -> Rule:
    def check(value: str) -> str | None:
        return None if re.fullmatch(pattern, value) else f"is no {what}: {shown(value)}"

    return Rule(check, {"type": "string", "pattern": f"^{pattern}$"})


_ONE_LINE = {"type": "string", "pattern": "^[^\\u0000-\\u001f]*$"}

AnyText = Annotated[str, Rule(_any_text, {"type": "string"})]
"""Whatever a variable can hold: line ends too."""
Line = Annotated[str, Rule(_printable, _ONE_LINE)]
"""One line without control characters."""
Address = Annotated[str, Rule(_address, _ONE_LINE)]
"""A URL or remote without a password."""
Name = Annotated[
    str, Rule(_distribution_name, {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"})
]
"""A distribution's name."""
Version = Annotated[str, Rule(_version, {"type": "string", "pattern": "^[0-9A-Za-z.+_!-]+$"})]
"""A version (PEP 440), the local label kept."""
PythonVersion = Annotated[str, Rule(_exact_python, {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+"})]
"""An interpreter's exact version."""
Numbers = Annotated[str, Rule(_numbers, {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)*$"})]
"""Numbers with dots: `12.5.1`."""
Timestamp = Annotated[str, Rule(_timestamp, {"type": "string", "format": "date-time"})]
VariableName = Annotated[str, Rule(_variable_name, {"type": "string", "pattern": "^[^=\\s\\u0000-\\u001f]+$"})]
Sha256 = Annotated[str, _matching("[0-9a-f]{64}", "SHA-256 digest")]
Sha1 = Annotated[str, _matching("[0-9a-f]{40}", "SHA-1 digest")]
Crc32c = Annotated[str, _matching("[A-Za-z0-9+/]{6}==", "CRC-32C as Cloud Storage writes it")]
Base64 = Annotated[str, _matching("[A-Za-z0-9+/]*={0,2}", "base64")]
SchemaVersion = Annotated[str, _matching("1\\.[0-9]{1,9}", "schema version")]

PAIRS = object()
"""Marks what is an object of names and texts in JSON, and sorted pairs in memory."""
Pairs = Annotated[tuple[tuple[str, str], ...], PAIRS]
