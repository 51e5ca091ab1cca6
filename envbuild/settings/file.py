"""Finding the configuration and reading it."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envbuild.errors import UsageError

OWN: Final = "envbuild.toml"
PROJECT: Final = "pyproject.toml"
LARGEST: Final = 1 << 20
"""Bytes; what is larger was not written by hand."""
_NONE = "or set ENVBUILD_CONFIG to nothing, and no configuration is read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration as it was read."""

    path: Path
    """Absolute."""
    text: str
    table: Mapping[str, Any]
    """The whole file, or [tool.envbuild] of a pyproject.toml."""
    prefix: str
    """What stands before keys in messages: `tool.envbuild.` or nothing."""


def find_settings(named: str | None, here: Path) -> Found | None:
    """Read the file that is named, else the nearest one in `here` and above; None where there is none.

    An empty name is for none at all. The search ends with the folder that holds `.git`, and where another file system
    begins. UsageError for what cannot be read, or is another user's.
    """
    if named is not None:
        return _read(here / named) or _empty(here / named) if named.strip() else None
    device = _device(here)
    for folder in (here, *here.parents):
        if _device(folder) != device:
            return None
        for path in (folder / OWN, folder / PROJECT):
            if os.path.lexists(path) and (found := _read(path, owned=True)):
                return found
        if os.path.lexists(folder / ".git"):
            return None
    return None


def _device(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _empty(path: Path) -> Found:
    return Found(path=path, text="", table={}, prefix="")


def _read(path: Path, *, owned: bool = False) -> Found | None:
    """Read a file; None for a pyproject.toml without [tool.envbuild]."""
    import tomllib  # noqa: PLC0415 - only where there is something to read

    text = _text(path, owned=owned)
    try:
        table = tomllib.loads(f"{text}\n")  # so that an error on the last line names it
    except (ValueError, RecursionError) as error:
        said = str(error).replace("Cannot overwrite a value", "a key is there twice")
        raise _unreadable(path, f"this is not TOML: {said}") from error
    if path.name != PROJECT:
        return Found(path=path, text=text, table=table, prefix="")
    tool = table.get("tool")
    if not isinstance(tool, dict) or "envbuild" not in tool:
        return None
    if not isinstance(tool["envbuild"], dict):
        raise _unreadable(path, "tool.envbuild is not a table")
    return Found(path=path, text=text, table=tool["envbuild"], prefix="tool.envbuild.")


def _text(path: Path, *, owned: bool) -> str:
    try:
        _check(path, owned=owned)
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise _unreadable(path, f"this is larger than {LARGEST} bytes")
        return data.decode("utf-8-sig")  # with the mark that editors on Windows put before it
    except OSError as error:
        raise _unreadable(path, f"this cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _unreadable(path, "this is not UTF-8") from error


def _check(path: Path, *, owned: bool) -> None:
    """Refuse what would block or never end, and what anyone could have put into a folder such as /tmp."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _unreadable(path, "this is not a regular file")
    if owned and found.st_uid not in {os.getuid(), 0, path.parent.stat().st_uid}:
        todo = f"name it by --config if it is meant, {_NONE}"
        raise UsageError("this configuration belongs to another user", where=str(path), todo=todo)


def _unreadable(path: Path, what: str) -> UsageError:
    return UsageError(what, where=str(path), todo=f"correct or remove it, {_NONE}")
