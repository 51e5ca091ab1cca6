"""Which locked wheel a failed build is about, by pip's own words."""

import re
from collections.abc import Iterable, Sequence

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.lock.model import LockedWheel

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([A-Za-z0-9.+!_-]+)")
_WHEEL = re.compile(r"[A-Za-z0-9_.+!%-]+\.whl")


def culprit(lines: Sequence[str], wheels: Iterable[LockedWheel]) -> LockedWheel | None:
    """Find the lock entry that pip's error names, else the one that pip was last busy with; None when neither is there.

    `lines` are what the failed step printed.
    """
    known = tuple(wheels)
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("ERROR")), len(lines))
    ordered = (*lines[first:], *reversed(lines[:first]))
    return next((wheel for line in ordered if (wheel := _named(line, known))), None)


def _named(line: str, wheels: Iterable[LockedWheel]) -> LockedWheel | None:
    files = set(_WHEEL.findall(line.replace("%2B", "+").replace("%2b", "+")))
    pins = {(canonicalize_name(name), _version(version)) for name, version in _PIN.findall(line)}
    return next((it for it in wheels if it.filename in files or (it.name, _version(it.version)) in pins), None)


def _version(text: str) -> Version | str:
    """The version as pip compares it; the text itself where it is none."""
    try:
        return Version(text.rstrip("."))
    except InvalidVersion:
        return text
