"""RECORD: the files of a wheel or an installed distribution, with hash and size (PyPA, "Recording installed projects").

It is the one reader of RECORD outside `envbuild.capture`, which runs without envbuild's dependencies.
"""

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class RecordError(ValueError):
    """A RECORD that is not valid CSV."""


class Row(NamedTuple):
    """One file; hash and size are empty where RECORD does not give them."""

    path: str
    """As written: relative to site-packages, or absolute."""
    hash: str = ""
    """`sha256=` and the digest in URL-safe base64 without padding."""
    size: str = ""


def read_record(text: str, *, strict: bool = False) -> Iterator[Row]:
    """Yield the rows of a RECORD; RecordError if it is not valid CSV, in `strict` mode also for unbalanced quotes."""
    try:
        for row in csv.reader(io.StringIO(text, newline=""), strict=strict):
            if row and row[0]:
                yield Row(*row[:3])
    except csv.Error as error:
        raise RecordError(str(error)) from error


def write_record(rows: Iterable[Row]) -> bytes:
    """Write a RECORD, sorted by path."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue().encode()


def record_hash(digest: bytes) -> str:
    """Write a SHA-256 digest as RECORD has it."""
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def hash_and_size(content: bytes) -> tuple[str, str]:
    """Return the last two columns of the row of a file with this content."""
    return record_hash(hashlib.sha256(content).digest()), str(len(content))
