"""What the files of installed distributions say: RECORD (PyPA, "Recording installed projects") by what it means."""

import csv
import io
import posixpath
import re
from collections.abc import Callable, Iterator

RECORD = re.compile(r"(?:.*/)?[^/]+\.dist-info/RECORD")
MARK = re.compile(r"(?:.*/)?[^/]+\.dist-info/(?:INSTALLER|REQUESTED|direct_url\.json)")
"""What tells who installed a distribution, and why."""
BYTECODE = re.compile(r"(?:.*/)?__pycache__/[^/]+\.pyc")
BYTECODE_FOLDER = re.compile(r"(?:.*/)?__pycache__")

Row = tuple[str, str, str]
"""Path below the root, hash and size, as they are recorded."""


def rows(record: str, text: bytes) -> Iterator[Row]:
    """Read the RECORD that lies at a path; csv.Error when it is none."""
    site = posixpath.dirname(posixpath.dirname(record))
    lines = io.StringIO(text.decode("utf-8", "surrogateescape"), newline="")
    for row in csv.reader(lines, strict=True):
        if row and row[0]:
            path, digest, size, *_ = (*row, "", "")
            yield posixpath.normpath(posixpath.join("/", site, path)).lstrip("/"), digest, size


def same_files(record: str, one: bytes, other: bytes, ignored: Callable[[str], bool]) -> bool:
    """Whether two RECORDs have the same files and hashes, but for bytecode, installers' marks, themselves and what is
    ignored.
    """
    try:
        first, second = (set(rows(record, text)) for text in (one, other))
    except csv.Error:
        return False
    return all(path == record or _of_installers(path) or ignored(path) for path, _, _ in first ^ second)


def _of_installers(path: str) -> bool:
    return bool(MARK.fullmatch(path) or BYTECODE.fullmatch(path))
