"""`conda list --json` and `conda list --explicit`."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from envbuild.manifest.formats.conda import EXPORT, Installed, channel, found_in
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given
from envbuild.manifest.formats.pins import sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, json_of, lines_of, quoted, text_at, text_of
from envbuild.manifest.packages import CondaPackage

PIP = "pypi"
"""The channel that conda gives what pip installed."""
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)\.(?:conda|tar\.bz2)")
_NOTHING_OF_PIP = "an explicit list does not have what pip installed"


def read_list(record: Record, given: Given) -> Found:
    """Read every package, and apart from them what pip installed; ManifestError."""
    text, faults = text_of(record), Faults(record.name)
    explicit = not text.lstrip().startswith("[")
    packages = list(_of_lines(lines_of(record, text), faults) if explicit else _of_json(json_of(record, text), faults))
    faults.check()
    conda = tuple(it for it in packages if it.channel != PIP)
    installed = Installed(
        packages=conda,
        python=next((it.version for it in conda if it.name == "python"), None),
        pip=tuple((f"{it.name}=={it.version}", f"package {it.name}") for it in packages if it.channel == PIP),
        notes=(_NOTHING_OF_PIP,) if explicit else (),
    )
    return found_in(installed, record, given, faults)


def _of_json(items: Any, faults: Faults) -> Iterator[CondaPackage]:
    for index, item in enumerate(items if isinstance(items, list) else ()):
        name, version = text_at(item, "name"), text_at(item, "version")
        if not name or not version:
            faults.add(f"[{index}]: there is no name and version", EXPORT)
            continue
        yield CondaPackage(
            name=clean(name),
            version=clean(version),
            build=clean(text_at(item, "build_string") or "") or None,
            channel=channel(text_at(item, "channel")),
            subdir=clean(text_at(item, "platform") or "") or None,
            sha256=sha256_of(text_at(item, "sha256")),
            url=clean(text_at(item, "url") or "", 4000) or None,
        )


def _of_lines(lines: list[str], faults: Faults) -> Iterator[CondaPackage]:
    """Read addresses, each with a digest behind # or none."""
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith(("#", "@")):
            made = _of_address(line)
            if made:
                yield made
            else:
                what = f"line {number}: this is no address of a package: {quoted(line)}"
                faults.add(what, "correct or remove it")


def _of_address(line: str) -> CondaPackage | None:
    bare, _, digest = line.partition("#")
    place = clean(bare, 4000)
    try:
        folders = ["", "", *unquote(urlsplit(place).path).split("/")]
    except ValueError:  # a bracket that is no IPv6 address
        return None
    file = _FILE.fullmatch(clean(folders[-1]))
    return file and CondaPackage(
        name=file["name"].lower(),
        version=file["version"],
        build=file["build"],
        channel=clean(folders[-3]) or None,
        subdir=clean(folders[-2]) or None,
        sha256=sha256_of(digest),
        url=place,
    )
