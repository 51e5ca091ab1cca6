"""What a RECORD says about the files that came out of the wheel, whoever installed it."""

from __future__ import annotations

import csv
import hashlib
import re

_ADDED_BY_INSTALLERS = re.compile(
    r"[^/]+\.dist-info/(INSTALLER|RECORD(\.jws|\.p7s)?|REQUESTED|direct_url\.json|provenance_url\.json|uv_\w+\.json)"
)
_WHEEL_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|[^/]+)/")


def record_content(text: str) -> str | None:
    """Digest the paths and hashes of what came out of the wheel; None when RECORD names none of it.

    The RECORD in a wheel and the one that pip or uv installs give the same: left out are what installers add, compiled
    files, and what goes outside of site-packages, where scripts get the environment's own interpreter line.
    """
    try:
        rows = [row for row in csv.reader(text.splitlines()) if len(row) > 1 and row[1]]
    except csv.Error:
        return None
    lines = {"%s,%s" % (path, row[1].rstrip("=")) for row in rows for path in [_place_of(row[0])] if path}
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogatepass")).hexdigest() if lines else None


def _place_of(path: str) -> str | None:
    """Say where in site-packages a file lies; None for what is no part of the comparison."""
    folder = _WHEEL_DATA.match(path)
    if folder:
        path = path[folder.end() :] if folder.group(1) in ("purelib", "platlib") else ""
    outside = path.startswith(("/", "../")) or re.match("[A-Za-z]:", path)
    if not path or outside or path.endswith(".pyc") or _ADDED_BY_INSTALLERS.fullmatch(path):
        return None
    return path
