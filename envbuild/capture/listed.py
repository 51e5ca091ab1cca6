"""The files that a distribution lists as its own."""

from __future__ import annotations

import csv
import io
import os
from typing import Iterator, NamedTuple

from envbuild.capture.conda import conda_files
from envbuild.capture.origins import NO_INDEX
from envbuild.capture.reading import Facts, decoded, read_bytes, read_text


class Listed(NamedTuple):
    """A file as a distribution lists it."""

    name: str
    """As seen from the folder that the metadata lies in, or absolute."""
    digest: str = ""
    """As RECORD writes it: `sha256=` and base64, or hexadecimal; empty where the list says none."""
    size: int | None = None


def listed_files(path: str, conda: Facts | None) -> Iterator[Listed] | None:
    """List what the distribution whose metadata is `path` installed; None where nothing tells.

    That is what conda wrote, which knows what it changed in files, or RECORD; older tools list only names.
    """
    if conda is not None:
        return _conda_listed(conda["record"], os.path.dirname(path))
    installer = (read_text(os.path.join(path, "INSTALLER")) or "").strip().lower()
    record = read_bytes(os.path.join(path, "RECORD"))
    if record is not None:
        # Operating systems take files away and strip libraries, and leave the RECORD of their build.
        return _recorded(decoded(record)) if installer and installer not in NO_INDEX else None
    names = read_text(os.path.join(path, "installed-files.txt"))
    return _installed(names, os.path.basename(path)) if names is not None else None


def _conda_listed(record: str, site: str) -> Iterator[Listed]:
    prefix, site = os.path.realpath(os.path.join(record, "..", "..")), os.path.realpath(site)
    inside, outside = os.path.relpath(site, prefix) + "/", os.path.relpath(prefix, site) + "/"
    for file in conda_files(record):
        path = file["path"]
        name = path[len(inside) :] if path.startswith(inside) else outside + path
        digest = "sha256=%s" % file["sha256"] if isinstance(file["sha256"], str) else ""
        yield Listed(name, digest, file["size"] if isinstance(file["size"], int) else None)


def _recorded(text: str) -> Iterator[Listed]:
    """Read a RECORD as far as it is CSV."""
    try:
        for name, digest, size in (row[:3] + [""] * (3 - len(row)) for row in csv.reader(io.StringIO(text)) if row):
            yield Listed(name, digest, int(size) if size.isdecimal() and len(size) < 20 else None)
    except (csv.Error, ValueError):
        return


def _installed(text: str, folder: str) -> Iterator[Listed]:
    return (Listed(os.path.normpath(os.path.join(folder, line))) for line in text.split("\n") if line.strip())
