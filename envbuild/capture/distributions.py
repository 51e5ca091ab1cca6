"""Each installed distribution once."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import Iterator

from envbuild.capture.conda import conda_owners
from envbuild.capture.conda_names import project_of
from envbuild.capture.origins import linked_projects, origin_of
from envbuild.capture.reading import Facts, decoded, normal_name, read_bytes, read_head, read_text
from envbuild.capture.record_digest import record_content
from envbuild.capture.redact import scrub_line
from envbuild.capture.sites import is_module, site_folders
from envbuild.capture.vendored import without_vendored
from envbuild.capture.zipped import zipped_metadata, zipped_text

METADATA = {".dist-info": ("METADATA",), ".egg-info": ("PKG-INFO", "")}
"""By the end of the folder's name; distutils wrote one plain file."""
LONGEST_HEAD = 1 << 18
"""Bytes of metadata; the description after them may be a book."""
NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
VERSION = re.compile(
    r"v?([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*)?"
    r"(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?([-_.]?dev[-_.]?[0-9]*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?",
    re.IGNORECASE | re.ASCII,
)
"""PEP 440, appendix B."""


def find_distributions(patch: bool) -> dict[str, Facts]:
    """Find each installed distribution once, by metadata folder, sorted by name: the first on sys.path wins.

    What conda brought without metadata is named by its first entry.
    """
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in metadata_paths():
        name, version = identity(path) or ("", "")
        if name:
            found.setdefault(normal_name(name), []).append((path, name, version))
    conda, linked = conda_owners(), linked_projects()
    for path, name, version in _without_metadata(conda):
        found.setdefault(normal_name(name), [(path, name, version)])
    distributions = {}
    for _, same in sorted(found.items()):
        path, name, version = _chosen(same)
        facts = _distribution(path, conda.get(os.path.realpath(path)), linked, patch)
        distributions[path] = dict(facts, name=name, version=version, shadowed=_shadowed(path, same))
    return distributions


def _without_metadata(conda: dict[str, Facts]) -> Iterator[tuple[str, str, str]]:
    """Yield path, project and version of what conda brought without metadata and the run could import."""
    folders = set(map(os.path.realpath, site_folders()))
    for path, item in conda.items():
        facts = item["facts"]
        name = project_of(facts["name"], facts["build"])
        bare = not path.endswith((".dist-info", ".egg-info")) and os.path.dirname(path) in folders
        if (
            bare
            and name
            and VERSION.fullmatch(facts["version"])
            and any(is_module(*os.path.split(it)) for it in item["entries"])
        ):
            yield path, name, facts["version"]


def metadata_paths() -> list[str]:
    """List the metadata of all distributions, in the order in which imports look for modules.

    Those that a package brought for itself alone are part of it, and left out.
    """
    folders: dict[str, str] = {}
    for entry in sys.path:
        try:
            folder = os.path.abspath(entry or os.curdir)
            folders.setdefault(os.path.realpath(folder), folder)
        except (OSError, TypeError, ValueError):
            continue  # the working directory is gone, or somebody put there what is no path
    return [path for folder in without_vendored(folders) for path in _metadata_in(folder)]


def _metadata_in(folder: str) -> list[str]:
    """List the metadata in one folder or archive; what an interrupted upgrade left behind comes last."""
    if os.path.isfile(folder):
        return zipped_metadata(folder)
    try:
        with os.scandir(folder) as entries:
            # pip renames what it is about to remove to ~ame.
            named = [entry for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
            found = [(_age(entry), entry.path) for entry in named if entry.name[0] not in "~."]
    except (OSError, ValueError):
        return []
    own = [os.path.join(folder, "EGG-INFO")] if folder.endswith(".egg") else []
    return own + [path for _, path in sorted(found)]


def _age(entry: os.DirEntry[str]) -> tuple[str, float]:
    """Sort wheels before eggs, and what changed last first."""
    try:
        return os.path.splitext(entry.name)[1], -entry.stat().st_mtime
    except OSError:
        return os.path.splitext(entry.name)[1], 0.0


def identity(path: str) -> tuple[str, str] | None:
    """Read name and version of the distribution whose metadata is `path`; None where it tells none that are valid."""
    names = METADATA.get(os.path.splitext(path)[1], ("PKG-INFO",))
    texts = (_metadata_text(os.path.join(path, name) if name else path) for name in names)
    head = next((text.split("\n\n", 1)[0] for text in texts if text is not None), "")
    fields: dict[str, str] = {}
    for line in head.lstrip("\ufeff").split("\n"):
        key, _, value = line.partition(":")
        fields.setdefault(key.lower(), value.strip())
    guess = os.path.basename(path).rpartition(".")[0].split("-")
    name = fields.get("name") or guess[0]
    version = fields.get("version") or "".join(guess[1:2])
    valid = head and NAME.fullmatch(name) and VERSION.fullmatch(version) and len(version) <= 200
    return (name, version) if valid else None


def _metadata_text(path: str) -> str | None:
    data = read_head(path, LONGEST_HEAD)
    return decoded(data) if data is not None else zipped_text(path, LONGEST_HEAD)


def _chosen(same: list[tuple[str, str, str]]) -> tuple[str, str, str]:
    """Choose the first, but for a source folder's egg-info the dist-info of its editable install, which knows more."""
    path, _, version = same[0]
    better = (one for one in same[1:] if one[0].endswith(".dist-info") and one[2] == version)
    return next(better, same[0]) if path.endswith(".egg-info") else same[0]


def _shadowed(path: str, same: list[tuple[str, str, str]]) -> list[str] | None:
    """List the versions of the others, but for the egg-info of the sources of an editable install."""
    version = next(one[2] for one in same if one[0] == path)
    others = (one for one in same if one[0] != path)
    return [one[2] for one in others if one[2] != version or not one[0].endswith(".egg-info")] or None


def _distribution(path: str, conda: Facts | None, linked: dict[str, str], patch: bool) -> Facts:
    record = read_bytes(os.path.join(path, "RECORD"))
    installer = scrub_line((read_text(os.path.join(path, "INSTALLER")) or "").strip()) or None
    return {
        "origin": origin_of(path, installer, conda, linked, patch),
        "installer": installer,
        "requested": os.path.exists(os.path.join(path, "REQUESTED")),
        "record_sha256": hashlib.sha256(record).hexdigest() if record is not None else None,
        "content_sha256": record_content(decoded(record)) if record is not None else None,
    }
