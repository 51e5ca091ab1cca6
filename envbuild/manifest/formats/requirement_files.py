"""pip's requirements files: their lines, options and includes (pip's documentation, Requirements File Format)."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.manifest.formats.pins import file_name, sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, lines_of, quoted, text_of
from envbuild.manifest.packages import exact_version

_MAX_FILES = 50
"""As many files are included; a link to its own folder makes names without end."""
_COMMENT = re.compile(r"(^|\s)#.*$")
_OPTION = re.compile(r"(-[recif])\s*(\S.*)|(--[a-z][a-z-]*)(?:(?:\s+|\s*=\s*)(.*))?")
_INCLUDES = {"-r": "-r", "--requirement": "-r", "-c": "-c", "--constraint": "-c"}
_DEFAULTS = {"-i", "--index-url", "--pypi-url"}
_INDEXES = _DEFAULTS | {
    "--extra-index-url",
    "-f",
    "--find-links",
    "--no-index",
    "--trusted-host",
}
_WITHOUT_FACTS = {
    "--pre", "--prefer-binary", "--require-hashes", "--no-binary", "--only-binary", "--use-feature", "--all-releases",
    "--only-final",
}  # fmt: skip
_HASH = re.compile(r"--hash[=\s]\s*sha256:([0-9A-Fa-f]{64})\b")
_ADDRESS = re.compile(r"(\w+\+)?\w+://|\.{0,2}/|[A-Za-z]:[\\/]")
_UNSAFE = re.compile(r"# The following packages (?:are|were) .*(?:unsafe|not pinned)")
"""pip-compile leaves out setuptools and pip, and says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One requirement of a requirements file, as it is written."""

    text: str
    """A requirement (PEP 508), or an address without a name."""
    place: str
    """`line 3`, `line 3 of base.txt`."""
    hashes: tuple[str, ...] = ()
    """SHA-256 digests."""
    editable: bool = False
    comment: str = ""
    """The comment on the line before it."""

    @property
    def is_address(self) -> bool:
        """Whether it is a URL or path without `name @` before it."""
        return self.editable or bool(_ADDRESS.match(self.text)) or (" " not in self.text and bool(file_name(self.text)))


@dataclass(slots=True)
class RequirementsFile:
    """Reads a requirements file and what it includes, each file once."""

    faults: Faults
    lines: list[Line] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)
    """Exact versions that constraints name, by normalised name."""
    indexes: list[str] = field(default_factory=list)
    """The address of `--index-url`; for each other index or folder that it names an empty text."""
    notes: list[str] = field(default_factory=list)
    lacking: bool = False
    """Whether something is left out: by pip-compile, which says so, or a folder that no line names."""
    _read: set[tuple[str, str]] = field(default_factory=set)

    def read(self, record: Record, kind: str = "-r", path: str = "") -> None:
        """Read a file; `path` is empty for the record itself, else what it was included by."""
        if (kind, path) in self._read:
            return
        self._read.add((kind, path))
        comment = ""
        for number, line in _logical_lines(lines_of(record, text_of(record))):
            place = f"line {number}" + (f" of {clean(path)}" if path else "")
            bare = _COMMENT.sub("", line).strip()
            if bare.startswith("-"):
                self._option(record, bare, place, path, comment)
            elif bare:
                self._requirement(bare, place, kind)
            comment = line.strip() if not bare else ""
            self.lacking |= bool(_UNSAFE.match(comment))

    def take(self, text: str, place: str, record: Record) -> None:
        """Take one entry of a list that stands for a requirements file, as conda's `pip:` does."""
        if text.startswith("-"):
            self._option(record, text, place, "", "")
        else:
            self._requirement(text.strip(), place, "-r")

    def _requirement(self, text: str, place: str, kind: str) -> None:
        asked, *options = re.split(r"(?<!\s)\s+(?=--?[A-Za-z])", text, maxsplit=1)
        digests = (sha256_of(it) for it in _HASH.findall(options[0] if options else ""))
        hashes = tuple(dict.fromkeys(it for it in digests if it))
        if kind == "-r":
            self.lines.append(Line(text=asked, place=place, hashes=hashes))
        else:
            self._limit(asked, place)

    def _limit(self, text: str, place: str) -> None:
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):
            return self.faults.add(f"{place}: this is no constraint: {quoted(text)}", "correct or remove the line")
        version = exact_version(requirement)
        if version and requirement.marker is None:
            self.limits[canonicalize_name(requirement.name)] = version
        return None

    def _option(self, record: Record, text: str, place: str, path: str, comment: str) -> None:
        match = _OPTION.fullmatch(text)
        short, value, long, rest = match.groups() if match else (None, None, None, None)
        name, value = short or long, (value or rest or "").strip().strip("'\"")
        if name in _INCLUDES:
            self._include(record, _INCLUDES[name], value, place, path)
        elif name in {"-e", "--editable"}:
            self.lines.append(Line(text=value, place=place, editable=True, comment=comment))
        elif name in _INDEXES:
            self._tell_index(name, value, place)
        elif name not in _WITHOUT_FACTS:
            self.faults.add(f"{place}: this is no option of a requirements file: {quoted(text)}", "remove the line")

    def _include(self, record: Record, kind: str, target: str, place: str, path: str) -> None:
        where = posixpath.normpath(posixpath.join(posixpath.dirname(path), target.removeprefix("file://")))
        if len(self._read) >= _MAX_FILES and (kind, where) not in self._read:
            return self.faults.add(f"{place}: more than {_MAX_FILES} files are included", "put them into fewer files")
        if "://" in target or posixpath.isabs(where) or where.startswith("..") or "\\" in target:
            what = f"{place}: {clean(target)} is not in the folder of the record"
            return self.faults.add(what, "put every included file beside the record, and name it without its folder")
        other = record.other(where)
        if other is None:
            return self.faults.add(f"{place}: there is no {clean(where)} beside the record", "put the file there")
        return self.read(other, kind, where)

    def _tell_index(self, name: str, value: str, place: str) -> None:
        """Say that an index is named, by its host alone: what else its address has may be a secret."""
        host = _host(value)
        if host:
            self.indexes.append(value if name in _DEFAULTS else "")
            self.notes.append(
                f"{place} names the index or folder at {host} ({name}); give it to pip's or uv's settings, else all is "
                "taken from the index that they name"
            )


def _host(address: str) -> str:
    try:
        return clean(urlsplit(address).hostname or "")
    except ValueError:
        return ""


def _logical_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Join lines that end in a backslash, as pip does; a line of comment goes on nowhere."""
    begun = 0
    parts: list[str] = []
    for number, line in enumerate(lines, 1):
        begun = begun if parts else number
        continued = line.endswith("\\") and not _COMMENT.match(line)
        parts.append(line.removesuffix("\\") if continued else line)
        if not continued:
            yield begun, " ".join(parts) if len(parts) > 1 else line
            parts = []
    if parts:
        yield begun, " ".join(parts)
