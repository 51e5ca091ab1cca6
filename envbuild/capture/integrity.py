"""The installed files, compared with what their distributions list."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Iterable, Iterator, NamedTuple

from envbuild.capture.conda import conda_files, conda_owners, conda_packages
from envbuild.capture.distributions import NO_INDEX, identity, is_module, metadata_paths, site_folders
from envbuild.capture.files import Facts, decoded, normal_name, read_bytes, read_text
from envbuild.capture.imports import LoadedFiles
from envbuild.capture.redact import scrub_line

SECONDS = 1.5
"""Limit of the quick way; files that it does not reach, as on a slow network, count as unchecked."""
HOUR = 3600 * 10**9
"""Nanoseconds."""
MOST_NAMES = 50
FEW = 64
"""Files, among which no time is the usual one."""
ADDED = re.compile(r"^\.\./|\.dist-info/")
MOST_OVERWRITTEN = 1000
HASHES = ("sha256", "sha384", "sha512")
THREADS = 8
SLICES = 64


class ListedFile(NamedTuple):
    """A file as a distribution lists it."""

    name: str
    """As seen from the folder that the metadata lies in, or absolute."""
    digest: str = ""
    """As RECORD writes it: `sha256=` and base64, or hexadecimal; empty where it is missing."""
    size: int | None = None


def listed_files(path: str, conda: Facts | None) -> Iterator[ListedFile] | None:
    """List what a distribution installed, by conda's list, RECORD or older tools' list of names; None without one."""
    if conda is not None:
        return _conda_rows(conda["record"], os.path.dirname(path))
    installer = (read_text(os.path.join(path, "INSTALLER")) or "").strip().lower()
    record = read_bytes(os.path.join(path, "RECORD"))
    if record is not None:
        # Operating systems remove files and strip libraries, and leave the RECORD of their build.
        return _record_rows(decoded(record)) if installer and installer not in NO_INDEX else None
    names, folder = read_text(os.path.join(path, "installed-files.txt")), os.path.basename(path)
    if names is None:
        return None
    return (ListedFile(os.path.normpath(os.path.join(folder, line))) for line in names.split("\n") if line.strip())


def _conda_rows(record: str, site: str) -> Iterator[ListedFile]:
    prefix, site = os.path.realpath(os.path.join(record, "..", "..")), os.path.realpath(site)
    inside, outside = os.path.relpath(site, prefix) + "/", os.path.relpath(prefix, site) + "/"
    for file in conda_files(record):
        path = file["path"]
        name = path[len(inside) :] if path.startswith(inside) else outside + path
        digest = "sha256=%s" % file["sha256"] if isinstance(file["sha256"], str) else ""
        yield ListedFile(name, digest, file["size"] if isinstance(file["size"], int) else None)


def _record_rows(text: str) -> Iterator[ListedFile]:
    """Read a RECORD as far as it is CSV."""
    try:
        for name, digest, size in (row[:3] + [""] * (3 - len(row)) for row in csv.reader(io.StringIO(text)) if row):
            yield ListedFile(name, digest, int(size) if size.isdecimal() and len(size) < 20 else None)
    except (csv.Error, ValueError):
        return


class Doubt(NamedTuple):
    """A file of the right size, whose content has to be hashed to know whether it changed."""

    changed: int
    """Nanoseconds since 1970."""
    name: str
    digest: str
    check: FileCheck


class FileCheck:
    """How the files of one distribution compare with its list."""

    def __init__(self, name: str, folder: str, package: Facts | None) -> None:
        self.name, self.site, self.of_conda = name, os.path.dirname(folder), package is not None
        try:
            self.listed_at = os.stat(package["record"] if package else os.path.join(folder, "RECORD")).st_mtime_ns
        except OSError:
            self.listed_at = 0
        self.missing: list[str] = []
        self.modified: list[str] = []
        self.overwritten: dict[str, str] = {}
        self.confirmed: set[str] = set()
        self.doubts: list[Doubt] = []
        self.files = self.unchecked = 0
        self.imported = False
        """Whether the process has imported a module of it, or loaded a library."""

    def compare(self, rows: Iterable[ListedFile], shared: SharedFiles, deadline: float, loaded: set[str]) -> set[str]:
        """Compare kind and size of files; return the entries of the site folder that they lie in.

        `loaded` has the names of those that the process has imported or loaded.
        """
        entries = set()
        for row in rows:
            entries.add(row.name.partition("/")[0])
            if row.name in loaded:
                self.imported = True
            # RECORD itself has no digest, and bytecode may be written again.
            if row.digest.partition("=")[0] in HASHES and not row.name.endswith(".pyc"):
                self.files += 1
                shared.add(self, row)
                if time.monotonic() <= deadline:
                    self._compare_file(row)
                else:
                    self.unchecked += 1
        return entries

    def path(self, name: str) -> str:
        path = os.path.join(self.site, name)
        # Where folders are links, `..` has to be resolved as the installer did, or as the links do.
        plain = os.path.normpath(path)
        return plain if name.startswith("..") and os.path.exists(plain) else path

    def _compare_file(self, row: ListedFile) -> None:
        try:
            found = os.stat(self.path(row.name))
        except (FileNotFoundError, NotADirectoryError):
            self.missing.append(row.name)
        except (OSError, ValueError):
            self.unchecked += 1
        else:
            if stat.S_ISREG(found.st_mode) and row.size in (None, found.st_size):
                self.doubts.append(Doubt(found.st_mtime_ns, row.name, row.digest, self))
            else:
                self.modified.append(row.name)

    def suspicious(self, shared: SharedFiles) -> list[Doubt]:
        """List the files that others list too, that changed after the list was written, or long before or after most.

        A file that was edited in the cache to which an installer links is older than the list. conda keeps the times
        of the build, which can be years apart.
        """
        # Installers add to the metadata, and write scripts.
        times = sorted(doubt.changed for doubt in self.doubts if not ADDED.search(doubt.name)) or [0]
        usual, far = times[len(times) // 2], math.inf if self.of_conda else HOUR
        if times[-1] - times[0] > far and len(times) <= FEW:
            return self.doubts
        return [
            doubt
            for doubt in self.doubts
            if doubt.changed > self.listed_at
            or abs(doubt.changed - usual) > far
            or (self.site, doubt.name) in shared.contested
        ]

    def settle(self, doubt: Doubt, differs: bool | None) -> None:
        if differs is None:
            self.unchecked += 1
        elif differs:
            self.modified.append(doubt.name)
        else:
            self.confirmed.add(doubt.name)

    def facts(self) -> Facts:
        changed = {"modified": self.modified, "missing": self.missing}
        facts: Facts = {key: _listed_names(names) for key, names in changed.items() if names}
        if facts:
            facts["changed_files"] = len(self.modified) + len(self.missing)
        if self.overwritten:
            named = sorted((scrub_line(name), owner) for name, owner in self.overwritten.items())
            facts["overwritten"] = dict(named[:MOST_OVERWRITTEN])
        return facts


class SharedFiles:
    """Files that several distributions list."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str], tuple[FileCheck, str]] = {}
        self.others: dict[tuple[str, str], list[FileCheck]] = {}
        self.contested: set[tuple[str, str]] = set()
        """Those that are listed with several digests."""

    def add(self, check: FileCheck, row: ListedFile) -> None:
        key = (check.site, row.name)
        first, digest = self.first.setdefault(key, (check, row.digest))
        if first is not check:
            self.others.setdefault(key, []).append(check)
            if digest != row.digest:
                self.contested.add(key)

    def settle(self) -> None:
        """Give each file to the distribution whose digest it has."""
        for key in self.contested:
            name, checks = key[1], [self.first[key][0], *self.others[key]]
            owner = next((check for check in checks if name in check.confirmed), None)
            # A manifest's pairs cannot have a name with `=` or spaces.
            if owner is not None and not re.search(r"[=\s]", name):
                for check in (check for check in checks if name in check.modified):
                    check.modified.remove(name)
                    check.overwritten[name] = owner.name


def _listed_names(names: list[str]) -> list[str]:
    return sorted(map(scrub_line, names))[:MOST_NAMES]


class SiteEntries:
    """The entries of the site folders and the distributions that own them."""

    def __init__(self) -> None:
        self.folders = site_folders()
        # Packages of conda without metadata belong to no distribution, but are known.
        self.owners: dict[str, str | None] = {
            entry: None for package in conda_packages() for entry in package["entries"]
        }
        self.unknown: set[str] = set()

    def claim(self, folder: str, name: str | None, entries: Iterable[str] | None) -> None:
        """Note a distribution's entries in its folder; without a list, the folder's other entries stay unknown."""
        if entries is None:
            self.unknown.add(folder)
        for entry in entries or ():
            self.owners[os.path.join(folder, entry)] = name

    def pth_facts(self) -> list[Facts]:
        """Describe the .pth files of the site folders."""
        facts = []
        for path in (os.path.join(folder, name) for folder, name in self._entries() if name.endswith(".pth")):
            data = read_bytes(path)
            lines = decoded(data or b"").lstrip("\ufeff").split("\n")
            item = {
                "name": scrub_line(os.path.basename(path)),
                "sha256": hashlib.sha256(data or b"").hexdigest(),
                "code": any(line.startswith(("import ", "import\t")) for line in lines),
                "owner": self.owners.get(path),
            }
            facts += [item] if data is not None else []
        return sorted(facts, key=lambda item: (str(item["name"]), str(item["sha256"])))

    def unowned(self) -> list[str]:
        """List the modules and packages in the site folders that no distribution lists."""
        entries = (item for item in self._entries() if item[0] not in self.unknown and is_module(*item))
        return _listed_names([name for folder, name in entries if os.path.join(folder, name) not in self.owners])

    def _entries(self) -> Iterator[tuple[str, str]]:
        for folder in self.folders:
            try:
                yield from ((folder, name) for name in os.listdir(folder))
            except OSError:
                continue


def installation_facts(
    distributions: dict[str, Facts], deep: bool, seconds: float = SECONDS, loaded: LoadedFiles | None = None
) -> Facts:
    """Compare every file with its RECORD, for `seconds` unless `deep`, and note in each distribution what differs.

    `loaded` gets the distributions that its files belong to.
    """
    deadline = math.inf if deep else time.monotonic() + seconds
    conda, entries, shared = conda_owners(), SiteEntries(), SharedFiles()
    checks: list[FileCheck] = []
    for folder, facts in distributions.items():
        package = conda.get(os.path.realpath(folder))
        rows, check = listed_files(folder, package), FileCheck(facts["name"], folder, package)
        names = loaded.names(check.site) if loaded else set()
        own = check.compare(rows, shared, deadline, names) if rows is not None else None
        entries.claim(check.site, check.name, own)
        if loaded and (check.imported or loaded.has_unlisted(folder, facts, listed=rows is not None)):
            loaded.distributions.append(normal_name(check.name))
        checks.append(check)
    _settle([doubt for check in checks for doubt in (check.doubts if deep else check.suspicious(shared))], deadline)
    shared.settle()
    for facts, check in zip(distributions.values(), checks):  # noqa: B905 - 3.10's
        facts.update(check.facts())
    unreadable = []
    # Distributions that others shadow own entries as well.
    for folder in (path for path in metadata_paths() if path not in distributions):
        name = (identity(folder) or [None])[0]
        rows = listed_files(folder, conda.get(os.path.realpath(folder)))
        claimed = {row.name.partition("/")[0] for row in rows} if rows is not None else None
        entries.claim(os.path.dirname(folder), name, claimed)
        unreadable += [] if name else [os.path.basename(folder)]
    return {
        "method": "sha256" if deep else "size and time",
        "files": sum(check.files for check in checks),
        "unchecked": sum(check.unchecked for check in checks),
        "unreadable": _listed_names(unreadable) or None,
        "pth": entries.pth_facts(),
        "unowned": entries.unowned(),
    }


def _settle(doubts: list[Doubt], deadline: float) -> None:
    """Hash files, the last changed first: files that were copied without their times all look edited."""
    doubts.sort(key=lambda doubt: -doubt.changed)

    def hashed(start: int) -> list[tuple[Doubt, bool | None]]:
        return [(doubt, _differs(doubt, deadline)) for doubt in doubts[start::SLICES]]

    results: Iterable[list[tuple[Doubt, bool | None]]] = map(hashed, range(min(SLICES, len(doubts))))
    if len(doubts) >= SLICES:
        try:
            with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
                results = list(pool.map(hashed, range(SLICES)))
        except RuntimeError:  # Python starts no thread at exit
            pass
    for doubt, differs in (item for slice_results in results for item in slice_results):
        doubt.check.settle(doubt, differs)


def _differs(doubt: Doubt, deadline: float) -> bool | None:
    """Tell whether a file's content differs from its list; None if it cannot be read or it is too late."""
    algorithm, _, expected = doubt.digest.partition("=")
    digest = hashlib.new(algorithm)
    try:
        with open(doubt.check.path(doubt.name), "rb", buffering=0) as file:
            while time.monotonic() <= deadline:
                data = file.read(1 << 20)
                if not data:
                    encoded = base64.urlsafe_b64encode(digest.digest()).decode("ascii")
                    return expected.rstrip("=") not in (encoded.rstrip("="), digest.hexdigest())
                digest.update(data)
    except OSError:
        pass
    return None
