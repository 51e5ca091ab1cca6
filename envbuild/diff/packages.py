"""Owners of files: Python's distributions by their RECORD, Debian's packages by dpkg's lists."""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

from packaging.utils import canonicalize_name

from envbuild.check import LIST, PROGRAM
from envbuild.oci.rootfs import Tree, resolve
from envbuild.recipe import PREFIX
from envbuild.wheel.install import RecordError, Row, read_record

RECORD = re.compile(r"(?:.*/)?[^/]+\.dist-info/RECORD")
MARK = re.compile(r"(?:.*/)?[^/]+\.dist-info/(?:INSTALLER|REQUESTED|direct_url\.json)")
"""Files that name the installer of a distribution, and why it was installed."""
BYTECODE = re.compile(r"(?:.*/)?__pycache__/[^/]+\.pyc")
BYTECODE_FOLDER = re.compile(r"(?:.*/)?__pycache__")
_DIST_INFO = re.compile(r"((?:.*/)?([^/-]+)-([^/]+)\.dist-info)(?:/.*)?")
_STATUS = "var/lib/dpkg/status"
_DPKG_FILE = re.compile(r"var/lib/dpkg/info/([^/:]+)(?::[^/.]+)?\.[^/.]+")
_OF_SOURCE = re.compile(r"((?:.*/)?)__pycache__/([^/.]+)\.[^/]*pyc")


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package, whatever its version."""

    kind: Literal["debian", "envbuild", "python"]
    name: str
    """As its index writes it: normalised for Python."""


_CHECK = Package("envbuild", "check")
_OF_CHECK = {f"{PREFIX.strip('/')}/{path}" for path in (PROGRAM, LIST)}


class Packages:
    """The packages of one image, and the owner of each path."""

    def __init__(self, tree: Tree) -> None:
        self._versions: defaultdict[Package, set[str]] = defaultdict(set)
        self._files: dict[str, Package] = {}
        self._read_python(tree)
        self._read_debian(tree)
        self._folders = _folders(self._files)

    def version(self, package: Package) -> str:
        """Its version, all where it is installed more than once; empty where it is absent or not known."""
        return ", ".join(sorted(self._versions.get(package, ())))

    def owner(self, path: str) -> Package | None:
        """The owner of a path; a folder belongs to a package when all owned files in it do."""
        if owner := self._files.get(path) or _by_name(path) or self._folders.get(path):
            return owner
        # Unlisted bytecode belongs to the owner of its source, and its folder to that of the sources.
        if match := _OF_SOURCE.fullmatch(path):
            return self._files.get(f"{match[1]}{match[2]}.py")
        folder, _, base = path.rpartition("/")
        return self._folders.get(folder) if base == "__pycache__" else None

    def _read_python(self, tree: Tree) -> None:
        for path, node in tree.items():
            if node.kind != "file" or not (match := _DIST_INFO.fullmatch(path)):
                continue
            package = Package("python", canonicalize_name(match[2]))
            self._versions[package].add(match[3])
            if RECORD.fullmatch(path):
                with suppress(RecordError):
                    self._files.update((file, package) for file, _, _ in rows(path, node.text))

    def _read_debian(self, tree: Tree) -> None:
        status = tree.get(_STATUS)
        for name, version in _paragraphs(status.text if status else b""):
            self._versions[Package("debian", name)].add(version)

        @cache
        def real(folder: str) -> str:
            return resolve(tree, folder) or folder

        for path, node in tree.items():
            match = _DPKG_FILE.fullmatch(path) if node.text else None
            for line in node.text.decode("utf-8", "surrogateescape").splitlines() if match else ():
                # /lib may be a link to usr/lib, which the lists do not show
                file = posixpath.join(real(posixpath.dirname(line)), posixpath.basename(line)).lstrip("/")
                if match and file in tree and tree[file].kind != "directory":
                    self._files[file] = Package("debian", match[1])


def _by_name(path: str) -> Package | None:
    """The owner of a file that a package manager names after the package."""
    if match := _DIST_INFO.fullmatch(path):
        return Package("python", canonicalize_name(match[2]))
    if match := _DPKG_FILE.fullmatch(path):
        return Package("debian", match[1])
    return _CHECK if path in _OF_CHECK else None


def _folders(files: dict[str, Package]) -> dict[str, Package | None]:
    """The owner of each folder; None for those of several packages."""
    found: dict[str, Package | None] = {}
    for path, package in files.items():
        folder = posixpath.dirname(path)
        while folder and found.get(folder, ...) not in (package, None):
            found[folder] = None if folder in found else package
            folder = posixpath.dirname(folder)
    return found


def _paragraphs(status: bytes) -> Iterator[tuple[str, str]]:
    """Names and versions of the installed packages (deb822, dpkg(1))."""
    for paragraph in status.decode("utf-8", "surrogateescape").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed") and "Package" in fields:
            yield fields["Package"], fields.get("Version", "")


def rows(record: str, text: bytes) -> Iterator[Row]:
    """Read the RECORD at a path, with paths below the root; RecordError when it is not valid."""
    site = posixpath.dirname(posixpath.dirname(record))
    for row in read_record(text.decode("utf-8", "surrogateescape"), strict=True):
        yield Row(posixpath.normpath(posixpath.join("/", site, row.path)).lstrip("/"), row.hash, row.size)
