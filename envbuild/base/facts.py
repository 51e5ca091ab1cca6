"""What is known of a base without reading its layers again: from an earlier run here, or as a registry claims it."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from envbuild.cache import read_entry, write_entry
from envbuild.lock.model import Target
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.trust import Claim

T = TypeVar("T")
FORMAT = 4
"""Raised whenever other facts would be read from the same bytes."""
_SHAPES = {
    "python": re.compile(r"3\.\d+\.\d+(?:(?:a|b|rc)\d+)?\Z"),
    "glibc": re.compile(r"\d+\.\d+\Z"),
    "python_path": re.compile(r"(?:/[^/\x00-\x20\x7f]+)*/python3\.\d+\Z"),
    "interpreter": re.compile(r"[0-9a-f]{64}\Z"),
    "distribution": re.compile(r"[^\x00-\x1f\x7f]{0,99}\Z"),
}
"""What is read from a base ends up in an environment's files and on terminals."""


class SharedFacts(Protocol):
    """What the repository that is pushed to says; see `envbuild.registry.SharedCache`."""

    def get(self, key: Digest, decode: Callable[[Any], T]) -> Claim[T] | None:
        """The fact under a key; None where there is none that `decode` accepts."""

    def put(self, key: Digest, value: Any) -> None:
        """Take a fact to share."""


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
    """Remembers in a folder of this machine, and asks the repository that is pushed to."""

    folder: Path
    shared: SharedFacts | None = None

    def facts(self, image: Digest) -> Facts | None:
        """What is known of a base's files.

        A claim is used without proof, and kept nowhere: who can falsify it can falsify the repository's layers too.
        """
        key, here = _key(image), read_entry(self.folder, f"{image.hex}-{FORMAT}.json", _facts)
        if here and self.shared:
            self.shared.put(key, asdict(here))
        claim = self.shared.get(key, _facts) if self.shared and not here else None
        return claim.value if claim else here

    def remember(self, image: Digest, facts: Facts) -> None:
        """Keep what was read here, and share it."""
        write_entry(self.folder, f"{image.hex}-{FORMAT}.json", asdict(facts))
        if self.shared:
            self.shared.put(_key(image), asdict(facts))

    def mirror_of(self, digest: Digest) -> str:
        """The name that a mirrored manifest was copied from; empty where it is not known."""
        return read_entry(self.folder, f"{digest.hex}-mirror.json", _name) or ""

    def remember_mirror(self, digest: Digest, name: str) -> None:
        """Keep where a mirrored manifest was copied from."""
        write_entry(self.folder, f"{digest.hex}-mirror.json", name)


def _key(image: Digest) -> Digest:
    return Digest.of(canonical_json(["base facts", FORMAT, str(image)]))


def _facts(value: Any) -> Facts:
    if not isinstance(value, dict) or value.keys() != _SHAPES.keys():
        raise ValueError("it does not say Python, glibc and interpreter of a base")
    if wrong := [
        key for key, shape in _SHAPES.items() if not (isinstance(value[key], str) and shape.match(value[key]))
    ]:
        raise ValueError(f"its {wrong[0]} cannot be {value[wrong[0]]!r:.100}")
    return Facts(**value)


def _name(value: Any) -> str:
    if not re.fullmatch(r"[\w./:-]{1,512}", value):
        raise ValueError("it is no name of an image")
    return str(value)
