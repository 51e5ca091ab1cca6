"""Where the assembler gets wheels from, and how it opens them."""

import threading
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envbuild.errors import BuildError
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from envbuild.wheel.fingerprint import Fingerprint, fingerprint
from envbuild.wheel.install import Scheme
from envbuild.wheel.layer import LayerFile
from envbuild.wheel.opened import LocalWheel, OpenWheel, layer_files, open_wheel


class Wheels(Protocol):
    """Wheels by what is locked; one may still be on its way."""

    def path(self, wheel: LockedWheel) -> Path:
        """The verified file, as soon as it is there."""

    def stop(self) -> None:
        """Let nobody wait any more: the image is not wanted."""


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """Wheels that are all here, by their sha256."""

    paths: Mapping[Digest, Path]

    def path(self, wheel: LockedWheel) -> Path:
        """The file; BuildError where it is not here."""
        found = self.paths.get(wheel.sha256)
        if found is None:
            what = "a layer has left the cache since this run looked for it"
            raise BuildError(what, where=wheel.filename, todo="run again, while nobody prunes the cache")
        return found

    def stop(self) -> None:
        """Do nothing, as nobody waits."""


class OpenWheels:
    """Wheels, each opened when it is first asked for, from several threads; closed with the stack."""

    def __init__(self, stack: ExitStack, recipe: Recipe, wheels: Wheels, proving: Container[Digest] = ()) -> None:
        self.stack, self._wheels, self._proving = stack, wheels, proving
        self.scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        self._found: dict[LockedWheel, OpenWheel] = {}
        self._true: dict[Digest, frozenset[str]] = {}
        self._prints: dict[Digest, Fingerprint] = {}
        self._lock = threading.Lock()

    def __getitem__(self, wheel: LockedWheel) -> OpenWheel:
        path = self._wheels.path(wheel)  # without the lock: others need not wait for this one
        with self._lock:
            if wheel not in self._found:
                self._found[wheel] = self._open(wheel, path)
            return self._found[wheel]

    def layer_files(self, wheels: Sequence[LockedWheel]) -> list[LayerFile]:
        """All files of some wheels; in the order of the lock, so that the later wheel wins where two have one path."""
        return layer_files(self[wheel] for wheel in wheels)

    def fingerprint(self, wheel: LockedWheel) -> Fingerprint:
        """What the wheel puts where."""
        known = self._prints.get(wheel.sha256)
        return fingerprint(self[wheel].files) if known is None else known

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """Requires-Dist of the wheel's METADATA."""
        archive = self[wheel].archive
        members = (it for it in archive.members if it.name.endswith(".dist-info/METADATA") and it.name.count("/") == 1)
        return requirements_of(archive.read(next(members)).decode("utf-8", "replace"))

    def true(self) -> dict[Digest, frozenset[str]]:
        """The members of each wheel that were read and found to be what its RECORD says."""
        found = {wheel.sha256: frozenset(found.archive.true) for wheel, found in self._found.items()}
        return {key: found.get(key, frozenset()) | self._true.get(key, frozenset()) for key in found | self._true}

    def learn(self, true: Mapping[Digest, frozenset[str]], prints: Mapping[Digest, Fingerprint]) -> None:
        """Take what another process found in wheels that it read."""
        self._true |= true
        self._prints |= prints

    def _open(self, wheel: LockedWheel, path: Path) -> OpenWheel:
        return open_wheel(self.file(wheel, path), self.scheme, self.stack)

    def file(self, wheel: LockedWheel, path: Path) -> LocalWheel:
        """A wheel as it lies there."""
        proving = wheel.sha256 in self._proving
        return LocalWheel(path=path, filename=wheel.filename, sha256=wheel.sha256, size=wheel.size, proving=proving)
