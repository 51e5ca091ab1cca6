"""What is really installed: files held against what their distributions list."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import stat
import time
from typing import Any, Callable, Iterable, NamedTuple

from envbuild.capture.conda import conda_owners
from envbuild.capture.distributions import identity, metadata_paths
from envbuild.capture.listed import Listed, listed_files
from envbuild.capture.reading import Facts
from envbuild.capture.redact import scrub_line
from envbuild.capture.sites import Land, listed_names

SECONDS = 1.5
"""What the quick way may take; what it does not reach, as on a slow network, counts as unchecked."""
HOUR = 3600 * 10**9
"""Nanoseconds."""
FEW = 64
"""Files, of which nothing tells what time is the usual one."""
ADDED = re.compile(r"^\.\./|\.dist-info/")
MOST_OVERWRITTEN = 1000
HASHES = ("sha256", "sha384", "sha512")
SLICES = 64
THREADS = 8


class Doubt(NamedTuple):
    """A file of the right size: whether it is the right one, only its content can tell."""

    changed: int
    """Nanoseconds since 1970."""
    name: str
    digest: str
    check: Check


class Check:
    """How the files of one distribution compare with its list."""

    def __init__(self, name: str, folder: str, package: Facts | None) -> None:
        self.name, self.site = name, os.path.dirname(folder)
        self.written = _time_of(package["record"] if package else os.path.join(folder, "RECORD"))
        self.of_conda = package is not None
        self.missing: list[str] = []
        self.modified: list[str] = []
        self.overwritten: dict[str, str] = {}
        self.confirmed: set[str] = set()
        self.doubts: list[Doubt] = []
        self.files = self.unchecked = 0

    def hold(self, rows: Iterable[Listed], shared: Shared, deadline: float) -> set[str]:
        """Compare kind and size of files; return which entries of the site folder they lie in."""
        entries = set()
        for row in rows:
            entries.add(row.name.partition("/")[0])
            # RECORD itself has no digest, and bytecode is made again where it is needed.
            if row.digest.partition("=")[0] in HASHES and not row.name.endswith(".pyc"):
                self.files += 1
                shared.add(self, row)
                if time.monotonic() <= deadline:
                    self._compare(row)
                else:
                    self.unchecked += 1
        return entries

    def path(self, name: str) -> str:
        path = os.path.join(self.site, name)
        # Where folders are links, `..` is to be taken as the installer saw it, or as it is.
        plain = os.path.normpath(path)
        return plain if name.startswith("..") and os.path.exists(plain) else path

    def _compare(self, row: Listed) -> None:
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

    def doubtful(self, shared: Shared, deep: bool) -> list[Doubt]:
        """Return the files to hash."""
        return self.doubts if deep else self._suspicious(self.doubts, shared)

    def _suspicious(self, doubts: list[Doubt], shared: Shared) -> list[Doubt]:
        """List the files that others list too, that changed after the list was written, or long before or after most.

        What was edited in the cache that an installer links to is older than the list. conda keeps the times of
        building, which can be years apart.
        """
        # Installers add to the metadata, and write scripts.
        times = sorted(doubt.changed for doubt in doubts if not ADDED.search(doubt.name)) or [0]
        usual, far = times[len(times) // 2], math.inf if self.of_conda else HOUR
        if times[-1] - times[0] > far and len(times) <= FEW:
            return doubts
        return [
            doubt
            for doubt in doubts
            if doubt.changed > self.written
            or abs(doubt.changed - usual) > far
            or (self.site, doubt.name) in shared.claims
        ]

    def settle(self, doubt: Doubt, differs: bool | None) -> None:
        if differs is None:
            self.unchecked += 1
        elif differs:
            self.modified.append(doubt.name)
        else:
            self.confirmed.add(doubt.name)

    def yield_to(self, name: str, owner: Check) -> None:
        """Note that a file which is not this distribution's is another one's."""
        if name in self.modified and not re.search(r"[=\s]", name):  # which a manifest's pairs cannot have
            self.modified.remove(name)
            self.overwritten[name] = owner.name

    def facts(self) -> Facts:
        changed = {"modified": self.modified, "missing": self.missing}
        facts: Facts = {key: listed_names(names) for key, names in changed.items() if names}
        if facts:
            facts["changed_files"] = len(self.modified) + len(self.missing)
        if self.overwritten:
            named = sorted((scrub_line(name), owner) for name, owner in self.overwritten.items())
            facts["overwritten"] = dict(named[:MOST_OVERWRITTEN])
        return facts


class Shared:
    """Files that several distributions list."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str], tuple[Check, str]] = {}
        self.others: dict[tuple[str, str], list[Check]] = {}
        self.claims: set[tuple[str, str]] = set()
        """Those that are listed with several digests."""

    def add(self, check: Check, row: Listed) -> None:
        key = (check.site, row.name)
        first, digest = self.first.setdefault(key, (check, row.digest))
        if first is not check:
            self.others.setdefault(key, []).append(check)
            if digest != row.digest:
                self.claims.add(key)

    def settle(self) -> None:
        """Give each file to the distribution whose digest it has."""
        for key in self.claims:
            checks = [self.first[key][0], *self.others[key]]
            owner = next((check for check in checks if key[1] in check.confirmed), None)
            for check in checks:
                if owner is not None:
                    check.yield_to(key[1], owner)


def _time_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def installation_facts(distributions: dict[str, Facts], deep: bool, seconds: float = SECONDS) -> Facts:
    """Hold every file against its RECORD, and note in each distribution what differs.

    The quick way gives up after `seconds`.
    """
    deadline = math.inf if deep else time.monotonic() + seconds
    conda, land = conda_owners(), Land()
    checks: list[Check] = []
    shared = Shared()
    for folder, facts in distributions.items():
        package = conda.get(os.path.realpath(folder))
        rows, check = listed_files(folder, package), Check(facts["name"], folder, package)
        land.claim(check.site, check.name, check.hold(rows, shared, deadline) if rows is not None else None)
        checks.append(check)
    _settle([doubt for check in checks for doubt in check.doubtful(shared, deep)], deadline)
    shared.settle()
    for facts, check in zip(distributions.values(), checks):  # noqa: B905 - 3.10's
        facts.update(check.facts())
    unreadable = _claim_others(land, distributions, conda)
    return {
        "method": "sha256" if deep else "size and time",
        "files": sum(check.files for check in checks),
        "unchecked": sum(check.unchecked for check in checks),
        "unreadable": listed_names(unreadable) or None,
        "pth": land.pth_facts(),
        "unowned": land.unowned(),
    }


def _claim_others(land: Land, distributions: dict[str, Facts], conda: dict[str, Facts]) -> list[str]:
    """Note what belongs to distributions that others shadow; return the metadata that tells no name."""
    unreadable = []
    for folder in metadata_paths():
        if folder not in distributions:
            name = (identity(folder) or [None])[0]
            rows = listed_files(folder, conda.get(os.path.realpath(folder)))
            entries = {row.name.partition("/")[0] for row in rows} if rows is not None else None
            land.claim(os.path.dirname(folder), name, entries)
            unreadable += [] if name else [os.path.basename(folder)]
    return unreadable


def _settle(doubts: list[Doubt], deadline: float) -> None:
    """Hash files, those first that changed last: what is copied without its times makes many look edited."""
    doubts.sort(key=lambda doubt: -doubt.changed)

    def hashed(start: int) -> list[tuple[Doubt, bool | None]]:
        return [(doubt, _differs(doubt, deadline)) for doubt in doubts[start::SLICES]]

    for results in _in_threads(hashed, range(min(SLICES, len(doubts)))):
        for doubt, differs in results:
            doubt.check.settle(doubt, differs)


def _in_threads(function: Callable[[int], list[tuple[Doubt, bool | None]]], numbers: range) -> list[Any]:
    """Call the function with each number; hashing leaves the other threads of the process alone."""
    if len(numbers) < SLICES:
        return [function(number) for number in numbers]
    try:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            return list(pool.map(function, numbers))
    except RuntimeError:  # an interpreter that ends starts no thread
        return [function(number) for number in numbers]


def _differs(doubt: Doubt, deadline: float) -> bool | None:
    """Tell whether a file's content is another than listed; None if it cannot be read or it is too late."""
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
