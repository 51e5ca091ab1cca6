"""`conda list`, `pixi.lock` and `conda-lock.yml`: packages of conda and wheels of an index, as listed or locked."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from envbuild.errors import ManifestError
from envbuild.manifest.importers.conda import (
    EXPORT,
    SUBDIRS,
    Installed,
    channel,
    distribution_of,
    environment_of,
    odd_version,
    yaml_of,
)
from envbuild.manifest.importers.environment import PLATFORMS, Environment, RecordOptions
from envbuild.manifest.importers.pins import PLATFORM, of_address, sha256_of
from envbuild.manifest.importers.record import (
    MAX_LOCK,
    Faults,
    Record,
    clean,
    dicts,
    fact,
    json_of,
    lines_of,
    quoted,
    text_at,
    text_of,
    texts,
)
from envbuild.manifest.packages import CondaPackage, Distribution, Origin

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


def read_list(record: Record, options: RecordOptions) -> Environment:
    """Read every package, and apart from them what pip installed; ManifestError."""
    text, faults = text_of(record), Faults(record.name)
    explicit = bool(EXPLICIT.search(text))
    if text.lstrip().startswith("["):
        packages = list(_of_json(json_of(record, text), faults))
    else:
        read_line = address_of if explicit else _of_row if TABLE.search(text) else _of_export
        packages = []
        for number, line in enumerate(map(str.strip, lines_of(record, text)), 1):
            if not line or HEAD.match(line):
                continue
            if package := read_line(line):
                packages.append(package)
            else:
                faults.add(f"line {number}: this is not a package of conda: {quoted(line)}", "correct or remove it")
        # An address has the platform too; an exported list has it in this comment alone, and Python is for one.
        comment = _SUBDIR.search(text)
        subdir = clean(comment[1]) if comment else None
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
    return environment_of(installed, record, options, faults)


def _of_json(items: Any, faults: Faults) -> Iterator[CondaPackage]:
    for index, item in enumerate(items if isinstance(items, list) else ()):
        name, version = text_at(item, "name"), text_at(item, "version")
        if not name or not version:
            faults.add(f"[{index}]: there is no name and version", EXPORT)
            continue
        yield CondaPackage(
            name=clean(name),
            version=clean(version),
            build=fact(item, "build_string"),
            channel=channel(text_at(item, "channel")),
            subdir=fact(item, "platform"),
            sha256=sha256_of(text_at(item, "sha256")),
            url=fact(item, "url", longest=4000),
        )


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


_OLD_PIXI = "write it again: pixi lock, or give what `pixi run pip list --format=json` prints"
_INSTALLED = {"main", "dev"}
"""The categories that `conda-lock install` installs by default."""


def read_pixi_lock(record: Record, options: RecordOptions) -> Environment:
    """Read the environment `default`, or the first; ManifestError."""
    values, faults = yaml_of(record, MAX_LOCK), Faults(record.name)
    environments = values.get("environments") if isinstance(values, dict) else None
    if not isinstance(environments, dict) or not environments:
        what = f"this pixi.lock of version {clean(text_at(values, 'version') or '')} has no environments"
        raise ManifestError(what, where=record.name, todo=_OLD_PIXI)
    name = "default" if "default" in environments else next(iter(environments))
    others = ", ".join(sorted(clean(it) for it in environments if it != name))
    note = f"the environment {name} is read; left out: {others}" if others else ""
    chosen = environments[name].get("packages") if isinstance(environments[name], dict) else None
    by_platform = chosen if isinstance(chosen, dict) else {}
    subdir = _subdir(by_platform, options, record.name)
    # Before version 6 an entry had its address as `url`.
    entries = {
        text_at(it, "conda") or text_at(it, "pypi") or text_at(it, "url"): it for it in dicts(values.get("packages"))
    }
    pairs = [(text_at(it, "conda") or "", text_at(it, "pypi") or "") for it in dicts(by_platform[subdir])]
    listed = [(conda, wheel, entries.get(conda or wheel, {})) for conda, wheel in pairs]
    return _environment(listed, record, options, faults, note)


def read_conda_lock(record: Record, options: RecordOptions) -> Environment:
    """Read the categories main and dev of one platform; ManifestError."""
    values, faults = yaml_of(record, MAX_LOCK), Faults(record.name)
    items = dicts(values.get("package") if isinstance(values, dict) else None)
    subdir = _subdir([text_at(it, "platform") or "" for it in items], options, record.name)
    items = [it for it in items if it.get("platform") == subdir]
    wanted = [it for it in items if _INSTALLED & {*texts(it.get("categories")), it.get("category", "main")}]
    chosen = [
        (address, "", it) if text_at(it, "manager") == "conda" else ("", address, it)
        for it in wanted
        if (address := text_at(it, "url") or "?")
    ]
    left = ", ".join(sorted({clean(text_at(it, "name") or "") for it in items if it not in wanted}))
    note = f"the lock's optional packages are left out: {left}" if left else ""
    return _environment(chosen, record, options, faults, note)


def _environment(
    chosen: list[tuple[str, str, dict[str, Any]]], record: Record, options: RecordOptions, faults: Faults, note: str
) -> Environment:
    """Make the environment of entries: the address of a package of conda or of a wheel, and the lock's facts."""
    packages: list[CondaPackage] = []
    wheels: list[tuple[Distribution, str]] = []
    projects: dict[str, str | None] = {}
    for conda, wheel, entry in chosen:
        package = address_of(conda) if conda else None
        if package:
            packages.append(replace(package, sha256=_digest(entry)))
            projects.update(_projects(package, entry))
        elif wheel:
            wheels.append((_distribution(wheel, entry), f"package {clean(text_at(entry, 'name') or wheel)}"))
        else:
            faults.add(f"this is not a package of conda: {quoted(conda)}", "have the tool write the lock again")
    installed = Installed(
        packages=tuple(packages),
        python=next((it.version for it in packages if it.name == "python"), None),
        pip=(),
        wheels=tuple(wheels),
        notes=(note,),
        projects=projects,
    )
    return environment_of(installed, record, options, faults)


def _projects(package: CondaPackage, entry: dict[str, Any]) -> dict[str, str | None]:
    """Return the project that the lock itself names (purl, package URL), or None where it says that there is none."""
    if not isinstance(entry.get("purls"), list):
        return {}
    names = [unquote(it.removeprefix("pkg:pypi/").partition("@")[0].partition("?")[0]) for it in texts(entry["purls"])]
    return {package.name: next((it for it in names if it and ":" not in it), None)}


def _distribution(address: str, entry: dict[str, Any]) -> Distribution:
    """Return what pip installed: by name, version and digest, or from an address outside an index."""
    name, version = text_at(entry, "name") or "", text_at(entry, "version")
    if address.startswith("git+"):
        bare, _, commit = address.partition("#")
        return of_address(f"{bare.partition('?')[0]}@{commit}", name=name, version=version)
    if "://" not in address and address != "?":
        return of_address(address, name=name, version=version)
    digest = _digest(entry)
    return Distribution(name=name, version=version, origin=Origin(kind="index", hashes=(digest,) if digest else ()))


def _digest(entry: dict[str, Any]) -> str | None:
    return sha256_of(text_at(entry, "sha256") or text_at(entry, "hash", "sha256"))


def _subdir(locked: Iterable[str], options: RecordOptions, where: str) -> str:
    """Choose the platform that was given, or the only one of the lock; ManifestError."""
    names = sorted({it for it in locked if it in SUBDIRS})
    if options.platform:
        names = [it for it in names if SUBDIRS[it] == PLATFORMS[options.platform]]
    if len(names) == 1:
        return names[0]
    known = ", ".join(sorted({clean(it) for it in locked}))
    other = f", not for {options.platform}" if options.platform else ""
    what = f"the lock is for {known or 'no platform'}{other}"
    raise ManifestError(what, where=where, todo=PLATFORM)
