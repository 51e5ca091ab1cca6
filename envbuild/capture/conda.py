"""What conda installed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from envbuild.capture.reading import Facts, read_text
from envbuild.capture.redact import scrub


def conda_packages() -> dict[str, Facts]:
    """Map each metadata folder that conda put here to its package's address and digest."""
    owners: dict[str, Facts] = {}
    for path in (
        path for prefix in {sys.prefix, sys.base_prefix} for path in Path(prefix, "conda-meta").glob("*.json")
    ):
        try:
            package = json.loads(read_text(path) or "")
            # A private channel's address holds a token: https://host/t/TOKEN/channel.
            url = re.sub(r"/t/[^/]+(?=/)", "", scrub(package.get("url") or "")) or None
            for name in package.get("files", ()):
                match = re.search(r"^.*\.(?:dist|egg)-info(?=$|/METADATA$|/PKG-INFO$)", name)
                if match:
                    folder = os.path.realpath(str(path.parent.parent / match.group()))
                    owners[folder] = {"url": url, "sha256": package.get("sha256")}
        except (ValueError, TypeError, AttributeError):
            continue
    return owners


def conda_facts() -> Facts | None:
    """Describe the conda environment; None where there is none."""
    return None
