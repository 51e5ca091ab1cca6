"""Known vulnerabilities of distributions, from a copy of OSV's database for PyPI: no network, and nothing is told.

https://ossf.github.io/osv-schema, "affected" and "Evaluation". The copy is the database's own all.zip, or a folder of
its entries.
"""

import json
import lzma
import stat
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import UsageError
from envbuild.verify.findings import Finding

RULE = "vulnerable"
_ECOSYSTEM = "PyPI"
_LARGEST = 16 << 20
"""Bytes of one entry; OSV's largest has under a megabyte."""
_EMPTY = "the database has no entries"
_MALICIOUS = "MAL-"
"""What the names of entries about malicious packages begin with."""
_WHY = "What is known can be used by others: against a server by its requests, elsewhere by the files that it opens."
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""What zipfile ends with where an archive is damaged, has a password, or is of a kind that it does not know."""
_NAMED = 3
_TODO = "give OSV's all.zip for PyPI, as osv-vulnerabilities.storage.googleapis.com has it, or a folder of its entries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """One entry, as far as it is about one distribution."""

    name: str
    """Normalised (PEP 503)."""
    ids: frozenset[str]
    """Its own, and those of others for the same."""
    id: str
    summary: str
    versions: frozenset[str]
    """Those that are listed one by one."""
    ranges: tuple[tuple[tuple[str, str], ...], ...]
    """Each a list of events: `("introduced", "1.0")`, `("fixed", "1.2")`."""

    @property
    def fixed(self) -> tuple[str, ...]:
        """The versions that it calls repaired, older ones too."""
        return tuple(dict.fromkeys(text for events in self.ranges for what, text in events if what == "fixed"))

    def affects(self, version: str) -> bool:
        """Whether it is about this version; InvalidVersion where that cannot be told."""
        if version in self.versions:
            return True
        own = Version(version)
        return any(_version(it) == own for it in self.versions) or any(_within(own, it) for it in self.ranges)


@dataclass(slots=True)
class Database:
    """What was read of a database: only what is about the distributions that were asked for."""

    advisories: dict[str, list[Advisory]] = field(default_factory=lambda: defaultdict(list))
    entries: int = 0
    """How many entries it has."""
    broken: list[str] = field(default_factory=list)
    """Names of entries that could not be read."""
    newest: str = ""
    """When the last of its entries was changed: `2026-11-20T08:00:00Z`."""


Versions = Collection[tuple[str, str]]
"""Distributions: normalised name and version."""


def check_vulnerable(packages: Versions, database: Path) -> tuple[Finding, ...]:
    """Hold distributions against a database; UsageError where there is none. What is said twice is one finding."""
    return vulnerabilities(packages, read_database(database, [name for name, _ in packages]))


def vulnerabilities(packages: Versions, read: Database) -> tuple[Finding, ...]:
    """Hold distributions against what was read of a database for them."""
    found = [it for name, version in sorted(packages) for it in _of_package(name, version, read)]
    return (*(found or [_nothing(packages, read)]), *_broken(read))


def read_database(database: Path, names: Iterable[str]) -> Database:
    """Read all entries, one after the other, and keep what is about these distributions."""
    wanted, read = frozenset(names), Database()
    for name, data in _entries(database):
        read.entries += 1
        try:
            value = json.loads(data)
            read.newest = max(read.newest, str(value.get("modified") or ""))
            for advisory in () if value.get("withdrawn") else _advisories(value, wanted):
                read.advisories[advisory.name].append(advisory)
        except _WRONG:
            read.broken.append(name)
    if not read.entries:
        raise UsageError(_EMPTY, where=f"--osv {database}", todo=_TODO)
    return read


def check_database(database: Path) -> None:
    """UsageError where no database lies there; no more than one entry is read."""
    if next(_entries(database), None) is None:
        raise UsageError(_EMPTY, where=f"--osv {database}", todo=_TODO)


def _entries(database: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if database.is_dir():
            yield from ((path.name, _file(path)) for path in sorted(database.glob("*.json")))
            return
        with _archive(database) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".json"):
                    yield info.filename, _member(archive, info)
    except _DAMAGED as error:
        raise UsageError(f"the database cannot be read: {error}", where=f"--osv {database}", todo=_TODO) from error


def _archive(path: Path) -> zipfile.ZipFile:
    """Open it; OSError for what would block for ever, such as a pipe."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is neither a file nor a folder")
    return zipfile.ZipFile(path)


def _file(path: Path) -> bytes:
    """One entry of a folder; empty, which is no entry, where it is no file or cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return _whole(file)
    except OSError:
        return b""


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """One entry of an archive; empty, which is no entry, where its bytes are damaged or too many."""
    try:
        with archive.open(info) as file:
            return _whole(file)
    except _DAMAGED:
        return b""


def _whole(file: IO[bytes]) -> bytes:
    """All of it, or nothing where it is too large: what is read stays within bounds, whatever its header says."""
    data = file.read(_LARGEST + 1)
    return data if len(data) <= _LARGEST else b""


def _advisories(value: Mapping[str, Any], wanted: frozenset[str]) -> Iterator[Advisory]:
    for affected in value.get("affected") or ():
        package = affected.get("package") or {}
        if str(package.get("ecosystem", "")).partition(":")[0] != _ECOSYSTEM:
            continue
        name = canonicalize_name(str(package.get("name", "")))
        if name in wanted:
            ranges = (it for it in affected.get("ranges") or () if it.get("type") in ("ECOSYSTEM", "SEMVER"))
            yield Advisory(
                name=name,
                id=str(value["id"]),
                ids=frozenset(map(str, (value["id"], *(value.get("aliases") or ())))),
                summary=" ".join(str(value.get("summary") or value.get("details") or "").split())[:200],
                versions=frozenset(map(str, affected.get("versions") or ())),
                ranges=tuple(tuple(_events(it.get("events") or ())) for it in ranges),
            )


def _events(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for event in events:
        yield from ((str(what), str(text)) for what, text in event.items())


def _within(version: Version, events: Sequence[tuple[str, str]]) -> bool:
    """The schema's own evaluation: events in the order of their versions, each of which begins or ends it."""
    limits = [text for what, text in events if what == "limit" and text != "*"]
    if limits and not any(version < Version(text) for text in limits):
        return False
    inside = False
    for what, text in sorted(events, key=_order):
        if what == "introduced" and (text == "0" or version >= Version(text)):
            inside = True
        elif (what == "fixed" and version >= Version(text)) or (what == "last_affected" and version > Version(text)):
            inside = False
    return inside


def _order(event: tuple[str, str]) -> tuple[bool, Version, bool]:
    """By version, `0` before all; what ends it comes before what begins it anew in the same version."""
    what, text = event
    return text not in ("0", "*"), Version("0") if text in ("0", "*") else Version(text), what == "introduced"


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _of_package(name: str, version: str, read: Database) -> Iterator[Finding]:
    for group in _same(it for it in read.advisories.get(name, ()) if _affects(it, version, read)):
        yield _finding(name, version, group)


def _affects(advisory: Advisory, version: str, read: Database) -> bool:
    try:
        return advisory.affects(version)
    except InvalidVersion:
        read.broken.append(advisory.id)
        return False


def _same(advisories: Iterable[Advisory]) -> list[list[Advisory]]:
    """Those that share a name are about the same."""
    groups: list[list[Advisory]] = []
    for one in sorted(advisories, key=lambda it: it.id):
        ours = [group for group in groups if any(one.ids & other.ids for other in group)]
        groups = [group for group in groups if group not in ours]
        groups.append([*(it for group in ours for it in group), one])
    return groups


def _finding(name: str, version: str, group: Sequence[Advisory]) -> Finding:
    first = group[0]
    others = sorted({it for one in group for it in one.ids} - {first.id})
    known = first.id + (f" ({', '.join(others)})" if others else "")
    summary = next((it.summary for it in group if it.summary), "")
    fixed = _repaired(version, group)
    malicious = any(it.startswith(_MALICIOUS) for one in group for it in one.ids)
    todo = f"train again with {name} {' or '.join(fixed)}" if fixed else f"train again without {name} {version}"
    return Finding(
        about=name,
        rule=RULE,
        agrees=False,
        severity="error" if malicious else "warning",
        says=f"{version} has {known}{f': {summary}' if summary else ''}",
        wanted=", ".join(fixed),
        found=version,
        why=_WHY,
        todo=f"{todo}; or accept it in a policy, with the reason why it cannot be used here",
        packages=(f"{name} {version}",),
    )


def _repaired(version: str, group: Sequence[Advisory]) -> tuple[str, ...]:
    """The later versions that repair it, the earliest first: what one entry calls repaired another may still count."""
    own = _version(version)
    if own is None:
        return ()
    later = {found: text for one in group for text in one.fixed if (found := _version(text)) and found > own}
    return tuple(text for _, text in sorted(later.items()) if all(_spares(one, text) for one in group))


def _spares(advisory: Advisory, version: str) -> bool:
    try:
        return not advisory.affects(version)
    except InvalidVersion:
        return False


def _nothing(packages: Versions, read: Database) -> Finding:
    until = f", the newest of {read.newest[:10]}" if read.newest else ""
    says = f"none of {len(packages)} distributions is among {read.entries} entries{until}"
    return Finding(about=RULE, agrees=True, says=says)


def _broken(read: Database) -> Iterator[Finding]:
    if read.broken:
        names = ", ".join(it[:100] for it in read.broken[:_NAMED])
        count = len(read.broken)
        yield Finding(
            about="database",
            rule=RULE,
            agrees=False,
            severity="warning",
            says=f"{count} of its {read.entries} entries cannot be read: {names}",
            why="What they are about was not looked for.",
            todo="fetch the database again",
        )
