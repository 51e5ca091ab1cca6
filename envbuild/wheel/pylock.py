"""pylock.toml (PEP 751) with wheel variants, whose file names packaging refuses."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from packaging.pylock import Pylock

from envbuild.wheel.name import parsed_wheel


def parse_pylock(document: Mapping[str, Any]) -> Pylock:
    """Read a pylock.toml, and keep the file names of wheel variants; PylockValidationError, ValueError."""
    plain, names = deepcopy(dict(document)), {}
    for number, package in enumerate(_tables(plain.get("packages"))):
        for place, wheel in enumerate(_tables(package.get("wheels"))):
            address = str(wheel.get("path") or wheel.get("url") or "").partition("?")[0].partition("#")[0]
            filename = str(wheel.get("name") or unquote(address.rpartition("/")[2]))
            if (found := parsed_wheel(filename)) and found.label:
                names[number, place], wheel["name"] = filename, found.plain
    pylock = Pylock.from_dict(plain)
    packages = [*pylock.packages]
    for number in {number for number, _ in names}:
        wheels = enumerate(packages[number].wheels or ())
        named = [replace(it, name=names.get((number, place), it.name)) for place, it in wheels]
        packages[number] = replace(packages[number], wheels=named)
    return replace(pylock, packages=packages)


def _tables(value: Any) -> list[dict[str, Any]]:
    """The tables of an array; none where it is something else, which packaging refuses."""
    return value if isinstance(value, list) and all(isinstance(it, dict) for it in value) else []
