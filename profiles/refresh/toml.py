"""Profiles as TOML for people: one `[[release]]` a version, lists in as few lines as they fit."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields

from envbuild.match.profiles import SCHEMA
from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Opener, Release

_WIDTH = 120
_Value = str | tuple[str, ...] | bool
_HEADER = """\
# Made by `python -m profiles.refresh` from the wheels on the package index; do not edit.
# Each row was read from the wheel that it names (and its parts): METADATA, what it says of its build, and the tags of
# all files of that release.
"""


_OPENERS_HEADER = """\
# Made by `python -m profiles.refresh openers` from the wheels on the package index; do not edit.
# Each row was read from the wheel that it names, for x86_64, the newest of its releases: METADATA, what it says of its
# build, and the names in its shared objects. Not here: lightgbm, whose wheels use the GPU by OpenCL only; flash-attn,
# which the index has as sources only, so that its CUDA is that of the machine that built it; cudf-cu11 and its like,
# which the index has no wheels of.
"""


def openers_to_toml(openers: Iterable[Opener]) -> str:
    """Write the projects beside the frameworks; equal rows give equal text."""
    rows = ("".join(_lines((field.name, getattr(it, field.name)) for field in fields(it))) for it in openers)
    return f"{_OPENERS_HEADER}\nschema = {SCHEMA}\n" + "".join(f"\n[[opener]]\n{row}" for row in rows)


def to_toml(profile: FrameworkProfile) -> str:
    """Write a profile; equal profiles give equal text."""
    head = f"{_HEADER}\nschema = {SCHEMA}\nframework = {_text(profile.name)}\n"
    return head + "".join(_release(release) for release in profile.releases)


def _release(release: Release) -> str:
    head = f"\n[[release]]\nversion = {_text(str(release.version))}\n" + _lines(
        (("extras", release.extras), ("notes", release.notes))
    )
    return head + "".join(_wheel(wheel) for wheel in release.wheels)


def _wheel(wheel: FrameworkWheel) -> str:
    return "\n[[release.wheel]]\n" + _lines(
        (
            ("distribution", wheel.distribution),
            ("machine", wheel.machine),
            ("extra", wheel.extra),
            ("pythons", wheel.pythons),
            ("glibc", wheel.glibc),
            ("cuda", wheel.cuda),
            ("cudnn", wheel.cudnn),
            ("cudnn_built", wheel.cudnn_built),
            ("compute_capabilities", wheel.compute_capabilities),
            ("libraries", wheel.libraries),
            ("cuda_requirements", wheel.cuda_requirements),
            ("limits", wheel.limits),
            ("keras_inside", wheel.keras_inside),
            ("stands_for", wheel.stands_for),
            ("wheel", wheel.wheel),
            ("sha256", wheel.sha256),
            ("parts", wheel.parts),
            ("others", wheel.others),
        )
    )


def _lines(rows: Iterable[tuple[str, _Value | None]]) -> str:
    return "".join(f"{key} = {_value(key, value)}\n" for key, value in rows if value)


def _value(key: str, value: _Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    line = "[" + ", ".join(map(_text, value)) + "]"
    if len(key) + len(" = ") + len(line) <= _WIDTH:
        return line
    return "[\n" + "".join(f"  {line}\n" for line in _filled(f"{_text(item)}," for item in value)) + "]"


def _filled(items: Iterable[str]) -> Iterator[str]:
    """As many items to a line as fit, and one at least."""
    line = ""
    for item in items:
        if line and len("  ") + len(line) + len(" ") + len(item) > _WIDTH:
            yield line
            line = item
        else:
            line = f"{line} {item}".lstrip()
    yield line


def _text(value: str) -> str:
    """A literal string where that spares escapes, else a basic one: with JSON's escapes, and one for DEL."""
    if '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
