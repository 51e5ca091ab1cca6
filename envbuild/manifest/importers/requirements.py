"""`pip freeze` and requirements files with their options and includes: what was installed, or was asked for."""

import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from envbuild.manifest.importers.environment import RecordOptions
from envbuild.manifest.importers.pins import Pins, file_name, index_origin, of_address, parse_requirement, sha256_of
from envbuild.manifest.importers.record import Faults, Record, clean, lines_of, quoted, text_of
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import exact_version

_MAX_FILES = 50
"""As many files are included; a link to its own folder makes names without end."""
_COMMENT = re.compile(r"(^|\s)#.*$")
_OPTION = re.compile(r"(-[recif])\s*(\S.*)|(--[a-z][a-z-]*)(?:(?:\s+|\s*=\s*)(.*))?")
_INCLUDES = {"-r": "-r", "--requirement": "-r", "-c": "-c", "--constraint": "-c"}
_DEFAULTS = {"-i", "--index-url", "--pypi-url"}
_INDEXES = _DEFAULTS | {"--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host"}
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
            return self.lines.append(Line(text=asked, place=place, hashes=hashes))
        limit = parse_requirement(asked)
        if limit is None:
            what = f"{place}: this is not a constraint: {quoted(asked)}"
            return self.faults.add(what, "correct or remove the line")
        version = exact_version(limit)
        if version and limit.marker is None:
            self.limits[canonicalize_name(limit.name)] = version
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
            self._note_index(name, value, place)
        elif name not in _WITHOUT_FACTS:
            self.faults.add(f"{place}: this is not an option of a requirements file: {quoted(text)}", "remove the line")

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

    def _note_index(self, name: str, value: str, place: str) -> None:
        """Note that an index is named, by its host alone: what else its address has may be a secret."""
        with suppress(ValueError):
            host = clean(urlsplit(value).hostname or "")
            if not host:
                return
            self.indexes.append(value if name in _DEFAULTS else "")
            self.notes.append(
                f"{place} names the index or folder at {host} ({name}); give it to pip's or uv's settings, else all is "
                "taken from the index that they name"
            )


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


ONLY_ASKED = "the record lists what was asked for, not everything that was installed"
HIDDEN = "pip freeze leaves out pip, setuptools and wheel unless --all is given"
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9][A-Za-z0-9._-]*)")
_EDITABLE_COMMENT = re.compile(r"# Editable .*\(([A-Za-z0-9._-]+)==([^()\s]+)\)")
"""What `pip freeze` writes above an editable install that it has no repository of."""


def read_freeze(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read what `pip freeze` or `uv pip freeze` printed; ManifestError."""
    file, pins = _read(record, options)
    everything = "pip" in pins.found and not file.lacking
    return _environment(file, pins, complete=everything, notes=() if "pip" in pins.found else (HIDDEN,))


def read_requirements(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read a requirements file; with hashes it is whole, as pip demands them for all or for none; ManifestError."""
    file, pins = _read(record, options)
    hashed = bool(file.lines) and all(line.hashes for line in file.lines) and not file.lacking
    return _environment(file, pins, complete=hashed, notes=() if hashed else (ONLY_ASKED,))


def take_lines(file: RequirementsFile, pins: Pins) -> None:
    """Take every line of requirements files as a distribution."""
    pins.limits.update(file.limits)
    for line in file.lines:
        if line.is_address:
            _take_address(line, file, pins)
        else:
            pins.require(line.text, line.place, line.hashes)


def _read(record: Record, options: RecordOptions) -> tuple[RequirementsFile, Pins]:
    pins = Pins.begin(record, options)
    file = RequirementsFile(pins.faults)
    file.read(record)
    take_lines(file, pins)
    if not pins.found and not pins.faults.found:
        pins.faults.add("the record names no distribution", "give the record that the tool wrote")
    pins.faults.check()
    return file, pins


def _environment(file: RequirementsFile, pins: Pins, *, complete: bool, notes: tuple[str, ...]) -> TrainingManifest:
    environment = pins.manifest(complete=complete, notes=(*notes, *file.notes))
    if len(file.indexes) != 1 or not file.indexes[0]:
        return environment
    # The file names just one index, which replaces the default one.
    origins = (index_origin(file.indexes[0], it.origin.hashes) for it in pins.distributions)
    made = (
        replace(it, origin=origin) if it.origin.kind == "index" else it
        for it, origin in zip(pins.distributions, origins, strict=True)
    )
    return replace(environment, distributions=tuple(made))


def _take_address(line: Line, file: RequirementsFile, pins: Pins) -> None:
    """Take what is named by an address: its name is in the fragment, in a comment, or in the file's name."""
    said = _EDITABLE_COMMENT.match(line.comment) if line.editable else None
    egg, filename = _EGG.search(line.text), file_name(line.text)
    if said:
        pins.add(of_address(line.text, name=said[1], version=said[2]), line.place)
    elif egg or filename:
        name = egg[1] if egg else filename[0] if filename else ""
        pins.add(of_address(line.text, name=name, hashes=line.hashes), line.place)
    else:
        place, file.lacking = clean(line.text), True
        left_out = f"{line.place} names no distribution, and is left out: {'-e ' * line.editable}{place}"
        todo = "if the model needs it, write NAME==VERSION there, and give its wheel by --find-links DIR"
        file.notes.append(f"{left_out}; {todo}")
