"""`pip inspect`: everything that is installed, with PEP 610's direct_url.json and the environment's markers."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.direct_url import DirectUrl, DirectUrlValidationError

from envbuild.errors import ManifestError
from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import Pins, origin_of, sha256_of
from envbuild.manifest.formats.record import Faults, Record, clean, json_of, text_at, text_of
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Distribution, Origin
from envbuild.validation import quote

_NO_INDEX = {"debian", "rpm"}
"""INSTALLER of what came with the operating system."""
_AGAIN = "write it again: pip inspect > inspect.json"


def read_inspect(record: Record, given: Given) -> Found:
    """Read the JSON report that `pip inspect` prints; ManifestError."""
    report, faults = json_of(record, text_of(record)), Faults(record.name)
    _check_version(report, record.name)
    environment = report.get("environment") if isinstance(report, dict) else None
    python = exact_python(text_at(environment, "python_full_version"), given, record.name)
    implementation = text_at(environment, "implementation_name") or "cpython"
    platform = Platform(
        system=_fact(environment, "platform_system"),
        machine=_fact(environment, "platform_machine"),
        kernel=_fact(environment, "platform_release"),
    )
    pins = Pins(Surroundings(python=python), faults)
    for index, item in enumerate(_items(report, faults)):
        _take(item, f"installed[{index}]", pins)
    faults.check()
    pip = _fact(report, "pip_version")
    return Found(
        python=python,
        implementation=clean(implementation),
        platform=known_platform(platform, given),
        distributions=pins.distributions,
        complete=True,
        tool=f"pip {pip}" if pip else "pip",
    )


def _check_version(report: Any, where: str) -> None:
    """ManifestError for a later major version of the report, which means other things by the same keys."""
    said = report.get("version", "1") if isinstance(report, dict) else "1"
    if str(said).partition(".")[0] != "1":
        what = f"this is version {quote(str(said))} of what pip inspect prints, and this envbuild reads version 1"
        raise ManifestError(what, where=where, todo="use a newer envbuild, or an older pip")


def _items(report: Any, faults: Faults) -> list[Any]:
    items = report.get("installed") if isinstance(report, dict) else None
    if not isinstance(items, list):
        faults.add("installed: there is no list of what is installed", _AGAIN)
        return []
    return items


def _take(item: Any, place: str, pins: Pins) -> None:
    name, version = text_at(item, "metadata", "name"), text_at(item, "metadata", "version")
    if not name or not version or not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        return pins.faults.add(f"{place}: metadata has no name and version", _AGAIN)
    installer = text_at(item, "installer")
    found = Distribution(
        name=name,
        version=version,
        origin=_origin(item.get("direct_url"), installer),
        installer=clean(installer) if installer else None,
        requested=item.get("requested") is True,
    )
    return pins.add(found, place)


def _origin(direct_url: Any, installer: str | None) -> Origin:
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


def _fact(values: Any, key: str) -> str | None:
    text = text_at(values, key)
    return clean(text) or None if text else None
