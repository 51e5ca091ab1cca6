"""What is asked of a container: read from files and a variable that anybody may have written."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from envbuild.check.words import LONGEST, finding, numbers, shown, why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from envbuild.check.words import Finding

LARGEST = 1 << 20
"""Bytes of a file that is read."""
PLAIN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""How what may be anything is opened: nobody waits for a pipe."""


def content(path: str) -> bytes:
    """Return what a regular file holds; OSError, ValueError."""
    handle = os.open(path, PLAIN)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "this is no regular file")
        found = b""
        while len(found) <= LARGEST:
            piece = os.read(handle, LARGEST + 1)
            if not piece:
                return found
            found += piece
    finally:
        os.close(handle)
    raise OSError(0, "this has more than %d bytes" % LARGEST)


def number(text: str) -> int | float:
    """Return a number; none that is needed is long, and long ones take long."""
    return int(text) if len(text) < 20 else boundless(text)


def boundless(_text: str) -> float:
    """Take what JSON has no number for as one that fits nowhere."""
    return float("inf")


class Reading:
    """How the scanner of the standard library is to read JSON."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = staticmethod(number)
    parse_constant = staticmethod(boundless)


def scanner() -> Callable[[str, int], tuple[Any, int]]:
    """Return what reads JSON: the compiled part of the module json, where this Python has it."""
    try:
        from _json import make_scanner

        scan: Callable[[str, int], tuple[Any, int]] = make_scanner(Reading)  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError):
        import json

        decoder = json.JSONDecoder(parse_int=number, parse_constant=boundless)
        scan = decoder.scan_once  # type: ignore[attr-defined]
    return scan


def parsed(text: str) -> dict[str, Any]:
    """Return the object that JSON describes; ValueError where it describes none."""
    text = text.strip("\ufeff \t\r\n")
    try:
        value, end = scanner()(text, 0)
    except (ValueError, StopIteration, RecursionError, SystemError):  # the last where json itself is not imported
        value, end = None, 0
    if end != len(text) or not isinstance(value, dict):
        raise ValueError("this is no object in JSON")
    return value


def is_text(it: Any) -> bool:
    """Return whether it says something."""
    return isinstance(it, str) and it != ""


def is_amount(it: Any) -> bool:
    """Return whether it counts something; true and false are integers, too."""
    return isinstance(it, int) and not isinstance(it, bool) and it >= 0


def is_release(it: Any) -> bool:
    """Return whether it is numbers with dots."""
    return isinstance(it, str) and len(it) <= LONGEST and not set(it) - set("0123456789.") and numbers(it) != ()


def are_releases(it: Any) -> bool:
    """Return whether each is numbers with dots."""
    return isinstance(it, list) and all(is_release(one) for one in it)


def is_location(it: Any) -> bool:
    """Return whether it names a path of this container."""
    return isinstance(it, dict) and isinstance(it.get("path"), str) and all(has(it, key) for key in LOCATION)


def has(entry: Mapping[str, Any], key: str) -> bool:
    """Return whether a part is left out, or what it has to be."""
    return entry.get(key) is None or LOCATION[key](entry[key])


def is_of_gpu(key: Any, it: Any) -> bool:
    """Return whether a part of what is asked of GPUs is what it has to be; others may come to be known."""
    return it is None or key not in GPU or GPU[key](it)


LOCATION = {"uri": is_text, "size": is_amount, "objects": is_amount}
GPU = {"count": is_amount, "memory": is_amount, "driver": is_release, "capabilities": are_releases}
SHAPE = {
    "variables": lambda it: isinstance(it, list),
    "data": lambda it: isinstance(it, list),
    "packages": lambda it: isinstance(it, dict),
    "gpu": lambda it: isinstance(it, dict),
    "variant": lambda it: it in ("gpu", "cpu"),
    "python": is_text,
    "cuda": is_text,
    "driver": is_release,
}
ENTRIES = {
    "variables": lambda _at, it: is_text(it),
    "data": lambda _at, it: is_location(it),
    "packages": lambda _name, it: is_text(it),
    "gpu": is_of_gpu,
}


class Asked:
    """All that is asked of the container, and what is wrong with how it is asked."""

    def __init__(self, prefix: str, environment: Mapping[str, str]) -> None:
        self.objects: list[dict[str, Any]] = []
        self.faults: list[Finding] = []
        for path in lists(os.path.join(prefix, "share", "envbuild")):
            self.add_file(path)
        contract = environment.get("ENVBUILD_CONTRACT", "")
        if contract.lstrip()[:1] == "{":
            self.add("ENVBUILD_CONTRACT", contract)
        elif contract:
            self.add_file(contract)

    def add_file(self, path: str) -> None:
        """Take what a file asks for."""
        try:
            self.add(path, content(path).decode("utf-8"))
        except (OSError, ValueError) as error:
            says = "%s cannot be read (%s), and nothing is held against it" % (shown(path), why(error))
            todo = "see that it is there, a file that user %d can read" % os.getuid()
            self.faults.append(finding("contract", says, todo))

    def add(self, name: str, text: str) -> None:
        """Take what a text asks for."""
        try:
            value = parsed(text)
        except ValueError as error:
            self.fault(name, str(error))
            return
        said = {key: value[key] for key in SHAPE if value.get(key) is not None}
        for key in [key for key in said if not SHAPE[key](said[key])]:
            self.fault(name, "its `%s` is not what it has to be" % key)
            del said[key]
        for key in [key for key in said if key in ENTRIES]:
            said[key] = self.understood(name, key, said[key])
        self.objects.append(said)

    def understood(self, name: str, key: str, value: Any) -> Any:
        """Return a list or object without the entries that cannot be understood, which are noted."""
        entries = dict(value if isinstance(value, dict) else enumerate(value))
        right = {at: it for at, it in entries.items() if ENTRIES[key](at, it)}
        if len(right) < len(entries):
            wrong = ", ".join(str(at) for at in entries if at not in right)
            self.fault(name, "its `%s` has entries that are not what they have to be: %s" % (key, shown(wrong)))
        return right if isinstance(value, dict) else list(right.values())

    def fault(self, name: str, what: str) -> None:
        """Note what cannot be understood."""
        todo = "write it anew; `envbuild local` does"
        self.faults.append(finding("contract", "%s: %s" % (shown(name), what), todo))

    def entries(self, key: str) -> list[Any]:
        """Return the entries of all lists of this name."""
        return [entry for listed in self.said(key) for entry in listed]

    def said(self, key: str) -> list[Any]:
        """Return all values of this name."""
        return [it[key] for it in self.objects if key in it]


def lists(folder: str) -> Iterator[str]:
    """Yield the paths of the environment's own list and of what serving adds to it."""
    try:
        names = sorted(it for it in os.listdir(folder) if it.endswith(".json") and it != "lock.json")
    except OSError:
        names = []
    for name in ["lock.json", *names]:
        yield os.path.join(folder, name)
