"""Each installed distribution once."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from envbuild.capture.conda import conda_packages
from envbuild.capture.origins import origin_of
from envbuild.capture.reading import Facts, normal_name, read_bytes, read_text

METADATA = ("METADATA", "PKG-INFO", "")
"""A wheel's, an egg's, and that of distutils, which is one plain file."""


def find_distributions(patch: bool) -> dict[str, Facts]:
    """Find each installed distribution once, by metadata folder, sorted by name: the first on sys.path wins."""
    chosen: dict[str, tuple[str, Facts]] = {}
    conda = conda_packages()
    for folder in dict.fromkeys(os.path.abspath(entry or os.curdir) for entry in sys.path):
        for path in _metadata_folders(folder):
            facts = _distribution(path, conda.get(os.path.realpath(path)))
            if facts is not None:
                _choose(chosen, path, facts)
    return dict(chosen[name] for name in sorted(chosen))


def _choose(chosen: dict[str, tuple[str, Facts]], path: str, facts: Facts) -> None:
    name = normal_name(facts["name"])
    first, known = chosen.setdefault(name, (path, facts))
    # A source folder's own egg-info shadows the dist-info of its editable install, which knows the origin.
    if first.endswith(".egg-info") and path.endswith(".dist-info") and known["version"] == facts["version"]:
        chosen[name] = (path, facts)


def _metadata_folders(folder: str) -> list[str]:
    """List the metadata in one folder of sys.path; what an interrupted upgrade left behind comes last."""
    # pip renames what it is about to remove to ~ame.
    paths = [path for suffix in ("dist", "egg") for path in Path(folder).glob("[!~]*.%s-info" % suffix)]
    paths = [path for path in paths if path.exists()]
    paths.sort(key=lambda path: (path.suffix, -path.stat().st_mtime, path))
    own = [os.path.join(folder, "EGG-INFO")] if folder.endswith(".egg") else []
    return own + [str(path) for path in paths]


def _distribution(path: str, conda: Facts | None) -> Facts | None:
    texts = (read_text(os.path.join(path, name) if name else path) for name in METADATA)
    head = next((text.split("\n\n", 1)[0] for text in texts if text is not None), None)
    if head is None:
        return None
    fields = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head.split("\n"))}
    guess = os.path.basename(path).rsplit(".", 1)[0].split("-")
    record = read_bytes(os.path.join(path, "RECORD"))
    installer = (read_text(os.path.join(path, "INSTALLER")) or "").strip() or None
    return {
        "name": fields.get("name") or guess[0],
        "version": fields.get("version") or "".join(guess[1:2]),
        "origin": origin_of(path, installer, conda),
        "installer": installer,
        "requested": os.path.exists(os.path.join(path, "REQUESTED")),
        "record_sha256": hashlib.sha256(record).hexdigest() if record is not None else None,
    }
