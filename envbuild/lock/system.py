"""The Debian packages that an environment needs besides its wheels: those whose libraries the run had loaded."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envbuild.lock.model import PACKAGE_NAME, PACKAGE_VERSION
from envbuild.manifest.hardware import Native
from envbuild.manifest.model import Platform

_PROVIDED = re.compile(
    r"libc6|libc-bin|(?:lib)?python3(?:[.-].*)?|(?:lib)?python3\.\d+.*"
    r"|cuda-.*|nvidia-.*|libnv(?:idia|infer|jitlink|jpeg|toolsext|rtc|vm|fatbin|onnxparsers|parsers).*"
    r"|libcu(?:da|dnn|blas|fft|rand|solver|sparse|file|tensor|pti|inj|math).*|libn(?:ccl|pp).*"
)
"""The C library and the interpreter are the base's, and NVIDIA's libraries the variant's or the host's."""
_IGNORED = re.compile(
    r"libnss_.*"
    r"|lib(?:bz2|crypto|db|expat|ffi|gdbm|gdbm_compat|lzma|mpdec|ncurses|ncursesw|nsl|panelw|readline|sqlite3|ssl|tinfo|tirpc"
    r"|uuid|z|zstd)(?:-[\d.]+)?\.so.*"
)
"""Libraries that look up the host's accounts, and those of Python's standard library: a base that has Python has them,
under some name."""
_STEM = re.compile(r"(.+?\.so(?:\.\d+)?)(?:\.|\Z)")
_FOREIGN = {"rpm": "RPM", "apk": "Alpine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPackage:
    """A package from which the run had libraries loaded."""

    name: str
    version: str
    libraries: tuple[str, ...]
    """Their files' names."""

    @property
    def other_names(self) -> tuple[str, ...]:
        """Its names in other releases."""
        return spellings(self.name)[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseContents:
    """The packages and shared libraries of a base."""

    installed: Mapping[str, str]
    """Versions by the packages' names."""
    libraries: frozenset[str] = frozenset()
    """File names of shared libraries."""


class MissingPackages(NamedTuple):
    """What a base lacks of a run's system libraries."""

    packages: tuple[RunPackage, ...] = ()
    """Sorted by name."""
    warnings: tuple[str, ...] = ()
    """Libraries that it lacks and for which no Debian package is known."""
    notes: tuple[str, ...] = ()
    """Packages that it has in another version."""


class ChosenPackages(NamedTuple):
    """Names and versions of the packages to take from a mirror, and warnings where they differ from the run's."""

    requests: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def find_missing(native: Native | None, base: BaseContents) -> MissingPackages:
    """Compare the libraries that the run had loaded with what the base has."""
    lacking, others = [], []
    for it in wanted_packages(native):
        version = next((base.installed[name] for name in spellings(it.name) if name in base.installed), None)
        if version is None:
            lacking.append(it)
        elif version != it.version:
            others.append(f"{it.name} {version} (the run had {it.version})")
    note = f"the base has other versions than the run of {len(others)} system packages: {', '.join(others)}"
    return MissingPackages(tuple(lacking), tuple(_without_counterpart(native, base)), (note,) if others else ())


def wanted_packages(native: Native | None) -> tuple[RunPackage, ...]:
    """The Debian packages from which libraries were loaded, except those of the base or the variant; by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for it in native.libraries if native else ():
        name, version = it.owner.name or "", it.owner.version or ""
        valid = re.fullmatch(PACKAGE_NAME, name) and re.fullmatch(PACKAGE_VERSION, version)
        foreign = _PROVIDED.fullmatch(name) or _IGNORED.fullmatch(it.name)
        if it.owner.kind == "debian" and valid and not foreign:
            found.setdefault((name, version), []).append(it.name)
    return tuple(
        RunPackage(name=name, version=version, libraries=tuple(sorted(set(files))))
        for (name, version), files in sorted(found.items())
    )


def choose_packages(
    wanted: Sequence[RunPackage], available: Mapping[str, Sequence[str]], run: str, base: str
) -> ChosenPackages:
    """Take the run's version of each package where the mirror has it, else its first one, with a warning."""
    requests, warnings = [], []
    for it in wanted:
        name = next((name for name in spellings(it.name) if available.get(name)), None)
        if name is None:
            what = f"{base} has no package {it.name}, which the run on {run} loaded {', '.join(it.libraries)} from"
            warnings.append(f"{what}: the image lacks it, put it into a base of your own")
            continue
        version = it.version if it.version in available[name] else available[name][0]
        requests.append((name, version))
        if (name, version) != (it.name, it.version):
            warnings.append(f"{name} {version} of {base} is taken; the run on {run} had {it.name} {it.version}")
    return ChosenPackages(requests=tuple(requests), warnings=tuple(warnings))


def spellings(name: str) -> tuple[str, ...]:
    """A library's package with and without `t64`, the suffix for 64-bit time in Debian 13 and Ubuntu 24.04."""
    return (name, name.removesuffix("t64")) if name.endswith("t64") else (name, f"{name}t64")


def distribution_name(platform: Platform) -> str:
    """The name of the run's Linux distribution: `ubuntu 20.04`."""
    return " ".join(it for it in (platform.os_id, platform.os_version) if it) or "an unknown distribution"


def _without_counterpart(native: Native | None, base: BaseContents) -> Iterator[str]:
    """Warn of libraries of RPM and Alpine packages that the base lacks under any name."""
    stems = {_stem(name) for name in base.libraries}
    lacking: dict[str, set[str]] = {}
    for it in native.libraries if native else ():
        known = _stem(it.name) in stems or _IGNORED.fullmatch(it.name)
        if it.owner.kind in _FOREIGN and it.owner.name and not known and not _PROVIDED.fullmatch(it.owner.name):
            lacking.setdefault(f"the {_FOREIGN[it.owner.kind]} package {it.owner.name}", set()).add(it.name)
    for owner, files in sorted(lacking.items()):
        names = ", ".join(sorted(files))
        yield f"the run loaded {names} from {owner}, whose counterpart of the base is not known: the image lacks it"


def _stem(name: str) -> str:
    """`libsndfile.so.1` of `libsndfile.so.1.0.35`: the name that programs load."""
    found = _STEM.match(name)
    return found[1] if found else name
