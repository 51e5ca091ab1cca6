"""Which Debian packages an environment needs besides its wheels: those that the run had libraries loaded from."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.lock.model import SystemPackage
from envbuild.manifest.hardware import Library, Native
from envbuild.manifest.model import Platform
from envbuild.oci.digest import Digest

_NAME, _VERSION = r"[a-z0-9][a-z0-9+.-]+", r"[0-9][0-9A-Za-z.+~:-]*"
_SHAPES = {
    "name": re.compile(_NAME),
    "version": re.compile(_VERSION),
    "architecture": re.compile(r"[a-z0-9-]+"),
    "filename": re.compile(r"(?:(?!\.)[\w.+~%:-]+/)*[a-z0-9][\w.+~%:-]*\.deb"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
}
"""Debian Policy, sections 5.6.1 and 5.6.12: what others wrote ends up in command lines and addresses."""
_OTHERS = re.compile(
    r"libc6|libc-bin|(?:lib)?python3(?:[.-].*)?|(?:lib)?python3\.\d+.*"
    r"|cuda-.*|nvidia-.*|libnv(?:idia|infer|jitlink|jpeg|toolsext|rtc|vm|fatbin|onnxparsers|parsers).*"
    r"|libcu(?:da|dnn|blas|fft|rand|solver|sparse|file|tensor|pti|inj|math).*|libn(?:ccl|pp).*"
)
"""The C library and the interpreter are the base's, and NVIDIA's libraries the variant's or the host's."""
_NO_MATTER = re.compile(
    r"libnss_.*"
    r"|lib(?:bz2|crypto|db|expat|ffi|gdbm|gdbm_compat|lzma|mpdec|ncurses|ncursesw|nsl|panelw|readline|sqlite3|ssl|tinfo|tirpc"
    r"|uuid|z|zstd)(?:-[\d.]+)?\.so.*"
)
"""What the host's accounts are looked up with, and what the modules of Python's own library are linked to: a base that
has those modules has what they need, by whichever name."""
_STEM = re.compile(r"(.+?\.so(?:\.\d+)?)(?:\.|\Z)")
_FOREIGN = {"rpm": "RPM", "apk": "Alpine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPackage:
    """A package that the run had libraries loaded from."""

    name: str
    version: str
    libraries: tuple[str, ...]
    """Their files' names."""

    @property
    def other_names(self) -> tuple[str, ...]:
        """What else it may be called in another release."""
        return spellings(self.name)[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseContents:
    """What a base has."""

    installed: Mapping[str, str]
    """Versions by the packages' names."""
    libraries: frozenset[str] = frozenset()
    """File names of shared libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What a base lacks of a run's system libraries."""

    packages: tuple[RunPackage, ...] = ()
    """Sorted by name."""
    warnings: tuple[str, ...] = ()
    """What it lacks, and no package of Debian's kind is known for."""
    notes: tuple[str, ...] = ()
    """What it has in another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which of the wanted packages a mirror has."""

    requests: tuple[tuple[str, str], ...] = ()
    """Names and versions."""
    warnings: tuple[str, ...] = ()
    """Where it is not what the run had."""


def find_missing(native: Native | None, held: BaseContents) -> Missing:
    """Compare the libraries that the run had loaded with what the base has."""
    wanted = wanted_packages(native)
    lacking = [it for it in wanted if _held(it.name, held) is None]
    pairs = [(it, _held(it.name, held)) for it in wanted]
    other = [
        f"{it.name} {version} (the run had {it.version})" for it, version in pairs if version not in (None, it.version)
    ]
    note = (
        [f"the base has other versions than the run of {len(other)} system packages: {', '.join(other)}"]
        if other
        else []
    )
    return Missing(packages=tuple(lacking), warnings=tuple(_unknown(native, held)), notes=tuple(note))


def wanted_packages(native: Native | None) -> tuple[RunPackage, ...]:
    """The Debian packages that libraries were loaded from, but those that are no matter of the image's; by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for it in native.libraries if native else ():
        name, version = it.owner.name or "", it.owner.version or ""
        foreign = _OTHERS.fullmatch(name) or _NO_MATTER.fullmatch(it.name)
        if it.owner.kind == "debian" and _well_formed(name, version) and not foreign:
            found.setdefault((name, version), []).append(it.name)
    return tuple(
        RunPackage(name=name, version=version, libraries=tuple(sorted(set(files))))
        for (name, version), files in sorted(found.items())
    )


def choose(wanted: Sequence[RunPackage], available: Mapping[str, Sequence[str]], run: str, base: str) -> Chosen:
    """Take the run's version of each package where there is it, else what apt would take, with a warning.

    `available` has the versions of each name, apt's choice first; `run` and `base` name their distributions.
    """
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
    return Chosen(requests=tuple(requests), warnings=tuple(warnings))


def spellings(name: str) -> tuple[str, ...]:
    """A library's package with and without the mark of 64-bit time, which Debian 13 and Ubuntu 24.04 gave to many."""
    return (name, name.removesuffix("t64")) if name.endswith("t64") else (name, f"{name}t64")


def distribution_name(platform: Platform) -> str:
    """What the run's distribution is called: `ubuntu 20.04`."""
    return " ".join(it for it in (platform.os_id, platform.os_version) if it) or "an unknown distribution"


def package_of(value: Mapping[str, Any]) -> SystemPackage:
    """Read a package that anybody may have written; ValueError where it is none."""
    for key, shape in _SHAPES.items():
        if not (isinstance(value.get(key), str) and shape.fullmatch(value[key])):
            raise ValueError(f"a system package has no valid {key}")
    size = value.get("size")
    if type(size) is not int or size <= 0:
        raise ValueError("a system package has no valid size")
    texts = {key: value[key] for key in ("name", "version", "architecture", "filename")}
    return SystemPackage(**texts, sha256=Digest(value["sha256"]), size=size)


def _well_formed(name: str, version: str) -> bool:
    return bool(re.fullmatch(_NAME, name) and re.fullmatch(_VERSION, version))


def _held(name: str, held: BaseContents) -> str | None:
    return next((held.installed[it] for it in spellings(name) if it in held.installed), None)


def _unknown(native: Native | None, held: BaseContents) -> Iterator[str]:
    """Libraries of other distributions' packages that the base lacks by any name."""
    stems = {_stem(name) for name in held.libraries}
    lacking: dict[str, list[Library]] = {}
    for it in native.libraries if native else ():
        known = _stem(it.name) in stems or _NO_MATTER.fullmatch(it.name)
        if it.owner.kind in _FOREIGN and it.owner.name and not known:
            lacking.setdefault(f"the {_FOREIGN[it.owner.kind]} package {it.owner.name}", []).append(it)
    for owner in sorted(lacking):
        if not _OTHERS.fullmatch(owner.rpartition(" ")[2]):
            names = ", ".join(sorted({it.name for it in lacking[owner]}))
            yield f"the run loaded {names} from {owner}, whose counterpart of the base is not known: the image lacks it"


def _stem(name: str) -> str:
    """`libsndfile.so.1` of `libsndfile.so.1.0.35`: what programs ask the loader for."""
    found = _STEM.match(name)
    return found[1] if found else name
