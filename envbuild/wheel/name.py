"""What a wheel's file name says, with the label of a wheel variant (PEP 825, a draft: the text of 10 August 2026).

packaging, pip and uv's pylock.toml refuse a name with a label. Under its plain name they take the same file.
"""

import re
from dataclasses import dataclass
from typing import Self

from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version

_LABEL = re.compile(r"[0-9a-z_.]+")
_PARTS = 5
"""Of a name without build and label: name, version, Python, ABI and platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelName:
    """The parts of `torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64-cu128.whl`."""

    name: NormalizedName
    version: Version
    build: BuildTag
    tags: frozenset[Tag]
    label: str | None
    """`cu128`; None for a wheel that is no variant."""
    plain: str
    """The file name without the label."""

    @classmethod
    def parse(cls, filename: str) -> Self:
        """Read a file name; InvalidWheelFilename for anything but a wheel's."""
        plain, label, parts = filename, None, filename.removesuffix(".whl").split("-")
        # A build begins with a digit, and no Python tag does.
        has_build = len(parts) > _PARTS and parts[2][:1].isdecimal()
        if len(parts) == _PARTS + 1 + has_build and filename.endswith(".whl"):
            label = parts.pop()
            if not _LABEL.fullmatch(label):
                raise InvalidWheelFilename(f"Invalid variant label: {label!r} in {filename!r}")
            plain = f"{'-'.join(parts)}.whl"
        name, version, build, tags = parse_wheel_filename(plain)
        return cls(name=name, version=version, build=build, tags=tags, label=label, plain=plain)


def parsed_wheel(filename: str) -> WheelName | None:
    """Read a wheel's file name; None for any other file."""
    try:
        return WheelName.parse(filename)
    except ValueError:  # also for numbers of thousands of digits
        return None
