"""What conda's records have in common.

conda's packages are not an index's: names and builds differ. So they are recorded as what they are; distributions are
only what pip installed, and the frameworks, whose names are known.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.manifest.formats.found import Found
from envbuild.manifest.formats.given import Given, exact_python, known_platform
from envbuild.manifest.formats.pins import Pins
from envbuild.manifest.formats.record import Faults, Record, clean
from envbuild.manifest.formats.requirement_files import RequirementsFile
from envbuild.manifest.formats.requirements import take_lines
from envbuild.manifest.formats.surroundings import Surroundings
from envbuild.manifest.model import Platform
from envbuild.manifest.packages import Conda, CondaPackage, Distribution, Origin

EXPORT = "write down what was installed: `conda env export`, or `conda list --json`, in the run's environment"
_FRAMEWORKS = {"tensorflow": "tensorflow", "pytorch": "torch", "jax": "jax", "jaxlib": "jaxlib", "keras": "keras"}
"""Packages of conda, and the distributions of the same software."""
_NO_DISTRIBUTIONS = "conda's packages are recorded as such: which distributions they hold is not in the record"
_SUBDIRS = {
    "linux-64": ("Linux", "x86_64"),
    "linux-aarch64": ("Linux", "aarch64"),
    "osx-64": ("Darwin", "x86_64"),
    "osx-arm64": ("Darwin", "arm64"),
    "win-64": ("Windows", "AMD64"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What conda says of an environment."""

    packages: tuple[CondaPackage, ...]
    python: str | None
    """Perhaps no exact version."""
    pip: tuple[tuple[str, str], ...]
    """What pip installed: a line of a requirements file, and its place in the record."""
    name: str | None = None
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def found_in(installed: Installed, record: Record, given: Given, faults: Faults) -> Found:
    """Say what an environment of conda had; ManifestError."""
    python = exact_python(installed.python, given, record.name)
    platform = known_platform(_platform(installed.packages), given)
    pins = Pins(Surroundings(python=python, system=platform.system, machine=platform.machine), faults)
    file = RequirementsFile(faults)
    for text, place in installed.pip:
        file.take(text, place, record)
    take_lines(file, pins)
    frameworks = [it for it in _frameworks(installed.packages) if canonicalize_name(it.name) not in pins.found]
    for it in frameworks:
        pins.add(it, f"package {it.name}")
    faults.check()
    packages = {(it.name, it.version, it.build): it for it in installed.packages}
    return Found(
        python=python,
        implementation=_implementation(installed.packages),
        platform=platform,
        distributions=pins.distributions,
        complete=False,
        notes=(_NO_DISTRIBUTIONS, *map(_told, frameworks), *installed.notes, *file.notes),
        tool="conda",
        conda=Conda(
            packages=tuple(sorted(packages.values(), key=lambda it: it.name)),
            name=installed.name,
            channels=installed.channels,
        ),
    )


def channel(text: str | None) -> str | None:
    """Return a channel's name; of an address or `t/TOKEN/name` the last part alone, as the rest may hold a token."""
    if not text or not ("://" in text or text.lstrip("/").startswith("t/")):
        return clean(text) or None if text else None
    return clean(text).rstrip("/").rpartition("/")[2] or None


def _frameworks(packages: Iterable[CondaPackage]) -> Iterator[Distribution]:
    for it in packages:
        if it.name in _FRAMEWORKS and _is_version(it.version):
            origin = Origin(kind="conda", url=it.url, sha256=it.sha256, channel=it.channel, build=it.build)
            yield Distribution(name=_FRAMEWORKS[it.name], version=it.version, origin=origin, installer="conda")


def _is_version(text: str) -> bool:
    try:
        return bool(Version(text))
    except InvalidVersion:
        return False


def _told(framework: Distribution) -> str:
    build = f", {framework.origin.build}," if framework.origin.build else ""
    return f"{framework.name} {framework.version} is conda's build{build} and an index has it built otherwise"


def _implementation(packages: Iterable[CondaPackage]) -> str:
    builds = (it.build or "" for it in packages if it.name == "python")
    return "pypy" if any("pypy" in it for it in builds) else "cpython"


def _platform(packages: Iterable[CondaPackage]) -> Platform:
    known = (_SUBDIRS[it.subdir] for it in packages if it.subdir in _SUBDIRS)
    system, machine = next(known, (None, None))
    return Platform(system=system, machine=machine)
