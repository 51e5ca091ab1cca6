"""`pip list`, `pip inspect` and `pylock.toml` (PEP 751): what was installed, or has to be."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from packaging.direct_url import DirectUrl, DirectUrlValidationError
from packaging.pylock import Package, Pylock, PylockValidationError

from envbuild.errors import ManifestError
from envbuild.manifest.importers.environment import RecordOptions
from envbuild.manifest.importers.pins import PLATFORM, Pins, file_name, index_origin, origin_of, sha256_of
from envbuild.manifest.importers.record import (
    Faults,
    Record,
    clean,
    fact,
    json_of,
    lines_of,
    quoted,
    text_at,
    text_of,
    toml_of,
)
from envbuild.manifest.model import Platform, TrainingManifest
from envbuild.manifest.packages import Distribution, Origin, WheelVariant
from envbuild.validation import quote
from envbuild.wheel.name import parsed_wheel
from envbuild.wheel.pylock import parse_pylock

TABLE = re.compile(r"\s*Package +Version( +Editable project location)?.*\r?\n-.*\r?\n")
_AGAIN = "write it again: pip list --format=json"
_NO_ORIGIN = "pip list does not say where distributions came from; `pip inspect` does"
Row = tuple[str, str, str | None]
"""Name, version, and the folder of an editable install."""


def read_pip_list(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read every distribution; ManifestError."""
    text, faults = text_of(record), Faults(record.name)
    pins = Pins.begin(record, options, faults=faults)
    rows = _of_json(record, text, faults) if text.lstrip().startswith("[") else _of_table(record, text, faults)
    for (name, version, folder), place in rows:
        origin = Origin(kind="editable", url=origin_of(folder).url) if folder else Origin(kind="index")
        pins.add(Distribution(name=name, version=version, origin=origin), place)
    if not pins.found:
        faults.add("the record names no distribution", _AGAIN)
    return pins.manifest(complete=True, notes=(_NO_ORIGIN,))


def _of_json(record: Record, text: str, faults: Faults) -> Iterator[tuple[Row, str]]:
    items = json_of(record, text)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        name, version = text_at(item, "name"), text_at(item, "version")
        if name and version:
            yield (name, version, text_at(item, "editable_project_location")), f"[{index}]"
        else:
            faults.add(f"[{index}]: there is no name and version", _AGAIN)


def _of_table(record: Record, text: str, faults: Faults) -> Iterator[tuple[Row, str]]:
    """Read a table whose third column, if it has that title, is the folder of an editable install."""
    head = TABLE.match(text)
    editable = bool(head and head[1])
    start = text.count("\n", 0, head.end()) if head else 0
    for number, line in enumerate(lines_of(record, text)[start:], start + 1):
        cells = line.split(maxsplit=2 if editable else -1)
        if len(cells) > 1:
            folder = clean(cells[2]) if editable and cells[2:] else None
            yield (cells[0], cells[1], folder), f"line {number}"
        elif cells:
            faults.add(f"line {number}: this is not a row of the table: {quoted(line)}", _AGAIN)


_NO_INDEX = {"debian", "rpm"}
"""INSTALLER of what came with the operating system."""
_INSPECT_AGAIN = "write it again: pip inspect > inspect.json"


def read_inspect(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read the JSON report that `pip inspect` prints; ManifestError."""
    report, faults = json_of(record, text_of(record)), Faults(record.name)
    report = report if isinstance(report, dict) else {}
    version = str(report.get("version", "1"))
    if version.partition(".")[0] != "1":  # it means other things by the same keys
        what = f"this is version {quote(version)} of what pip inspect prints, and this envbuild reads version 1"
        raise ManifestError(what, where=record.name, todo="use a newer envbuild, or an older pip")
    environment, items = report.get("environment"), report.get("installed")
    if not isinstance(items, list):
        faults.add("installed: there is no list of what is installed", _INSPECT_AGAIN)
        items = []
    implementation = text_at(environment, "implementation_name") or "cpython"
    platform = Platform(
        system=fact(environment, "platform_system"),
        machine=fact(environment, "platform_machine"),
        kernel=fact(environment, "platform_release"),
    )
    pins = Pins.begin(record, options, text_at(environment, "python_full_version"), platform, faults)
    for index, item in enumerate(items):
        _take_installed(item, f"installed[{index}]", pins)
    pip = fact(report, "pip_version")
    return pins.manifest(complete=True, implementation=clean(implementation), tool=f"pip {pip}" if pip else "pip")


def _take_installed(item: Any, place: str, pins: Pins) -> None:
    name, version = text_at(item, "metadata", "name"), text_at(item, "metadata", "version")
    if not name or not version or not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        return pins.faults.add(f"{place}: metadata has no name and version", _INSPECT_AGAIN)
    installer = text_at(item, "installer")
    found = Distribution(
        name=name,
        version=version,
        origin=_origin_of_report(item.get("direct_url"), installer),
        installer=fact(item, "installer"),
        requested=item.get("requested") is True,
    )
    return pins.add(found, place)


def _origin_of_report(direct_url: Any, installer: str | None) -> Origin:
    if installer == "conda":  # its direct_url names a folder of conda's build machine
        return Origin(kind="conda")
    if direct_url is None:
        return Origin(kind="unknown" if installer is None or installer.lower() in _NO_INDEX else "index")
    try:
        direct = DirectUrl.from_dict(direct_url if isinstance(direct_url, Mapping) else {})
    except DirectUrlValidationError:
        return Origin(kind="unknown")
    origin = replace(origin_of(direct.url), subdirectory=direct.subdirectory and clean(direct.subdirectory))
    if direct.vcs_info:
        asked = direct.vcs_info.requested_revision
        return replace(
            origin, kind="vcs", commit=clean(direct.vcs_info.commit_id), requested_revision=asked and clean(asked)
        )
    if direct.archive_info:
        digest = sha256_of((direct.archive_info.hashes or {}).get("sha256"))
        return replace(origin, kind="archive", sha256=digest)
    return origin if origin.kind == "conda" else replace(origin, kind="editable", sha256=None)


def read_pylock(record: Record, options: RecordOptions) -> TrainingManifest:
    """Read what such a file has an installer install, without extras and with its default groups; ManifestError."""
    try:
        pylock = parse_pylock(toml_of(record, text_of(record)))
    except (PylockValidationError, ValueError, RecursionError) as error:
        what = f"this is not a valid pylock.toml: {clean(str(error))}"
        raise ManifestError(what, where=record.name, todo="have the tool that locked write it again") from error
    ours = (pylock.tool or {}).get("envbuild")
    machine, glibc = fact(ours, "machine"), fact(ours, "glibc")
    system, libc = "Linux" if machine else None, "glibc" if glibc else None
    platform = Platform(system=system, machine=machine, libc=libc, libc_version=glibc)
    pins = Pins.begin(record, options, text_at(ours, "python"), platform)
    _check_target(pylock, pins)
    for index, package in enumerate(pylock.packages):
        _take_package(package, f"packages[{index}]", pylock, pins)
    left = {*(pylock.extras or ()), *({*(pylock.dependency_groups or ())} - {*(pylock.default_groups or ())})}
    names = ", ".join(sorted(left))
    notes = [f"the lock's extras and groups are left out, as installers do by default: {names}"] if left else []
    return pins.manifest(complete=True, tool=clean(pylock.created_by), notes=notes)


def _check_target(pylock: Pylock, pins: Pins) -> None:
    """Refuse a run that the lock is not for."""
    run = pins.surroundings
    if pylock.requires_python and not pylock.requires_python.contains(run.version, prereleases=True):
        what = f"requires-python: the lock is for Python {pylock.requires_python}, the run's is {run.python}"
        pins.faults.add(what, "give the Python that the run had")
    answers = [run.holds(it) for it in pylock.environments or ()]
    if answers and not any(it is not False for it in answers):
        pins.faults.add("environments: the lock is for none like the run's", "say where the run was: --ran-on")


def _take_package(package: Package, place: str, pylock: Pylock, pins: Pins) -> None:
    holds = pins.surroundings.holds(package.marker, pylock.default_groups or ())
    if holds is None:
        what = f"{place}: whether {package.name} was installed depends on where: {package.marker}"
        return pins.faults.add(what, PLATFORM)
    if not holds:
        return None
    # Where the package itself has no version, the name of a file has it.
    archive = package.archive
    names = [it.filename for it in package.wheels or ()] + [(archive.url or archive.path or "") if archive else ""]
    version = str(package.version or next((read[1] for it in names if (read := file_name(it))), "")) or None
    only = parsed_wheel(names[0]) if len(package.wheels or ()) == 1 else None
    variant = WheelVariant(label=only.label) if only and only.label else None
    origin = _origin_of_package(package)
    return pins.add(Distribution(name=package.name, version=version, origin=origin, wheel_variant=variant), place)


def _origin_of_package(package: Package) -> Origin:
    if package.vcs:
        vcs = package.vcs
        place = origin_of(f"{vcs.type}+{vcs.url or vcs.path}").url
        asked = vcs.requested_revision
        return Origin(
            kind="vcs",
            url=place,
            commit=clean(vcs.commit_id),
            requested_revision=asked and clean(asked),
            subdirectory=vcs.subdirectory and clean(vcs.subdirectory),
        )
    if package.directory:
        return Origin(kind="editable", url=origin_of(package.directory.path).url)
    if package.archive:
        archive = package.archive
        digest = sha256_of(archive.hashes.get("sha256"))
        return Origin(kind="archive", url=origin_of(archive.url or archive.path or "").url, sha256=digest)
    files = [*(package.wheels or ()), *([package.sdist] if package.sdist else ())]
    digests = {sha256_of(it.hashes.get("sha256")) for it in files}
    return index_origin(package.index, tuple(sorted(filter(None, digests))))
