"""Where a distribution came from."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from envbuild.capture.reading import Facts, read_text
from envbuild.capture.redact import scrub

NO_INDEX = ("debian", "rpm")
"""INSTALLER of what came with the operating system."""


def origin_of(path: str, installer: str | None, conda: Facts | None) -> Facts:
    """Say where the distribution came from whose metadata lies in `path`."""
    if conda or installer == "conda":
        # conda writes a direct_url.json that names a folder of its build machine.
        return dict(conda or {}, kind="conda")
    direct = read_text(os.path.join(path, "direct_url.json"))
    if direct is not None:
        return _direct_origin(direct)
    if path.endswith(".egg-info") and os.path.realpath(os.path.dirname(path)) in _linked_folders():
        return {"kind": "editable", "url": Path(path).parent.as_uri()}
    known = path.endswith(".dist-info") and installer is not None and installer.lower() not in NO_INDEX
    return {"kind": "index" if known else "unknown"}


def _direct_origin(text: str) -> Facts:
    """Read a direct_url.json (PEP 610)."""
    try:
        direct = json.loads(text)
        vcs, archive = direct.get("vcs_info"), direct.get("archive_info")
        origin: Facts = {"url": scrub(direct["url"]), "subdirectory": direct.get("subdirectory")}
        if vcs is not None:
            return dict(origin, kind="vcs", commit=vcs["commit_id"])
        if archive is not None:
            single = str(archive.get("hash") or "").partition("sha256=")[2] or None
            return dict(origin, kind="archive", sha256=(archive.get("hashes") or {}).get("sha256", single))
        return dict(origin, kind="editable" if "dir_info" in direct else "unknown")
    except (ValueError, TypeError, KeyError, AttributeError):
        return {"kind": "unknown"}


def _linked_folders() -> set[str]:
    """Find the source folders that `setup.py develop` linked to."""
    links = [path for entry in sys.path if os.path.isdir(entry) for path in Path(entry).glob("*.egg-link")]
    return {os.path.realpath((read_text(path) or "").split("\n", 1)[0].strip()) for path in links}
