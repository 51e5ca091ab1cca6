"""Distributions that are imported from a zip file: zipped eggs, wheels on sys.path."""

from __future__ import annotations

import os
import re

METADATA_MEMBER = re.compile(r"(EGG-INFO|[^/]+\.(?:dist-info|egg-info))/(?:METADATA|PKG-INFO)")


def zipped_metadata(archive: str) -> list[str]:
    """List the metadata folders in an archive, as paths that go on where the archive's ends."""
    from zipfile import ZipFile

    try:
        with ZipFile(archive) as file:
            matches = (METADATA_MEMBER.fullmatch(name) for name in file.namelist())
            return sorted({os.path.join(archive, match.group(1)) for match in matches if match})
    except Exception:  # what is damaged fails in many ways
        return []


def zipped_text(path: str, limit: int) -> str | None:
    """Read the beginning of a text in an archive, as UTF-8; None where it is in none."""
    from zipfile import ZipFile

    archive = os.path.dirname(os.path.dirname(path))
    if not os.path.isfile(archive):
        return None
    try:
        with ZipFile(archive) as file, file.open(os.path.relpath(path, archive)) as member:
            return member.read(limit).decode("utf-8", "replace").replace("\r\n", "\n")
    except Exception:
        return None
