"""What `conda list` prints: as a table, and with --json, --explicit and --export."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from envbuild.manifest.formats.conda import EXPORT, Installed, channel, distribution_of, found_in, odd_version
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given
from envbuild.manifest.formats.pins import sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, json_of, lines_of, quoted, text_at, text_of
from envbuild.manifest.packages import CondaPackage, Origin

EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)
TABLE = re.compile(r"^#?[ \t]*Name[ \t]+Version[ \t]+Build\b", re.MULTILINE)
PIP = "pypi"
"""The channel that conda gives what pip installed."""
HEAD = re.compile(r"[#@─]|Name\s+Version\s+Build|List of packages in environment:")
DEVELOP = "dev_0"
"""The build that conda gives what pip installed from a folder."""
_INDEX, _FOLDER = Origin(kind="index"), Origin(kind="editable")
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)\.(?:conda|tar\.bz2)")
_SUBDIR = re.compile(r"^# platform: (\S+)", re.MULTILINE)
_NOTHING_OF_PIP = "an explicit list does not have what pip installed"


def read_list(record: Record, given: Given) -> Found:
    """Read every package, and apart from them what pip installed; ManifestError."""
    text, faults = text_of(record), Faults(record.name)
    explicit = bool(EXPLICIT.search(text))
    if text.lstrip().startswith("["):
        packages = list(_of_json(json_of(record, text), faults))
    else:
        read_line = address_of if explicit else _of_row if TABLE.search(text) else _of_export
        packages = list(_of_lines(lines_of(record, text), read_line, faults))
        # An address has the platform too; an exported list has it in this comment alone, and Python is for one.
        said = _SUBDIR.search(text)
        subdir = clean(said[1]) if said else None
        packages = [replace(it, subdir=it.subdir or subdir) if it.name == "python" else it for it in packages]
    faults.check()
    by_pip = [
        (it, _INDEX if it.channel == PIP else _FOLDER) for it in packages if it.channel == PIP or it.build == DEVELOP
    ]
    made = [(it, distribution_of(it.name, it.version, origin)) for it, origin in by_pip]
    conda = tuple(it for it in packages if it.channel != PIP and it.build != DEVELOP)
    odd = tuple(odd_version(it) for it, distribution in made if distribution.version is None)
    installed = Installed(
        packages=conda,
        python=next((it.version for it in conda if it.name == "python"), None),
        pip=(),
        wheels=tuple((distribution, f"package {it.name}") for it, distribution in made),
        notes=(*odd, _NOTHING_OF_PIP) if explicit else odd,
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


def _of_lines(
    lines: list[str], read_line: Callable[[str], CondaPackage | None], faults: Faults
) -> Iterator[CondaPackage]:
    """Read lines, without comments and the head of a table."""
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not HEAD.match(line):
            package = read_line(line)
            if package:
                yield package
            else:
                faults.add(f"line {number}: this is no package of conda: {quoted(line)}", "correct or remove it")


def _of_row(line: str) -> CondaPackage | None:
    """Read `name version build channel`; the main channel has no name."""
    cells = [clean(it) for it in line.split()]
    if not 3 <= len(cells) <= 4 or not re.match(r"\w", line):
        return None
    return CondaPackage(
        name=cells[0].lower(), version=cells[1], build=cells[2], channel=channel(cells[3]) if cells[3:] else None
    )


def _of_export(line: str) -> CondaPackage | None:
    """Read `name=version=build`; the build of what pip installed is `pypi_0`."""
    name, *rest = (clean(it) for it in line.split("="))
    if len(rest) != 2 or not all(rest):
        return None
    return CondaPackage(name=name.lower(), version=rest[0], build=rest[1], channel=PIP if rest[1] == "pypi_0" else None)


def address_of(line: str) -> CondaPackage | None:
    """Read the address of a package, with a digest behind # or none."""
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
