"""What the process has imported: the files of its modules and libraries, by the folder that a distribution lies in."""

from __future__ import annotations

import os
import sys
from typing import Iterator
from urllib.parse import unquote, urlsplit

from envbuild.capture.distributions import site_folders
from envbuild.capture.files import Facts, read_text
from envbuild.capture.native import mapped_libraries

_AT_START = ("__editable__", "_distutils_hack")
"""Begin the names of setuptools' modules that Python itself imports at its start, by a .pth file."""


class LoadedFiles:
    """The files of the modules that the process has imported, and of the libraries that it has loaded."""

    def __init__(self) -> None:
        self.files = {*_module_files(), *mapped_libraries()}
        sites = tuple(os.path.join(folder, "") for folder in site_folders())
        self.outside = [path for path in self.files if not path.startswith(sites)]
        """Where the modules of editable installs lie."""
        self.distributions: list[str] = []
        """Those that the files belong to, by normalised name, as far as they are compared."""
        self._names: dict[str, set[str]] = {}

    def names(self, site: str) -> set[str]:
        """Return those in a folder, as a RECORD there names them."""
        if site not in self._names:
            folders = {os.path.join(it, "") for it in (site, os.path.realpath(site))}
            names = {path[len(folder) :] for folder in folders for path in self.files if path.startswith(folder)}
            self._names[site] = {name for name in names if not name.startswith(_AT_START)}
        return self._names[site]

    def has_unlisted(self, folder: str, facts: Facts, *, listed: bool) -> bool:
        """Tell whether one is of a distribution that does not list it, as an editable install by its folder of sources.

        One that is not `listed` at all, as the operating system's, is known by the names of its modules.
        """
        origin = facts["origin"]
        if origin["kind"] == "editable":
            project = os.path.join(unquote(urlsplit(origin.get("url") or "").path), "")
            if project != "/" and any(path.startswith(project) for path in self.outside):
                return True
        if listed:
            return False
        modules = (read_text(os.path.join(folder, "top_level.txt")) or facts["name"].replace("-", "_")).split()
        tops = {name.partition("/")[0].partition(".")[0] for name in self.names(os.path.dirname(folder))}
        return not tops.isdisjoint(modules)


def _module_files() -> Iterator[str]:
    """Yield the file of each imported module, without asking a lazy one, which that would import."""
    for module in list(sys.modules.values()):
        try:
            path = object.__getattribute__(module, "__dict__").get("__file__")
        except AttributeError:
            continue  # somebody's stand-in
        if isinstance(path, str):
            yield path if os.path.isabs(path) else os.path.abspath(path)
