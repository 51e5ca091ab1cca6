"""A TOML file whose values are asked for by key and type; errors carry the path to the key."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from envbuild.errors import MatchError
from envbuild.oci.digest import Digest

SCHEMA = 1
T = TypeVar("T")


class Table:
    """A table of a file, and where in the file it is."""

    def __init__(self, data: dict[str, Any], path: str) -> None:
        self.data, self.path = data, path

    def wrong(self, key: str, expected: str) -> MatchError:
        """The error for a value that is not what it must be."""
        return MatchError(
            f"a profile is not valid: expected {expected}",
            where=f"{self.path}{key}",
            todo="correct the file or make it anew",
        )

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a string")
        return value

    def maybe(self, key: str) -> str | None:
        """A string, or None where there is none."""
        return self.text(key) if key in self.data else None

    def strings(self, *keys: str) -> dict[str, str]:
        """Several strings by key."""
        return {key: self.text(key) for key in keys}

    def texts(self, key: str, *, optional: bool = False) -> tuple[str, ...]:
        """A list of strings; empty where it is optional and not there."""
        value = self.data.get(key, [] if optional else None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def sha256(self, key: str) -> Digest:
        """A sha256 without its prefix."""
        try:
            return Digest.parse(f"sha256:{self.text(key)}")
        except ValueError:
            raise self.wrong(key, "64 hexadecimal digits") from None

    def each(self, key: str, read: Callable[["Table"], T]) -> tuple[T, ...]:
        """What `read` makes of each table of a list."""
        value = self.data.get(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, f"[[{key}]] tables")
        return tuple(read(Table(item, f"{self.path}{key}[{place}].")) for place, item in enumerate(value))

    def inner(self, key: str) -> "Table":
        """The table below a key."""
        value = self.data.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return Table(value, f"{self.path}{key}.")


def read_table(path: Path) -> Table:
    """Read a file of the profiles; MatchError names the file, and the line where it is not TOML."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise MatchError(
            f"a profile cannot be read: {error.strerror}",
            where=str(path),
            todo="give a folder that has it by --profiles; where none was given, install envbuild again",
        ) from error
    except ValueError as error:
        raise MatchError(
            f"a profile is not TOML: {error}", where=str(path), todo="correct the file or make it anew"
        ) from error
    table = Table(data, f"{path}: ")
    if data.get("schema") != SCHEMA:
        raise table.wrong("schema", str(SCHEMA))
    return table
