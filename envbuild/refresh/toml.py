"""A framework's profile as TOML for people: one `[[release]]` a version, short lists on one line."""

import json
from collections.abc import Iterable

from envbuild.match.profiles import SCHEMA, FrameworkProfile, FrameworkWheel, Release

_WIDTH = 120
_HEADER = """\
# Made by `python -m envbuild.refresh` from the wheels on the package index; do not edit.
# Each row was read from the wheel that it names: METADATA, build_info.py, and the tags of all files of that release.
"""


def to_toml(profile: FrameworkProfile) -> str:
    """Write a profile; equal profiles give equal text."""
    head = f"{_HEADER}\nschema = {SCHEMA}\nframework = {_text(profile.name)}\n"
    return head + "".join(_release(release) for release in profile.releases)


def _release(release: Release) -> str:
    return f"\n[[release]]\nversion = {_text(str(release.version))}\n" + "".join(
        _wheel(wheel) for wheel in release.wheels
    )


def _wheel(wheel: FrameworkWheel) -> str:
    rows: Iterable[tuple[str, str | tuple[str, ...] | None]] = (
        ("distribution", wheel.distribution),
        ("machine", wheel.machine),
        ("pythons", wheel.pythons),
        ("glibc", wheel.glibc),
        ("cuda", wheel.cuda),
        ("cudnn", wheel.cudnn),
        ("compute_capabilities", wheel.compute_capabilities),
        ("cuda_requirements", wheel.cuda_requirements),
        ("stands_for", wheel.stands_for),
        ("wheel", wheel.wheel),
        ("sha256", wheel.sha256.hex),
    )
    return "\n[[release.wheel]]\n" + "".join(f"{key} = {_value(key, value)}\n" for key, value in rows if value)


def _value(key: str, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return _text(value)
    line = "[" + ", ".join(map(_text, value)) + "]"
    if len(key) + len(" = ") + len(line) <= _WIDTH:
        return line
    return "[\n" + "".join(f"  {_text(item)},\n" for item in value) + "]"


def _text(value: str) -> str:
    """A basic string: JSON's escapes are a part of TOML's, but TOML also wants DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
