"""The wheels of an environment as files below its prefix, whose libraries are read once and remembered by content."""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.cache import read_entry, write_entry
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from envbuild.verify.elf import Elf, read_elf
from envbuild.verify.inflated import MemberReader
from envbuild.wheel.archive import Member, WheelArchive, check_locked
from envbuild.wheel.install import Scheme, installed_files

_FORMAT = 1
"""Raised whenever other facts would be read from the same bytes."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One file of a wheel, in the image."""

    wheel: LockedWheel
    archive: WheelArchive
    member: Member | None
    """None for what installing makes."""


class Shelf:
    """All wheels of a recipe, open while the block lasts; WheelError for one that cannot be installed."""

    def __init__(self, recipe: Recipe, wheels: Mapping[Digest, Path], facts: Path, stack: ExitStack) -> None:
        self._facts = facts
        self._known: dict[Digest, dict[str, Elf | None]] = {}
        self._added: set[Digest] = set()
        self.files: dict[str, Placed] = {}
        """By path below the root: `opt/env/lib/python3.11/site-packages/six.py`."""
        scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        # by name, so that the later wheel wins where two have the same path, as in the image
        for wheel in sorted(recipe.wheels, key=lambda wheel: wheel.name):
            path = wheels[wheel.sha256]
            check_locked(path, wheel.filename, wheel.size)
            archive = stack.enter_context(WheelArchive(path, wheel.filename))
            for file in installed_files(archive, scheme):
                member = file.source if isinstance(file.source, Member) else None
                self.files[f"{recipe.prefix[1:]}/{file.path}"] = Placed(wheel, archive, member)

    def read(self, path: str) -> Elf | None:
        """Read a library by its path below the root; None for what is none."""
        placed = self.files[path]
        if placed.member is None:
            return None
        known = self._of(placed.wheel.sha256)
        name = placed.member.name
        if name not in known:
            known[name] = read_elf(MemberReader(placed.archive, placed.member).read_at)
            self._added.add(placed.wheel.sha256)
        return known[name]

    def warm(self, paths: Iterable[str]) -> None:
        """Read many libraries side by side, largest first: what takes the time is inflating them."""
        found = [path for path in paths if (member := self.files[path].member) and member.size]
        for path in found:
            self._of(self.files[path].wheel.sha256)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for _ in pool.map(self.read, sorted(found, key=self._size, reverse=True)):
                pass

    def keep(self) -> None:
        """Remember what was read."""
        for digest in self._added:
            facts = {name: elf and elf.to_list() for name, elf in self._known[digest].items()}
            write_entry(self._facts, _name(digest), facts)
        self._added.clear()

    def _size(self, path: str) -> int:
        member = self.files[path].member
        return member.size if member else 0

    def _of(self, digest: Digest) -> dict[str, Elf | None]:
        if digest not in self._known:
            self._known[digest] = read_entry(self._facts, _name(digest), _decode) or {}
        return self._known[digest]


def _name(digest: Digest) -> str:
    return f"wheel-{digest.hex}-{_FORMAT}.json"


def _decode(value: Any) -> dict[str, Elf | None]:
    return {name: elf and Elf.from_list(elf) for name, elf in value.items()}
