"""Owners of files: the wheel, conda package or package of the operating system that installed each."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from envbuild.capture.files import Facts, decoded, normal_name, output_of, read_bytes, read_text

DPKG = "var/lib/dpkg"
_APK_DATABASES = ("lib/apk/db/installed", "usr/lib/apk/db/installed")
_RPM_DATABASES = ("var/lib/rpm", "usr/lib/sysimage/rpm")


def find_owners(paths: list[str], distributions: dict[str, Facts], root: str = "/") -> dict[str, Facts]:
    """Map files to what installed them; files that no package lists are left out.

    `root` is where the package managers' own files lie.
    """
    owners = _wheel_owners(paths, distributions)
    for find in (_conda_owners, _debian_owners, _apk_owners, _rpm_owners):
        owners.update(find([path for path in paths if path not in owners], root))
    return owners


def _wheel_owners(paths: list[str], distributions: dict[str, Facts]) -> dict[str, Facts]:
    """Look into the RECORD of every wheel, except those that conda installed."""
    owners: dict[str, Facts] = {}
    relative: dict[str, dict[bytes, str]] = {}
    for folder, facts in distributions.items():
        site = os.path.dirname(folder)
        if site not in relative:
            relative[site] = _relative_to(os.path.realpath(site), paths)
        if facts["origin"]["kind"] != "conda":
            owner = {"kind": "wheel", "name": normal_name(facts["name"]), "version": facts["version"]}
            lines = (read_bytes(os.path.join(folder, "RECORD")) or b"").split(b"\n")
            names = (line.rsplit(b",", 2)[0].strip(b'"') for line in lines if b".so" in line)
            owners.update((relative[site][name], owner) for name in names if name in relative[site])
    return owners


def _relative_to(folder: str, paths: list[str]) -> dict[bytes, str]:
    return {os.fsencode(os.path.relpath(path, folder)): path for path in paths}


def _conda_owners(paths: list[str], _root: str) -> dict[str, Facts]:
    owners: dict[str, Facts] = {}
    for prefix in {sys.prefix, sys.base_prefix}:
        records = conda_records(prefix) if paths else {}
        relative = _relative_to(os.path.realpath(prefix), paths) if records else {}
        quoted = {json.dumps(decoded(name)).encode("ascii"): path for name, path in relative.items()}
        for record, owner in records.items():
            # Parsing all of these files would take most of a second.
            for name in re.findall(rb'"[^"\n]*\.so[^"\n]*"', read_bytes(record) or b""):
                if name in quoted:
                    owners[quoted[name]] = owner
    return owners


def conda_records(prefix: str) -> dict[str, Facts]:
    """Map each file of conda-meta to the package that it describes, by its name alone: `NAME-VERSION-BUILD.json`."""
    parts = {str(path): path.stem.rsplit("-", 2) for path in sorted(Path(prefix, "conda-meta").glob("*-*-*.json"))}
    return {path: {"kind": "conda", "name": part[0], "version": part[1]} for path, part in parts.items()}


def _debian_owners(paths: list[str], root: str) -> dict[str, Facts]:
    versions = debian_packages(root) if paths else {}
    if not versions:
        return {}
    owners: dict[str, Facts] = {}
    # Lines of three: a diverted path, its new place, and the package that diverts it.
    lines = (read_text(os.path.join(root, DPKG, "diversions")) or "").split("\n")
    diversions = [lines[at : at + 3] for at in range(0, len(lines) - 2, 3)]
    diverters = {path: package for path, _, package in diversions}
    originals = {place: path for path, place, _ in diversions}
    spelled: dict[bytes, list[str]] = {}
    for path in paths:
        for name in _spellings(originals.get(path, path)):
            spelled.setdefault(os.fsencode(name), []).append(path)
    for listing in Path(root, DPKG, "info").glob("*.list"):
        data = read_bytes(listing) or b""
        # Most packages have no library at all.
        found = spelled.keys() & set(data.split(b"\n")) if b".so" in data else ()
        package, _, architecture = listing.stem.partition(":")
        for path in (path for name in found for path in spelled[name]):
            diverter = diverters.get(originals.get(path, path))
            # The diverter's file lies at the path itself, the diverted one in the other place.
            own = diverter is None or (diverter == package) == (path not in originals)
            if own and (package, architecture) in versions:
                owners[path] = {"kind": "debian", "name": package, "version": versions[package, architecture]}
    return owners


def debian_packages(root: str = "/") -> dict[tuple[str, str], str]:
    """Map the name and architecture of each installed Debian package to its version, and its name alone too."""
    versions: dict[tuple[str, str], str] = {}
    for stanza in (read_text(os.path.join(root, DPKG, "status")) or "").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Architecture|Version): *(.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and len(fields) == 4:
            for architecture in ("", fields["Architecture"]):
                versions[fields["Package"], architecture] = fields["Version"]
    return versions


def _spellings(path: str) -> list[str]:
    """Return a path as the kernel has it, and as packages from before the merge of / and /usr list it."""
    return [path, path[4:] if path.startswith("/usr/") else "/usr" + path]


def _apk_owners(paths: list[str], root: str) -> dict[str, Facts]:
    owners: dict[str, Facts] = {}
    spelled = {name.lstrip("/"): path for path in paths for name in _spellings(path)}
    for database in _APK_DATABASES if paths else ():
        package: Facts = {}
        folder = ""
        for line in (read_text(os.path.join(root, database)) or "").split("\n"):
            key, _, value = line.partition(":")
            if key == "P":
                package = {"kind": "apk", "name": value}
            elif key == "V":
                package["version"] = value
            elif key == "F":
                folder = value
            elif key == "R" and package and "%s/%s" % (folder, value) in spelled:
                owners[spelled["%s/%s" % (folder, value)]] = package
    return owners


def _rpm_owners(paths: list[str], root: str) -> dict[str, Facts]:
    if not any(os.path.exists(os.path.join(root, database)) for database in _RPM_DATABASES):
        return {}
    # rpm prints no line for a missing file, and fails after all lines if one file has no owner.
    paths = [path for path in paths if os.path.exists(path)]
    query = 'rpm -qf --qf "=%{NAME} %{VERSION}-%{RELEASE}\\n" -- "$@" || :'
    lines = (output_of("sh", "-c", query, "sh", *paths) or "").split("\n") if paths else []
    answers = (re.fullmatch(r"=(\S+) (\S+)", line) for line in lines)
    rows = [{"kind": "rpm", "name": row.group(1), "version": row.group(2)} if row else None for row in answers]
    # One line for each, in their order, unless two packages share a file.
    return {path: row for path, row in zip(paths, rows) if row and len(rows) == len(paths)}  # noqa: B905 - 3.10's
