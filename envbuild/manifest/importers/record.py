"""A record as it comes: its bytes, the files beside it, and text, JSON, TOML and YAML read from hostile bytes."""

import codecs
import json
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from envbuild.capture.redact import scrub
from envbuild.errors import ManifestError
from envbuild.manifest.reader import MAX_MANIFEST, summary
from envbuild.validation import quote

MLMODEL: Final = "MLmodel"
WANDB_METADATA: Final = "wandb-metadata.json"
WANDB_REQUIREMENTS: Final = "requirements.txt"
MAX_LINES = 100_000
"""Lines; a requirements file with 1000 distributions and all their hashes has about 50 000."""
MAX_TOML = 16 * 2**20
"""Characters; the largest uv.lock that is known has about 5 MB."""
MAX_YAML = 2**19
"""Bytes; what conda exports has about 20 kB, and reading YAML is slow."""
MAX_LOCK = 4 * 2**20
"""Bytes of a lock in YAML; those for three platforms have 1 to 2 MB, and are read in as many seconds."""
_MOST_FAULTS = 500
"""Lines that a message names; so many does the freeze of a hosted notebook have."""
_NO_RECORD = "give the record that the tool wrote, not a model or an archive"
_ENDLESS_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){100}""")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One file of a record."""

    name: str
    """As it was named, for messages."""
    data: bytes
    beside: Callable[[str], bytes | None] = lambda _path: None
    """Reads a file by its path relative to this one's folder; None where there is none."""

    @property
    def file(self) -> str:
        """The name without its folder."""
        return re.split(r"[/\\]", self.name)[-1]

    def other(self, path: str) -> "Record | None":
        """Read the file at `path`, relative to this one's folder; None where there is none."""
        data = self.beside(path)
        return None if data is None else Record(name=path, data=data, beside=self.beside)


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with a record: collected, for one message."""

    where: str
    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, todo: str) -> None:
        """Note a fault; `what` says its line or place first. ManifestError where there is no end of them."""
        self.found.append((what, todo))
        if len(self.found) >= 2 * _MOST_FAULTS:
            self.check()

    def check(self) -> None:
        """Raise ManifestError if there is any."""
        if not self.found:
            return
        what = summary([what for what, _ in self.found], _MOST_FAULTS)
        raise ManifestError(what, where=self.where, todo="; ".join(dict.fromkeys(todo for _, todo in self.found)))


def text_of(record: Record) -> str:
    """Decode a text file: UTF-8, or UTF-16 with its mark, as PowerShell writes it; ManifestError."""
    check_size(record, len(record.data), MAX_MANIFEST)
    encoding = next((name for mark, name in _BOMS if record.data.startswith(mark)), "utf-8")
    try:
        text = record.data.decode(encoding)
    except UnicodeDecodeError as error:
        what = f"the record is not text: no {encoding.upper()} at byte {error.start}"
        raise ManifestError(what, where=record.name, todo="write it again as UTF-8") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ManifestError(f"line {line} holds a NUL character", where=record.name, todo="write it again as UTF-8")
    return text


def lines_of(record: Record, text: str) -> list[str]:
    """Split a text as editors count lines, whatever system wrote it; ManifestError where there are too many."""
    lines = re.split(r"\r\n|\n|\r", text)
    if len(lines) > MAX_LINES:
        raise ManifestError(f"the record has more than {MAX_LINES} lines", where=record.name, todo=_NO_RECORD)
    return lines


def json_of(record: Record, text: str) -> Any:
    """Read JSON; ManifestError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"the record is not JSON: {short(error, 'it is nested too deeply')}"
        raise ManifestError(what, where=record.name, todo="have the tool write it again") from error


def toml_of(record: Record, text: str) -> dict[str, Any]:
    """Read TOML; ManifestError."""
    check_size(record, len(text), MAX_TOML)
    if _ENDLESS_KEY.search(text):  # tomllib takes memory by the square of its parts
        raise ManifestError("the record has a key without end", where=record.name, todo=_NO_RECORD)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"the record is not TOML: {short(error, 'it is nested too deeply')}"
        raise ManifestError(what, where=record.name, todo="have the tool write it again") from error


def check_size(record: Record, size: int, limit: int) -> None:
    """Refuse a record that is larger than `limit` bytes; ManifestError."""
    if size > limit:
        raise ManifestError(f"the record is larger than {limit // 2**10} KiB", where=record.name, todo=_NO_RECORD)


def short(error: Exception, otherwise: str) -> str:
    """Return an error's text in one line; `otherwise` where it has none."""
    text = " ".join(str(error).split())
    return otherwise if isinstance(error, RecursionError) or not text else quote(text)[1:-1]


def quoted(text: str) -> str:
    """A text from outside as a message quotes it, without secrets."""
    return quote(scrub(text)) if len(text) <= 10_000 else f"{len(text)} characters"


def clean(text: str, longest: int = 300) -> str:
    """A text from outside as a manifest may have it: no secrets, on one line, and not without end."""
    plain = "".join(" " if unicodedata.category(it) in {"Cc", "Cs", "Zl", "Zp"} else it for it in scrub(text))
    return plain.strip()[:longest]


def texts(value: Any) -> Iterator[str]:
    """Yield the texts of what should be a list of texts."""
    yield from (it for it in (value if isinstance(value, list) else ()) if isinstance(it, str))


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of what should be a list of objects."""
    return [it for it in value if isinstance(it, dict)] if isinstance(value, list) else []


def text_at(value: Any, *keys: str) -> str | None:
    """Return the text at a path of keys; None where there is none, or something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else None


def fact(value: Any, *keys: str, longest: int = 300) -> str | None:
    """Return the text at a path of keys as a manifest may have it; None where there is none."""
    return clean(text_at(value, *keys) or "", longest) or None


def moment(text: str | None) -> datetime | None:
    """Read a time, in UTC where it has no zone; None for what is none."""
    try:
        read = datetime.fromisoformat(text or "")
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
