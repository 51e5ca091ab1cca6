"""One requirement of a record as a distribution that was installed."""

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from envbuild.manifest.formats.record import Faults, clean, quoted
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.packages import Distribution, Origin, exact_version

INSTALLED = "write down what was installed: `pip freeze --all` in the run's environment; or a version: numpy==1.26.4"
PLATFORM = "say where it ran: --ran-on linux/amd64"
_VCS = re.compile(r"(git|hg|svn|bzr)\+(.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_CONDA_BUILT = re.compile(r"file://.*/(feedstock_root|croot|conda-bld|conda-build|build_artifacts)/")
"""Folders of conda's build machines, which conda leaves in direct_url.json."""
_LONGEST = 4000
"""Characters of a requirement; the longest marker that uv writes has some hundred."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The distributions of a record, one a name; what cannot be one becomes a fault."""

    surroundings: Surroundings
    faults: Faults
    limits: dict[str, str] = field(default_factory=dict)
    """Exact versions that constraints name."""
    found: dict[str, tuple[Distribution, str]] = field(default_factory=dict)
    """By normalised name, with the place that it stands at."""

    @property
    def distributions(self) -> tuple[Distribution, ...]:
        """All of them."""
        return tuple(distribution for distribution, _ in self.found.values())

    def add(self, distribution: Distribution, place: str) -> None:
        """Take a distribution; a second version of it is a fault."""
        name = canonicalize_name(distribution.name)
        first, before = self.found.setdefault(name, (distribution, place))
        if _same(first) != _same(distribution):
            what = f"{place}: {name} is {_told(distribution)}, and {_told(first)} at {before}"
            self.faults.add(what, "leave the one that was installed")

    def require(self, text: str, place: str, hashes: tuple[str, ...] = ()) -> None:
        """Take a requirement (PEP 508) whose marker holds and that names exactly one version."""
        try:
            requirement = Requirement(text) if len(text) <= _LONGEST else None
        except (InvalidRequirement, RecursionError):
            requirement = None
        if requirement is None:
            return self.faults.add(f"{place}: this is no requirement: {quoted(text)}", "correct or remove the line")
        holds = self.surroundings.holds(requirement.marker)
        if holds is None:
            what = f"{place}: whether {requirement.name} was installed depends on where: {requirement.marker}"
            return self.faults.add(what, PLATFORM)
        return self._installed(requirement, place, hashes) if holds else None

    def _installed(self, requirement: Requirement, place: str, hashes: tuple[str, ...]) -> None:
        name = requirement.name
        if requirement.url:
            return self.add(of_address(requirement.url, name=name, hashes=hashes), place)
        version = exact_version(requirement) or self.limits.get(canonicalize_name(name))
        if version is None:
            return self.faults.add(f"{place}: {name}{requirement.specifier} is no exact version", INSTALLED)
        origin = Origin(kind="index", hashes=hashes)
        return self.add(Distribution(name=name, version=version, origin=origin), place)


def of_address(address: str, *, name: str, version: str | None = None, hashes: tuple[str, ...] = ()) -> Distribution:
    """Make the distribution that was installed from a URL; its version, where nobody says it, is in a file's name."""
    origin, filename = origin_of(address), file_name(address)
    if origin.kind == "archive" and not origin.sha256 and len(hashes) == 1:
        origin = replace(origin, sha256=hashes[0])
    version = version or (filename[1] if filename and canonicalize_name(name) == filename[0] else None)
    return Distribution(name=name, version=version, origin=origin)


def origin_of(address: str) -> Origin:
    """Say what sort of place a URL or path is (PEP 508, and pip's `git+`), without its secrets."""
    bare, _, fragment = address.strip().partition("#")
    told = dict(it.split("=", 1) for it in fragment.split("&") if "=" in it)
    vcs, subdirectory = _VCS.fullmatch(bare), clean(told.get("subdirectory", "")) or None
    if vcs:
        place, revision = _revision(vcs[2])
        exact = bool(_COMMIT.fullmatch(revision))
        return Origin(
            kind="vcs",
            url=clean(place, _LONGEST),
            commit=revision if exact else None,
            requested_revision=None if exact else clean(revision) or None,
            subdirectory=subdirectory,
        )
    url = clean(bare, _LONGEST)
    if _CONDA_BUILT.match(bare):
        return Origin(kind="conda")
    if file_name(bare) is None and (bare.startswith("file:") or "://" not in bare):
        return Origin(kind="editable", url=url, subdirectory=subdirectory)
    return Origin(kind="archive", url=url, sha256=sha256_of(told.get("sha256")), subdirectory=subdirectory)


def index_origin(index: str | None, hashes: tuple[str, ...] = ()) -> Origin:
    """Say that a distribution came from an index, whose address the record may name, without its secrets."""
    address = re.split(r"[?#]", index or "", maxsplit=1)[0]
    return Origin(kind="index", url=clean(address, _LONGEST) or None, hashes=hashes)


def sha256_of(text: Any) -> str | None:
    """Return a SHA-256 digest as a manifest has it, with or without `sha256:` before it; None for anything else."""
    digest = text.lower().removeprefix("sha256:") if isinstance(text, str) else ""
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def file_name(address: str) -> tuple[str, str] | None:
    """Return name and version of the wheel or source archive that a URL or path ends in; None where it is no such."""
    name = PurePosixPath(unquote(_path(address.partition("#")[0]))).name
    try:
        read = parse_wheel_filename(name)[:2] if name.endswith(".whl") else parse_sdist_filename(name)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return read[0], str(read[1])


def _revision(address: str) -> tuple[str, str]:
    """Split off what follows the @ in a repository's path."""
    path, _, revision = _path(address).rpartition("@") if "://" in address else ("", "", "")
    return (address.removesuffix(f"@{revision}"), revision) if path else (address, "")


def _path(address: str) -> str:
    try:
        return urlsplit(address).path if "://" in address else address
    except ValueError:  # a bracket that is no IPv6 address
        return ""


def _same(distribution: Distribution) -> tuple[str | None, str | None]:
    version = distribution.version
    return version and canonicalize_version(version), distribution.origin.url


def _told(distribution: Distribution) -> str:
    version, url = distribution.version, distribution.origin.url
    return f"{version} from {url}" if version and url else version or url or "of unknown version"
