"""`pixi.lock` and `conda-lock.yml`: packages of conda and wheels of an index, locked for one platform or several."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from envbuild.errors import ManifestError
from envbuild.manifest.formats.conda import SUBDIRS, Installed, found_in
from envbuild.manifest.formats.conda_list import address_of
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import PLATFORMS, Given
from envbuild.manifest.formats.pins import PLATFORM, of_address, sha256_of
from envbuild.manifest.formats.record import MAX_LOCK, Faults, Record, clean, quoted, text_at, texts
from envbuild.manifest.formats.yaml_text import yaml_of
from envbuild.manifest.packages import CondaPackage, Distribution, Origin

_OLD_PIXI = "write it again: pixi lock, or give what `pixi run pip list --format=json` prints"
_INSTALLED = {"main", "dev"}
"""The categories that `conda-lock install` installs unless it is told otherwise."""


def read_pixi_lock(record: Record, given: Given) -> Found:
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
    subdir = _subdir(by_platform, given, record.name)
    # Before version 6 an entry had its address as `url`.
    entries = {
        text_at(it, "conda") or text_at(it, "pypi") or text_at(it, "url"): it for it in _dicts(values.get("packages"))
    }
    pairs = [(text_at(it, "conda") or "", text_at(it, "pypi") or "") for it in _dicts(by_platform[subdir])]
    listed = [(conda, wheel, entries.get(conda or wheel, {})) for conda, wheel in pairs]
    return _found(listed, record, given, faults, note)


def read_conda_lock(record: Record, given: Given) -> Found:
    """Read the categories main and dev of one platform; ManifestError."""
    values, faults = yaml_of(record, MAX_LOCK), Faults(record.name)
    items = _dicts(values.get("package") if isinstance(values, dict) else None)
    subdir = _subdir([text_at(it, "platform") or "" for it in items], given, record.name)
    items = [it for it in items if it.get("platform") == subdir]
    wanted = [it for it in items if _INSTALLED & {*texts(it.get("categories")), it.get("category", "main")}]
    chosen = [
        (address, "", it) if text_at(it, "manager") == "conda" else ("", address, it)
        for it in wanted
        if (address := text_at(it, "url") or "?")
    ]
    left = ", ".join(sorted({clean(text_at(it, "name") or "") for it in items if it not in wanted}))
    note = f"the lock's optional packages are left out: {left}" if left else ""
    return _found(chosen, record, given, faults, note)


def _found(
    chosen: list[tuple[str, str, dict[str, Any]]], record: Record, given: Given, faults: Faults, note: str
) -> Found:
    """Make the environment of entries, each with an address of conda's or of a wheel and what the lock says of it."""
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
            faults.add(f"this is no package of conda: {quoted(conda)}", "have the tool write the lock again")
    installed = Installed(
        packages=tuple(packages),
        python=next((it.version for it in packages if it.name == "python"), None),
        pip=(),
        wheels=tuple(wheels),
        notes=(note,),
        projects=projects,
    )
    return found_in(installed, record, given, faults)


def _projects(package: CondaPackage, entry: dict[str, Any]) -> dict[str, str | None]:
    """Return the project that the lock itself names (purl, package URL), or that it says there is none."""
    if not isinstance(entry.get("purls"), list):
        return {}
    names = [unquote(it.removeprefix("pkg:pypi/").partition("@")[0].partition("?")[0]) for it in texts(entry["purls"])]
    return {package.name: next((it for it in names if it and ":" not in it), None)}


def _distribution(address: str, entry: dict[str, Any]) -> Distribution:
    """Return what pip installed: by name, version and digest, or from an address that is no index's."""
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


def _subdir(locked: Iterable[str], given: Given, where: str) -> str:
    """Choose the platform that was given, or the only one of the lock; ManifestError."""
    names = sorted({it for it in locked if it in SUBDIRS})
    if given.platform:
        names = [it for it in names if SUBDIRS[it] == PLATFORMS[given.platform]]
    if len(names) == 1:
        return names[0]
    known = ", ".join(sorted({clean(it) for it in locked}))
    other = f", not for {given.platform}" if given.platform else ""
    what = f"the lock is for {known or 'no platform'}{other}"
    raise ManifestError(what, where=where, todo=PLATFORM)


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [it for it in items if isinstance(it, dict)] if isinstance(items, list) else []
