"""What conda's records have in common.

conda's packages are recorded as what they are. Those that hold a Python distribution are distributions as well, under
the name of their project, so that the lock has each of them or says that it cannot be had.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.capture.conda import class_of, project_of
from envbuild.manifest.formats.found import FRAMEWORKS, Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import Pins
from envbuild.manifest.formats.record import Faults, Record, clean
from envbuild.manifest.formats.requirement_files import RequirementsFile
from envbuild.manifest.formats.requirements import take_lines
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Conda, CondaPackage, Distribution, Origin

EXPORT = (
    "write down what was installed: `conda env export`, or `conda list --json`, in the run's environment; or an exact "
    "version: numpy==1.26.4"
)
SUBDIRS = {
    "linux-64": ("Linux", "x86_64"),
    "linux-aarch64": ("Linux", "aarch64"),
    "osx-64": ("Darwin", "x86_64"),
    "osx-arm64": ("Darwin", "arm64"),
    "win-64": ("Windows", "AMD64"),
}
"""conda's names of platforms, with their system and machine."""
_BY_NAME = "the record does not have conda's builds: which packages hold Python distributions is told by their names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What conda says of an environment."""

    packages: tuple[CondaPackage, ...]
    python: str | None
    """Perhaps no exact version."""
    pip: tuple[tuple[str, str], ...]
    """What pip installed: a line of a requirements file, and its place in the record."""
    wheels: tuple[tuple[Distribution, str], ...] = ()
    """What a lock has of an index or of addresses, or a list of pip, each with its place."""
    name: str | None = None
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    projects: Mapping[str, str | None] = field(default_factory=dict)
    """By a package's name, the project that the record says it is, or None where it says that it is none."""


def found_in(installed: Installed, record: Record, given: Given, faults: Faults) -> Found:
    """Say what an environment of conda had; ManifestError."""
    python = exact_python(installed.python, given, record.name)
    platform = known_platform(_platform(installed.packages), given)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    file = RequirementsFile(faults)
    for text, place in installed.pip:
        file.take(text, place, record)
    take_lines(file, pins)
    for distribution, place in installed.wheels:
        pins.add(distribution, place)
    packages = {(it.name, it.version, it.build): it for it in sorted(installed.packages, key=lambda it: it.name)}
    notes = [*_take_packages(packages.values(), installed.projects, pins)]
    notes += _not_taken(packages.values(), installed.projects, pins)
    faults.check()
    return Found(
        python=python,
        implementation=_implementation(installed.packages),
        platform=platform,
        distributions=pins.distributions,
        complete=False,
        notes=(*notes, *installed.notes, *file.notes),
        tool="conda",
        conda=Conda(packages=tuple(packages.values()), name=installed.name, channels=installed.channels),
    )


def channel(text: str | None) -> str | None:
    """Return a channel's name; of an address or `t/TOKEN/name` the last part alone, as the rest may hold a token."""
    if not text or not ("://" in text or text.lstrip("/").startswith("t/")):
        return clean(text) or None if text else None
    return clean(text).rstrip("/").rpartition("/")[2] or None


def _take_packages(packages: Iterable[CondaPackage], projects: Mapping[str, str | None], pins: Pins) -> Iterator[str]:
    """Take the distributions that conda's packages hold, except what pip replaced; yield what there is to say."""
    taken: dict[str, Distribution] = {}
    for package in packages:
        project = projects[package.name] if package.name in projects else project_of(package.name, package.build)
        if project is None:
            continue
        made = distribution_of(project, package.version, _origin(package))
        if made.version is None:
            yield odd_version(package)
        other = taken.setdefault(canonicalize_name(project), made)
        if other.version != made.version:
            yield f"{package.name} {package.version} is left out: {other.name} {other.version} is the same project"
    for name, distribution in taken.items():
        if name not in pins.found:
            pins.add(distribution, f"package {distribution.name}")
            yield from _different_build(distribution)


def _not_taken(packages: Iterable[CondaPackage], projects: Mapping[str, str | None], pins: Pins) -> Iterator[str]:
    """List by class the packages that hold no distribution, in as many notes as they need.

    A metapackage such as typing-extensions only requires the package that has its distribution.
    """
    if any(it.build is None and it.name != "python" for it in packages):
        yield _BY_NAME
    classes: dict[str, list[str]] = {}
    for it in packages:
        project = projects[it.name] if it.name in projects else project_of(it.name, it.build)
        if project is None and it.name != "python" and canonicalize_name(it.name) not in pins.found:
            classes.setdefault(class_of(it.name), []).append(it.name)
    for kind, names in classes.items():
        head = f"no wheel for {kind}: "
        wrap = textwrap.TextWrapper(300, initial_indent=head, subsequent_indent=head, break_on_hyphens=False)
        yield from wrap.wrap(", ".join(names))


def distribution_of(name: str, version: str, origin: Origin) -> Distribution:
    """Make a distribution; without a version where it is none that an index could have."""
    try:
        valid: str | None = str(Version(version)) and version
    except InvalidVersion:
        valid = None
    return Distribution(name=name, version=valid, origin=origin, installer="conda" if origin.kind == "conda" else None)


def odd_version(package: CondaPackage) -> str:
    """Say why a distribution of the record has no version in the manifest."""
    return f"{clean(package.name)} is of version {clean(package.version)}, which no index could have"


def _origin(package: CondaPackage) -> Origin:
    return Origin(kind="conda", url=package.url, sha256=package.sha256, channel=package.channel, build=package.build)


def _different_build(distribution: Distribution) -> Iterator[str]:
    """Warn that a framework is another build than conda's."""
    if canonicalize_name(distribution.name) in {*FRAMEWORKS, "jaxlib"}:
        build = f", {distribution.origin.build}," if distribution.origin.build else ""
        yield f"{distribution.name} {distribution.version} is conda's build{build} and an index has it built otherwise"


def _implementation(packages: Iterable[CondaPackage]) -> str:
    builds = (it.build or "" for it in packages if it.name == "python")
    return "pypy" if any("pypy" in it for it in builds) else "cpython"


def _platform(packages: Iterable[CondaPackage]) -> Platform:
    known = (SUBDIRS[it.subdir] for it in packages if it.subdir in SUBDIRS)
    system, machine = next(known, (None, None))
    return Platform(system=system, machine=machine)
