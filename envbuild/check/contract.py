"""The contract of a container: files and a variable that anybody may have written, read and validated."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Dict

    Finding = Dict[str, str]

LONGEST_VERSION = 100
"""Characters."""
SPELLINGS = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc", "rev": "post", "r": "post"}
"""Words of versions that mean the same (PEP 440, section Normalization)."""
LARGEST_FILE = 1 << 20
"""Bytes."""
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""For files of any kind: opening a pipe must not wait."""


def finding(about: str, says: str, todo: str, severity: str = "error") -> Finding:
    """Return one fault; `strict` stops for an error."""
    return {"about": about, "says": says, "todo": todo, "severity": severity}


def printable(text: object, most: int = 200) -> str:
    """Return text without control characters, cut to a length."""
    whole = str(text)
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in whole[:most])
    return line + ("..." if len(whole) > most else "")


def reason(error: Exception) -> str:
    """Return why something failed, without any text that was read."""
    return getattr(error, "strerror", None) or type(error).__name__


def tokens(version: str) -> list[str]:
    """Split a version so that its spellings are equal: `1.0+cu121` and `v1.0_cu121`, `2022.07.1` and `2022.7.1`."""
    text = re.sub("^v", "", version[:LONGEST_VERSION].strip().lower())
    parts = re.findall(r"[0-9]+|[^\W\d_]+", text)
    parts = [part.lstrip("0") or "0" if part.isdigit() else SPELLINGS.get(part, part) for part in parts]
    while len(parts) > 1 and parts[-1] == "0":
        parts.pop()
    return parts


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons."""
    return tuple(int(part[:18]) for part in tokens(version) if part.isdigit())


def read_regular(path: str) -> bytes:
    """Read a regular file; OSError, ValueError."""
    handle = os.open(path, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "this is not a regular file")
        with open(handle, "rb", closefd=False) as file:
            data = file.read(LARGEST_FILE + 1)
    finally:
        os.close(handle)
    if len(data) > LARGEST_FILE:
        raise OSError(0, "this has more than %d bytes" % LARGEST_FILE)
    return data


def parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; ValueError for anything else."""

    def infinity(_text: str) -> float:
        return float("inf")

    def integer(digits: str) -> int | float:
        # No valid number is long, and converting a long one takes long.
        return int(digits) if len(digits) < 20 else infinity(digits)

    try:
        value = json.loads(text.strip("\ufeff \t\r\n"), parse_int=integer, parse_constant=infinity)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("this is not a JSON object")  # noqa: TRY004 - a fault of the text
    return value


def is_text(value: Any) -> bool:
    """Tell whether it is a text that is not empty."""
    return isinstance(value, str) and value != ""


def is_amount(value: Any) -> bool:
    """Tell whether it is a number of things; true and false are integers, too."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_release(value: Any) -> bool:
    """Tell whether it is numbers with dots."""
    return isinstance(value, str) and len(value) <= LONGEST_VERSION and bool(re.fullmatch("[0-9.]*[0-9][0-9.]*", value))


LOCATION = {"uri": is_text, "size": is_amount, "objects": is_amount}
GPU: dict[str, Callable[[Any], bool]] = {
    "count": is_amount,
    "memory": is_amount,
    "driver": is_release,
    "capabilities": lambda value: isinstance(value, list) and all(map(is_release, value)),
}


def is_valid_part(parts: Mapping[str, Callable[[Any], bool]], key: Any, value: Any) -> bool:
    """Tell whether a part is unknown, left out, or valid."""
    return value is None or key not in parts or parts[key](value)


def is_location(value: Any) -> bool:
    """Tell whether it names a path of this container."""
    valid = isinstance(value, dict) and isinstance(value.get("path"), str)
    return valid and all(is_valid_part(LOCATION, key, part) for key, part in value.items())


VALUES: dict[str, Callable[[Any], bool]] = {
    "variables": lambda value: isinstance(value, list),
    "data": lambda value: isinstance(value, list),
    "packages": lambda value: isinstance(value, dict),
    "gpu": lambda value: isinstance(value, dict),
    "variant": lambda value: value in ("gpu", "cpu"),
    "python": is_text,
    "cuda": is_text,
    "driver": is_release,
}
ENTRIES: dict[str, Callable[[Any, Any], bool]] = {
    "variables": lambda _index, value: is_text(value),
    "data": lambda _index, value: is_location(value),
    "packages": lambda _name, value: is_text(value),
    "gpu": lambda key, value: is_valid_part(GPU, key, value),
}


class Contract:
    """All needs of the container, and the faults of the texts that describe them."""

    def __init__(self, prefix: str, environment: Mapping[str, str]) -> None:
        self.objects: list[dict[str, Any]] = []
        self.faults: list[Finding] = []
        folder = os.path.join(prefix, "share", "envbuild")
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and name != "lock.json")
        except OSError:
            names = []
        # The environment's own list, then those that serving adds.
        for name in ["lock.json", *names]:
            self.add_file(os.path.join(folder, name))
        contract = environment.get("ENVBUILD_CONTRACT", "")
        if contract.lstrip()[:1] == "{":
            self.add("ENVBUILD_CONTRACT", contract)
        elif contract:
            self.add_file(contract)

    def add_file(self, path: str) -> None:
        """Add the needs in a file."""
        try:
            self.add(path, read_regular(path).decode("utf-8"))
        except (OSError, ValueError) as error:
            says = "%s cannot be read (%s), and its needs are not checked" % (printable(path), reason(error))
            todo = "give a file that user %d can read" % os.getuid()
            self.faults.append(finding("contract", says, todo))

    def add(self, name: str, text: str) -> None:
        """Add the needs in a text."""
        try:
            value = parse_object(text)
        except ValueError as error:
            self.add_fault(name, str(error))
            return
        needs = {key: value[key] for key in VALUES if value.get(key) is not None}
        for key in [key for key in needs if not VALUES[key](needs[key])]:
            self.add_fault(name, "its `%s` is not valid" % key)
            del needs[key]
        for key in [key for key in needs if key in ENTRIES]:
            entries = needs[key]
            items = dict(entries if isinstance(entries, dict) else enumerate(entries))
            valid = {at: item for at, item in items.items() if ENTRIES[key](at, item)}
            if len(valid) < len(items):
                invalid = ", ".join(str(at) for at in items if at not in valid)
                self.add_fault(name, "its `%s` has entries that are not valid: %s" % (key, printable(invalid)))
            needs[key] = valid if isinstance(entries, dict) else list(valid.values())
        self.objects.append(needs)

    def add_fault(self, name: str, fault: str) -> None:
        """Note a text that is not valid."""
        todo = "write it again, as `envbuild local` does"
        self.faults.append(finding("contract", "%s: %s" % (printable(name), fault), todo))

    def values(self, key: str) -> list[Any]:
        """Return all values of this name."""
        return [needs[key] for needs in self.objects if key in needs]

    def entries(self, key: str) -> Iterator[Any]:
        """Yield the entries of all lists of this name."""
        return (entry for value in self.values(key) for entry in value)
