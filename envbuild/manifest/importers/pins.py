"""One requirement of a record as a distribution that was installed; markers decided as far as the run is known."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import product
from pathlib import PurePosixPath
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_sdist_filename,
)
from packaging.version import InvalidVersion, Version

from envbuild.manifest.importers.environment import (
    PLATFORMS,
    RecordOptions,
    exact_python,
    frameworks_of,
    known_platform,
    time_of,
)
from envbuild.manifest.importers.record import Faults, Record, clean, quoted
from envbuild.manifest.model import SCHEMA_VERSION, Platform, Python, Source, TrainingManifest
from envbuild.manifest.packages import Distribution, Origin, exact_version
from envbuild.wheel.name import WheelName

_WORDS = {"Linux": ("posix", "linux"), "Darwin": ("posix", "darwin"), "Windows": ("nt", "win32")}
"""`os_name` and `sys_platform`, by `platform_system`."""
_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


Markers = dict[str, str | frozenset[str]]
"""Values of environment markers by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known of the interpreter that a record is about."""

    python: str
    """Exact."""
    implementation: str = "cpython"
    system: str | None = None
    """As `platform.system()`; None where it is not known."""
    machine: str | None = None

    def holds(self, marker: Marker | None, groups: Iterable[str] = ()) -> bool | None:
        """Say whether a marker is true; None where that depends on what is not known, or it cannot be evaluated."""
        if marker is None:
            return True
        locked: Markers = {"extras": frozenset(), "dependency_groups": frozenset(groups), "extra": ""}
        try:
            # The context of a lock knows all names that the others know.
            answers = {marker.evaluate(it | locked, context="lock_file") for it in self._environments()}
        except (UndefinedComparison, UndefinedEnvironmentName, ValueError, RecursionError):
            return None
        return answers.pop() if len(answers) == 1 else None

    @property
    def version(self) -> Version:
        """The interpreter's version."""
        return Version(self.python.rstrip("+"))

    def has_python(self, versions: str | None) -> bool:
        """Whether the interpreter is among versions; True for what PEP 440 does not allow, as Poetry's own `||`."""
        try:
            return SpecifierSet(versions or "").contains(self.version, prereleases=True)
        except InvalidSpecifier:
            return True

    def _environments(self) -> list[Markers]:
        """Everything that the interpreter could be."""
        pairs = [it for it in PLATFORMS.values() if self.system in {None, it[0]} and self.machine in {None, it[1]}]
        if not pairs:
            systems = [self.system] if self.system else ["Linux", "Darwin", "Windows"]
            pairs = list(product(systems, [self.machine or ""]))
        return [self._environment(system, machine) for system, machine in pairs]

    def _environment(self, system: str, machine: str) -> Markers:
        os_name, sys_platform = _WORDS.get(system, ("posix", system.lower()))
        return {
            "implementation_name": self.implementation,
            "implementation_version": self.python,
            "os_name": os_name,
            "platform_machine": machine,
            "platform_python_implementation": _IMPLEMENTATIONS.get(self.implementation, self.implementation),
            "platform_release": "",
            "platform_system": system,
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": ".".join(self.python.split(".")[:2]),
            "sys_platform": sys_platform,
        }


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
    platform: Platform = field(default_factory=Platform)
    limits: dict[str, str] = field(default_factory=dict)
    """Exact versions that constraints name."""
    found: dict[str, tuple[Distribution, str]] = field(default_factory=dict)
    """By normalised name, with the place that it stands at."""

    @classmethod
    def begin(
        cls,
        record: Record,
        options: RecordOptions,
        python: str | None = None,
        platform: Platform | None = None,
        faults: Faults | None = None,
    ) -> Self:
        """Begin with the Python and platform that the record or the options name; ManifestError, UsageError."""
        exact, known = exact_python(python, options, record.name), known_platform(platform or Platform(), options)
        run = Surroundings(python=exact, system=known.system, machine=known.machine)
        return cls(run, faults or Faults(record.name), known)

    def manifest(
        self,
        *,
        complete: bool,
        notes: Iterable[str] = (),
        tool: str | None = None,
        created: datetime | None = None,
        implementation: str = "cpython",
        **facts: Any,
    ) -> TrainingManifest:
        """Return what the record says, `created` empty where it says no time; ManifestError where it has faults."""
        self.faults.check()
        frameworks = frameworks_of(self.distributions)
        # Keras runs on one of the others, so it could not have trained the model alone.
        several = len([it for it in frameworks if it.name != "keras"]) > 1
        cleaned = tuple(dict.fromkeys(filter(None, map(clean, notes))))
        return TrainingManifest(
            schema_version=SCHEMA_VERSION,
            created=time_of(created) if created else "",
            source=Source(format="capture", tool=tool, complete=complete, notes=cleaned),
            python=Python(version=self.surroundings.python, implementation=implementation),
            platform=self.platform,
            distributions=self.distributions,
            framework=None if several else next(iter(frameworks), None),
            frameworks=frameworks,
            **facts,
        )

    @property
    def distributions(self) -> tuple[Distribution, ...]:
        """All of them."""
        return tuple(distribution for distribution, _ in self.found.values())

    def add(self, distribution: Distribution, place: str) -> None:
        """Take a distribution; a second version of it is a fault."""
        name = canonicalize_name(distribution.name)
        first, before = self.found.setdefault(name, (distribution, place))
        if _same(first) != _same(distribution):
            one, other = (
                f"{it.version} from {url}" if it.version and url else it.version or url or "of unknown version"
                for it in (distribution, first)
                for url in [it.origin.url]
            )
            what = f"{place}: {name} is {one}, and {other} at {before}"
            self.faults.add(what, "leave the one that was installed")

    def require(self, text: str, place: str, hashes: tuple[str, ...] = ()) -> None:
        """Take a requirement (PEP 508) whose marker holds and that names exactly one version."""
        requirement = parse_requirement(text)
        if requirement is None:
            return self.faults.add(f"{place}: this is not a requirement: {quoted(text)}", "correct or remove the line")
        holds = self.surroundings.holds(requirement.marker)
        if holds is None:
            what = f"{place}: whether {requirement.name} was installed depends on where: {requirement.marker}"
            return self.faults.add(what, PLATFORM)
        return self._install(requirement, place, hashes) if holds else None

    def _install(self, requirement: Requirement, place: str, hashes: tuple[str, ...]) -> None:
        name = requirement.name
        if requirement.url:
            return self.add(of_address(requirement.url, name=name, hashes=hashes), place)
        version = exact_version(requirement) or self.limits.get(canonicalize_name(name))
        if version is None:
            return self.faults.add(f"{place}: {name}{requirement.specifier} is not an exact version", INSTALLED)
        origin = Origin(kind="index", hashes=hashes)
        return self.add(Distribution(name=name, version=version, origin=origin), place)


def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement (PEP 508) from outside; None for what is none."""
    try:
        return Requirement(text) if len(text) <= _LONGEST else None
    except (InvalidRequirement, RecursionError):
        return None


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
    parameters = dict(it.split("=", 1) for it in fragment.split("&") if "=" in it)
    vcs, subdirectory = _VCS.fullmatch(bare), clean(parameters.get("subdirectory", "")) or None
    if vcs:
        # The revision is what follows the @ in the repository's path.
        path, _, revision = _path(vcs[2]).rpartition("@") if "://" in vcs[2] else ("", "", "")
        place, revision = (vcs[2].removesuffix(f"@{revision}"), revision) if path else (vcs[2], "")
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
    return Origin(kind="archive", url=url, sha256=sha256_of(parameters.get("sha256")), subdirectory=subdirectory)


def index_origin(index: str | None, hashes: tuple[str, ...] = ()) -> Origin:
    """Say that a distribution came from an index, whose address the record may name, without its secrets."""
    address = re.split(r"[?#]", index or "", maxsplit=1)[0]
    return Origin(kind="index", url=clean(address, _LONGEST) or None, hashes=hashes)


def sha256_of(text: Any) -> str | None:
    """Return a SHA-256 digest as a manifest has it, with or without `sha256:` before it; None for anything else."""
    digest = text.lower().removeprefix("sha256:") if isinstance(text, str) else ""
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def file_name(address: str) -> tuple[str, str] | None:
    """Return name and version of the wheel or source archive that a URL or path ends in; None where it is neither."""
    name = PurePosixPath(unquote(_path(address.partition("#")[0]))).name
    try:
        wheel = WheelName.parse(name) if name.endswith(".whl") else None
        read = (wheel.name, wheel.version) if wheel else parse_sdist_filename(name)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return read[0], str(read[1])


def _path(address: str) -> str:
    try:
        return urlsplit(address).path if "://" in address else address
    except ValueError:  # a bracket that is no IPv6 address
        return ""


def _same(distribution: Distribution) -> tuple[str | None, str | None]:
    version = distribution.version
    return version and canonicalize_version(version), distribution.origin.url
