"""The folders that packages are installed into, and what lies in them that no package lists."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import sysconfig
from typing import Iterable

from envbuild.capture.conda import conda_packages
from envbuild.capture.reading import Facts, decoded, read_bytes
from envbuild.capture.redact import scrub_line

MOST_NAMES = 50
SITE_NAMES = ("site-packages", "dist-packages")
MADE_BY_VENV = ("_virtualenv.py",)
"""What virtualenv and uv lay into each environment that they make."""
MODULE_SUFFIXES = (".py", ".so", ".pyc")
"""Bytecode that lies beside no source is imported too."""


def site_folders() -> list[str]:
    """List the folders of sys.path that packages are installed into."""
    own = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    folders = dict.fromkeys(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry)
    return [path for path in folders if (os.path.basename(path) in SITE_NAMES or path in own) and os.path.isdir(path)]


def listed_names(names: list[str]) -> list[str]:
    """Sort and cut a list of file names for the record."""
    return sorted(map(scrub_line, names))[:MOST_NAMES]


class Land:
    """Who owns what lies in the site folders."""

    def __init__(self) -> None:
        self.folders = site_folders()
        # What conda brought without metadata belongs to no distribution, yet is no stranger.
        self.owners: dict[str, str | None] = {
            entry: None for package in conda_packages() for entry in package["entries"]
        }
        self.unknown: set[str] = set()

    def claim(self, folder: str, name: str | None, entries: Iterable[str] | None) -> None:
        """Note what a distribution lists in its folder; where one lists nothing, nobody knows what is a stranger."""
        if entries is None:
            self.unknown.add(folder)
        for entry in entries or ():
            self.owners[os.path.join(folder, entry)] = name

    def pth_facts(self) -> list[Facts]:
        """Describe the .pth files of the site folders."""
        paths = [os.path.join(folder, name) for folder in self.folders for name in _names(folder)]
        found = ((path, read_bytes(path)) for path in paths if path.endswith(".pth"))
        facts = [_pth(path, data, self.owners.get(path)) for path, data in found if data is not None]
        return sorted(facts, key=lambda item: (str(item["name"]), str(item["sha256"])))

    def unowned(self) -> list[str]:
        """List the modules and packages in the site folders that nobody lists."""
        folders = [folder for folder in self.folders if folder not in self.unknown]
        return listed_names(
            [
                name
                for folder in folders
                for name in _names(folder)
                if is_module(folder, name) and os.path.join(folder, name) not in self.owners
            ]
        )


def _pth(path: str, data: bytes, owner: str | None) -> Facts:
    lines = decoded(data).lstrip("\ufeff").split("\n")
    return {
        "name": scrub_line(os.path.basename(path)),
        "sha256": hashlib.sha256(data).hexdigest(),
        "code": any(line.startswith(("import ", "import\t")) for line in lines),
        "owner": owner,
    }


def is_module(folder: str, name: str) -> bool:
    """Whether an entry of a site folder can be imported, or has something below it that can."""
    if name in MADE_BY_VENV or not name.partition(".")[0].isidentifier() or name == "__pycache__":
        return False
    if name.endswith(MODULE_SUFFIXES):
        return True
    # A namespace package has its modules further down; what is only data can be large.
    inside = itertools.islice(os.walk(os.path.join(folder, name)), 20) if "." not in name else ()
    return any(file.endswith((".py", ".so")) for _, _, files in inside for file in files)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
