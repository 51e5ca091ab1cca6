"""What is known of a base without reading its layers again, from an earlier run on this machine and from no other."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuild.cache import read_entry, write_entry
from envbuild.lock.model import Target
from envbuild.oci.digest import Digest

_FORMAT = 4
"""Raised whenever other facts would be read from the same bytes."""
_SHAPES = {
    "python": re.compile(r"3\.\d+\.\d+(?:(?:a|b|rc)\d+)?\Z"),
    "glibc": re.compile(r"\d+\.\d+\Z"),
    "python_path": re.compile(r"(?:/[^/\x00-\x20\x7f]+)*/python3\.\d+\Z"),
    "interpreter": re.compile(r"[0-9a-f]{64}\Z"),
    "distribution": re.compile(r"[^\x00-\x1f\x7f]{0,99}\Z"),
}
"""What is read from a base ends up in an environment's files and on terminals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read from a base's files."""

    python: str
    """Its whole version."""
    glibc: str
    python_path: str
    distribution: str
    interpreter: str
    """A digest of the interpreter's own files."""

    def target(self, machine: str) -> Target:
        """What wheels have to fit."""
        return Target(python=self.python, machine=machine, glibc=self.glibc)


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Remembers in a folder of this machine."""

    folder: Path

    def facts(self, image: Digest) -> Facts | None:
        """What is known of a base's files."""
        return read_entry(self.folder, f"{image.hex}-{_FORMAT}.json", _facts)

    def remember(self, image: Digest, facts: Facts) -> None:
        """Keep what was read."""
        write_entry(self.folder, f"{image.hex}-{_FORMAT}.json", asdict(facts))

    def mirror_of(self, digest: Digest) -> str:
        """The name that a mirrored manifest was copied from; empty where it is not known."""
        return read_entry(self.folder, f"{digest.hex}-mirror.json", _name) or ""

    def remember_mirror(self, digest: Digest, name: str) -> None:
        """Keep where a mirrored manifest was copied from."""
        write_entry(self.folder, f"{digest.hex}-mirror.json", name)


def _facts(value: Any) -> Facts:
    if value.keys() != _SHAPES.keys() or not all(shape.match(value[key]) for key, shape in _SHAPES.items()):
        raise ValueError("they do not look like facts of a base")
    return Facts(**value)


def _name(value: Any) -> str:
    if not re.fullmatch(r"[\w./:-]{1,512}", value):
        raise ValueError("it is no name of an image")
    return str(value)
