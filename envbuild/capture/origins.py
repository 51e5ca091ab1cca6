"""Where a distribution came from."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from envbuild.capture.checkout import checkout_facts
from envbuild.capture.reading import Facts, read_text
from envbuild.capture.redact import scrub_line

NO_INDEX = ("debian", "rpm")
"""INSTALLER of what came with the operating system."""


def origin_of(path: str, installer: str | None, conda: Facts | None, linked: dict[str, str], patch: bool) -> Facts:
    """Say where the distribution came from whose metadata lies in `path`; `linked` is what `linked_projects` found."""
    if conda or installer == "conda":
        # conda writes a direct_url.json that names a folder of its build machine.
        package = conda["facts"] if conda else {}
        return dict({key: package.get(key) for key in ("channel", "build", "url", "sha256")}, kind="conda")
    direct = read_text(os.path.join(path, "direct_url.json"))
    if direct is not None:
        return _direct_origin(direct, patch)
    project = linked.get(os.path.realpath(os.path.dirname(path))) if path.endswith(".egg-info") else None
    if project is not None:
        return _editable_origin(project, Path(project).as_uri(), patch)
    known = path.endswith(".dist-info") and installer is not None and installer.lower() not in NO_INDEX
    return {"kind": "index" if known else "unknown"}


def _direct_origin(text: str, patch: bool) -> Facts:
    """Read a direct_url.json (PEP 610)."""
    try:
        direct = json.loads(text)
        vcs, archive, folder = (direct.get(kind + "_info") for kind in ("vcs", "archive", "dir"))
        origin: Facts = {"url": scrub_line(direct["url"]), "subdirectory": _line(direct.get("subdirectory"))}
        if vcs is not None:
            return dict(
                origin,
                kind="vcs",
                commit=scrub_line(vcs["commit_id"]),
                requested_revision=_line(vcs.get("requested_revision")),
            )
        if archive is not None:
            return dict(origin, kind="archive", sha256=_archive_digest(archive))
        if folder is None:
            return dict(origin, kind="unknown")
        local = _local_folder(direct["url"]) if folder.get("editable") is True else None
        return _editable_origin(local, origin["url"], patch)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {"kind": "unknown"}


def _archive_digest(archive: Facts) -> str | None:
    single = str(archive.get("hash") or "").partition("sha256=")[2]
    digest = str((archive.get("hashes") or {}).get("sha256", single)).lower()
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def _line(value: Any) -> str | None:
    return scrub_line(value) if isinstance(value, str) and value else None


def _local_folder(url: str) -> str | None:
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def _editable_origin(folder: str | None, url: str, patch: bool) -> Facts:
    """Describe a folder of sources; which commit a copy of it was made from, nothing tells."""
    facts = checkout_facts(folder, patch, whole=False) if folder is not None else None
    return dict(facts or {}, kind="editable", url=url)


def linked_projects() -> dict[str, str]:
    """Map each folder that `setup.py develop` put on the path to its project, where its setup.py lies."""
    projects = {}
    folders = (entry for entry in sys.path if isinstance(entry, str) and os.path.isdir(entry))
    for link in (path for folder in folders for path in Path(folder).glob("*.egg-link")):
        lines = (read_text(link) or "").replace("\0", "").split("\n")
        folder = os.path.realpath(lines[0].strip())
        projects[folder] = os.path.normpath(os.path.join(folder, "".join(lines[1:2]).strip()))
    return projects
