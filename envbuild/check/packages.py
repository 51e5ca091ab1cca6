"""Packages, as their folders in site-packages name them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from envbuild.check.words import finding, shown, tokens, why

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuild.check.asked import Asked
    from envbuild.check.words import Finding


def package_findings(asked: Asked, prefix: str) -> Iterator[Finding]:
    """Yield the packages that are others than were locked, or than the run had."""
    minor = "%d.%d" % sys.version_info[:2]
    for locked in asked.said("python"):
        if tokens(locked)[:2] != tokens(minor):
            says = "Python %s runs here, and the environment is made for %s" % (minor, shown(locked, 20))
            yield finding("python", says, "use the image as it was built")
    wanted = [(name, it) for said in asked.said("packages") for name, it in said.items()]
    if not wanted:
        return
    folder = os.path.join(prefix, "lib", "python" + minor, "site-packages")
    try:
        found = installed(folder)
    except OSError as error:
        says = "%s cannot be listed: %s" % (shown(folder), why(error))
        yield finding("packages", says, "use the image as it was built, as a user that can read it")
        return
    for name, version in wanted:
        says = package_fault(version, found.get(canonical(name), []))
        if says:
            todo = "use the image as it was built, or build it anew with what is to change: its lock then says so"
            yield finding(shown(name), "%s %s" % (shown(name), says), todo)


def installed(folder: str) -> dict[str, list[str]]:
    """Return the versions of each distribution; OSError."""
    found: dict[str, list[str]] = {}
    for entry in os.listdir(folder):
        # pip renames to ~ what it is about to remove.
        if entry.endswith(".dist-info") and not entry.startswith("~"):
            name, _, version = entry[: -len(".dist-info")].rpartition("-")
            found.setdefault(canonical(name), []).append(version)
    return found


def package_fault(wanted: str, found: list[str]) -> str:
    """Return what is wrong with a distribution; empty where nothing is."""
    if not found:
        return "is not installed, and has to be in version %s" % shown(wanted)
    if len(found) > 1:
        return "is installed %d times: %s" % (len(found), shown(", ".join(sorted(found))))
    if tokens(found[0]) != tokens(wanted):
        return "is %s here, and has to be %s" % (shown(found[0]), shown(wanted))
    return ""


def canonical(name: str) -> str:
    """Return a distribution's name as PEP 503 normalises it."""
    parts = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(it for it in parts if it)
