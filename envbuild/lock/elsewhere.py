"""What a run on macOS or Windows had of that system alone: an image for Linux has no use for it, and no wheel of it.

Nothing is left out for want of a wheel: a project counts only where everything that it ever published says so.
"""

import email.parser
import email.policy
from collections.abc import Iterable
from typing import Protocol

from envbuild.lock.facts import read_metadata
from envbuild.lock.index import IndexFile
from envbuild.lock.tags import parsed_wheel
from envbuild.lock.web import Web

_SYSTEMS = {"macosx": "Darwin", "win": "Windows", "win32": "Windows"}
"""`platform.system()` by how a platform tag begins."""
_CLASSIFIERS = {"Darwin": "Operating System :: MacOS", "Windows": "Operating System :: Microsoft"}


class Stranded(Protocol):
    """A distribution that cannot be locked."""

    @property
    def foreign(self) -> tuple[IndexFile, ...]: ...
    @property
    def sdist(self) -> IndexFile | None: ...


def foreign_wheels(release: Iterable[IndexFile], project: Iterable[IndexFile]) -> tuple[IndexFile, ...]:
    """A wheel of the release and one of the newest, where all that the project ever had are for one other system."""
    wheels = [file for file in project if file.is_wheel]
    own = next((file for file in release if file.is_wheel), None)
    systems = _systems(wheels)
    if own is None or len(systems) != 1 or "" in systems:
        return ()
    return own, max(wheels, key=lambda file: file.version)


def why_left_out(stranded: Stranded, system: str, client: Web) -> str:
    """Why a distribution of a run on `system` is of no use on Linux; empty where that is not known for sure."""
    if _systems(stranded.foreign) != {system}:
        return ""
    name = {"Darwin": "macOS"}.get(system, system)
    if stranded.sdist is None:
        return f"all wheels of the project are for {name}, and it has no source distribution to build another from"
    # Some older releases declare nothing.
    said = next(filter(None, (_declared(read_metadata(client, wheel)) for wheel in stranded.foreign)), [])
    if said and all(it.startswith(_CLASSIFIERS[system]) for it in said):
        return f"all wheels of the project are for {name}, and its metadata names no other system"
    return ""


def _systems(files: Iterable[IndexFile]) -> set[str]:
    """What wheels are for; an empty name stands for Linux, any system, and every one that runs are not on."""
    wheels = (parsed_wheel(file.filename) for file in files if file.is_wheel)
    return {_SYSTEMS.get(tag.platform.partition("_")[0], "") for it in wheels if it for tag in it[3]}


def _declared(metadata: str) -> list[str]:
    headers = email.parser.HeaderParser(policy=email.policy.compat32).parsestr(metadata)
    return [it for it in map(str, headers.get_all("Classifier", [])) if it.startswith("Operating System ::")]
