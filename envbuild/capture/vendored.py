"""Folders that packages bring along for themselves: what lies in them was not installed."""

from __future__ import annotations

import os

from envbuild.capture.reading import decoded, read_bytes
from envbuild.capture.sites import site_folders


def without_vendored(folders: dict[str, str]) -> list[str]:
    """Leave out of sys.path what a package put there of its own, as setuptools puts `setuptools/_vendor`.

    `folders` maps where each really lies to how it is called. What PYTHONPATH or a .pth file names stays, and so does
    what lies in no package of a folder that packages are installed into.
    """
    named = _named_folders()
    installed = {real for real, folder in folders.items() if _is_installed_into(folder)}
    installed.update(map(os.path.realpath, site_folders()))
    return [folder for real, folder in folders.items() if real in named or not _in_package(real, installed)]


def _in_package(folder: str, installed: set[str]) -> bool:
    """Tell whether a folder lies in a package, at any depth, that lies in one of `installed`."""
    package, parent = False, os.path.dirname(folder)
    while parent != os.path.dirname(parent):
        if parent in installed:
            return package
        package = package or os.path.isfile(os.path.join(parent, "__init__.py"))
        parent = os.path.dirname(parent)
    return False


def _is_installed_into(folder: str) -> bool:
    """Tell whether an installer laid distributions there, as `pip install --target` does into any folder."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except (OSError, ValueError):
        return False


def _named_folders() -> set[str]:
    """List what whoever made the environment named as folders to import from (Python documentation, `site`)."""
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for site in site_folders():
        named += [os.path.join(site, line) for name in _pth_files(site) for line in _lines(os.path.join(site, name))]
    try:
        return set(map(os.path.realpath, named))
    except OSError:
        # The working directory is gone, which names without a slash in front are meant in.
        return set(map(os.path.realpath, filter(os.path.isabs, named)))


def _pth_files(site: str) -> list[str]:
    try:
        return [name for name in os.listdir(site) if name.endswith(".pth")]
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    lines = (line.strip() for line in decoded(read_bytes(path) or b"").lstrip("\ufeff").split("\n"))
    return [line for line in lines if line and "\0" not in line and not line.startswith(("#", "import ", "import\t"))]
