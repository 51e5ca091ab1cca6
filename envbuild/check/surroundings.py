"""Variables and data, as a program looks for them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from envbuild.check.asked import PLAIN
from envbuild.check.words import finding, shown, why

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from envbuild.check.asked import Asked
    from envbuild.check.words import Finding


def variable_findings(asked: Asked, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the variables that are not set."""
    for name in asked.entries("variables"):
        if name not in environment:
            said = shown(name)
            yield finding(said, "%s is not set, and the program reads it" % said, "give it: -e %s=VALUE" % said)


def data_findings(asked: Asked) -> Iterator[Finding]:
    """Yield the data that is not where it is looked for, or cannot be read."""
    for entry in asked.entries("data"):
        path, uri = entry["path"], entry.get("uri")
        fault = location_fault(path, entry)
        if fault:
            # Other addresses can hold passwords.
            whence = " (%s)" % shown(uri) if uri and uri.startswith("gs://") else ""
            says = "the data at %s%s %s" % (shown(path), whence, fault)
            todo = "mount what the run read there, readable for user %d: -v FOLDER:%s:ro" % (os.getuid(), shown(path))
            yield finding(shown(path), says, todo)


def location_fault(path: str, entry: Mapping[str, Any]) -> str:
    """Return what is wrong with a file or folder; empty where nothing is."""
    try:
        about = os.stat(path)
        if stat.S_ISDIR(about.st_mode):
            return folder_fault(path, entry.get("objects"))
        if not stat.S_ISREG(about.st_mode):
            return "is neither a file nor a folder"
        handle = os.open(path, PLAIN)
        try:
            os.read(handle, 1)
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except (OSError, ValueError) as error:
        return "cannot be read: %s" % why(error)
    size = entry.get("size")
    if size is not None and size != about.st_size:
        return "has %d bytes, and had %d for the run" % (about.st_size, size)
    return ""


def folder_fault(path: str, objects: int | None) -> str:
    """Return what is wrong with a folder, of which one entry is listed: some have millions; OSError."""
    with os.scandir(path) as entries:
        empty = next(entries, None) is None
    if not os.access(path, os.X_OK):
        return "cannot be read: its files cannot be opened"
    return "is empty" if empty and objects else ""
