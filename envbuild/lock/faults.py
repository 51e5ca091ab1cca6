"""What cannot be locked: found all at once, each with its reason and what to do."""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import LockError
from envbuild.lock.facts import read_classifiers
from envbuild.lock.index import Client, IndexFile
from envbuild.lock.model import LockedWheel, Target, best_wheel, glibc_minor
from envbuild.lock.settings import bare_url, local_path
from envbuild.manifest.packages import Distribution, exact_version
from envbuild.oci.digest import Digest
from envbuild.wheel.name import WheelName, parsed_wheel

_SYSTEMS = {"macosx": "Darwin", "win": "Windows", "win32": "Windows"}
"""`platform.system()` by how a platform tag begins."""
_CLASSIFIERS = {"Darwin": "Operating System :: MacOS", "Windows": "Operating System :: Microsoft"}
_OTHER_INDEX = "correct the version, or add the index that has it to pip's or uv's settings (extra-index-url)"
_LABEL_INDEX = (
    "add the index of the +{label} builds to pip's or uv's settings (PIP_EXTRA_INDEX_URL, UV_EXTRA_INDEX_URL; PyTorch's"
    " ends in /whl/{label}), or choose the other --variant; the build without the label is another one"
)
_FOLDER = (
    "put its wheel into a folder that --find-links names (`envbuild lock --download DIR` fetches wheels where there is"
    " a network), or leave out --offline"
)
_TODOS = {"index": (_OTHER_INDEX, _LABEL_INDEX), "folder": (_FOLDER, _FOLDER)}
"""Advice by place, for an absent version and for an absent local label."""
OWN_WHEEL = "build a wheel of it for this target and give its folder: --find-links DIR"
NEWER_GLIBC = "its wheels need a newer glibc"
_MANYLINUX = re.compile(r"manylinux_2_(\d{1,3})_")
_LET_BUILD = "let it be built from its source distribution: --build; or give the folder of its wheel: --find-links DIR"
_ELSEWHERE = "all its wheels are for another system: take it out of the record if Linux does without it; else "
_RUNS_OWN = "give the folder of a file with the recorded sha256: --find-links DIR; another file of this name is refused"
_ALLOWED = f"use the index that the record was made with; or {_RUNS_OWN}"
PUBLISH = "give the folder of its wheel: --find-links DIR; or publish the wheel to an index and pin that"
_BUILD_COMMIT = f"let it be built from that commit: --build; or {PUBLISH}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One distribution that cannot be locked."""

    requirement: str
    """`idna==3.99`."""
    why: str
    todo: str
    sdist: IndexFile | None = None
    """The source distribution that a wheel of it could be built from."""
    glibc: str | None = None
    """The lowest glibc that one of its wheels fits, if that is all that is missing; there is no `todo` then."""
    foreign: tuple[IndexFile, ...] = ()
    """If the project has wheels for another system only: a wheel of this release and one of the newest."""

    @property
    def name(self) -> str:
        """The distribution's normalised name."""
        return canonicalize_name(Requirement(self.requirement).name)


class UnlockableError(LockError):
    """The LockError that names every distribution that cannot be locked."""

    def __init__(
        self, faults: Iterable[Fault], target: Target | None = None, *, where: str = "", others: str = ""
    ) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: fault.name))
        self.target = target
        many = len(self.faults)
        head = f"{many} distribution{'s'[: many != 1]} cannot be locked{f' for {target}' if target else ''}:"
        lines = [f"  {it.requirement}: {it.why}" + (f"\n    do: {it.todo}" if it.todo else "") for it in self.faults]
        # One glibc for all that need a newer one, then what to do with the others.
        each = "do what stands below each of them, or leave one out by --drop NAME (not the framework)"
        each += others
        older = [fault for fault in self.faults if fault.glibc]
        build = ", or let them be built: --build" if all(fault.sdist for fault in older) else ""
        base = f"take a base with glibc {self.glibc} or later (--base; to lock alone, --glibc {self.glibc}){build}"
        todo = base if len(older) == len(self.faults) else f"{base}; {each}" if older else each
        todo += ", then run again; nothing was written"
        super().__init__("\n".join([head, *lines]), where=where, todo=todo)

    @property
    def glibc(self) -> str | None:
        """The lowest glibc that serves all distributions that only need a newer one; None if there are none."""
        return max((fault.glibc for fault in self.faults if fault.glibc), key=Version, default=None)


def diagnose(
    requirement: Requirement, files: Sequence[IndexFile], target: Target, *, offline: bool = False
) -> Fault | None:
    """Say why no wheel for the requirement is among a project's files (of folders, if `offline`); None if one is."""
    reason = _reason(requirement, files, target, "folder" if offline else "index")
    if reason is None:
        return None
    matching = [] if requirement.url else _matching(requirement, files)
    usable = [file for file in matching if _allows(file.requires_python, target.python)]
    sdists = (file for file in usable if not file.is_wheel)
    sdist = max(sdists, key=lambda file: (file.version, file.filename), default=None)
    if newer := newer_glibc((file.filename for file in usable if file.is_wheel), target):
        return Fault(str(requirement), NEWER_GLIBC, "", sdist=sdist, glibc=newer)
    foreign: tuple[IndexFile, ...] = ()
    wheels, own = [file for file in files if file.is_wheel], next((file for file in matching if file.is_wheel), None)
    if own is not None and len(systems := _systems(wheels)) == 1 and "" not in systems:
        foreign = own, max(wheels, key=lambda file: file.version)
    todo = (_ELSEWHERE if foreign else "") + (_LET_BUILD if sdist else reason[1])
    return Fault(str(requirement), reason[0], todo, sdist=sdist, foreign=foreign)


def origin_fault(distribution: Distribution) -> Fault | None:
    """The fault of a distribution that came from no index, where its name proves nothing; None for others."""
    origin = distribution.origin
    local = origin.url is not None and (origin.url.startswith("file:") or "://" not in origin.url)
    came = {
        "vcs": f"was installed from version control ({origin.url or 'no address'} at {origin.commit or 'no commit'})",
        "editable": f"is an editable install of {origin.url or 'a folder'}",
        "archive": f"was installed from a local path ({origin.url})" if local else "",
    }.get(origin.kind, "")
    if not came:
        return None
    why = f"{came}; what an index has under this name need not be the same"
    todo = _BUILD_COMMIT if can_build(distribution) else PUBLISH
    return Fault(f"{distribution.name}=={distribution.version}", why, todo)


def version_faults(distributions: Iterable[Distribution], without: Collection[str] = ()) -> list[Fault]:
    """The faults of distributions whose version the record does not have, but of those named in `without`."""
    todo = "take the record again by `pip inspect`, which says it; or write name==version of a wheel that you made"
    todo += ", and give its folder: --find-links DIR"
    why = "the record does not say which version it had; it came from"
    found = (it for it in distributions if not it.version and canonicalize_name(it.name) not in without)
    return [Fault(it.name, f"{why} {it.origin.url or it.origin.kind}", todo) for it in found]


def can_build(distribution: Distribution) -> bool:
    """Whether the manifest says enough to build a distribution from its commit, uncommitted changes included."""
    origin = distribution.origin
    if origin.kind not in {"vcs", "editable"} or origin.commit is None or not (origin.remote or origin.url):
        return False
    return not origin.dirty or (origin.patch is not None and Digest.of(origin.patch.encode()).hex == origin.diff_sha256)


def archive_fault(distribution: Distribution, wheel: LockedWheel) -> Fault | None:
    """The fault of a locked wheel that has the name of the run's archive but other bytes."""
    origin = distribution.origin
    same_file = unquote(urlsplit(origin.url or "").path.rpartition("/")[2]) == wheel.filename
    if origin.kind != "archive" or not same_file or origin.sha256 in {None, wheel.sha256.hex}:
        return None
    address = wheel.url == bare_url(origin.url or "")
    place = "that address now" if address else "the folder" if local_path(wheel.url) else "the index"
    why = f"the run installed {origin.url} with sha256 {origin.sha256}, {place} has {wheel.sha256.hex}"
    return Fault(f"{wheel.name}=={wheel.version}", why, _RUNS_OWN)


def hash_fault(distribution: Distribution, wheel: LockedWheel) -> Fault | None:
    """The fault of a locked wheel whose hash is not one of those in the run's record."""
    allowed = distribution.origin.hashes
    if not allowed or wheel.sha256.hex in allowed:
        return None
    why = f"{wheel.filename} has sha256 {wheel.sha256.hex}, which is not among the record's hashes"
    return Fault(f"{wheel.name}=={wheel.version}", why, _ALLOWED)


def newer_glibc(filenames: Iterable[str], target: Target) -> str | None:
    """The lowest glibc that one of the wheels fits, if the target's glibc is all that excludes it."""
    named = [(filename, filename) for filename in filenames]
    minors = {int(minor) for name, _ in named for minor in _MANYLINUX.findall(name)}
    newer = (replace(target, glibc=f"2.{minor}") for minor in sorted(minors) if minor > glibc_minor(target))
    return next((other.glibc for other in newer if best_wheel(named, other) is not None), None)


def listed(texts: Iterable[str], shown: int = 6) -> str:
    """The first few of some names, and how many more there are."""
    every = list(texts)
    return ", ".join(every[:shown]) + (f" and {len(every) - shown} more" if len(every) > shown else "")


def _reason(requirement: Requirement, files: Sequence[IndexFile], target: Target, place: str) -> tuple[str, str] | None:
    """Why there is no wheel, and what to do; None when there is one."""
    if requirement.url:
        return "is named by an address, not by a version", PUBLISH
    if not files:
        return f"no {place} has a project of this name", _TODOS[place][0]
    matching = _matching(requirement, files)
    if not matching:
        return _no_version(requirement, files, place)
    wheels = [file for file in matching if file.is_wheel]
    allowed = [file for file in wheels if _allows(file.requires_python, target.python)]
    if not allowed:
        source = f"the {place} has only a source distribution of it", OWN_WHEEL
        return _other_python(wheels, target.python) if wheels else source
    best = best_wheel(((file.filename, parsed_wheel(file.filename)) for file in allowed), target)
    if best is None or best.label:
        return _no_fitting_wheel(allowed, best, target)
    return None


def _other_python(wheels: Iterable[IndexFile], python: str) -> tuple[str, str]:
    """Which Python the wheels are for, and whether a base with another patch release of the run's is one."""
    bounds = sorted({file.requires_python or "" for file in wheels})
    needs, minor = f"it needs Python {listed(bounds)}", ".".join(python.split(".")[:2])
    if any(_allows(it, f"{minor}.{patch}") for it in bounds for patch in range(100)):
        todo = f"take a base with such a Python {minor} (--base), or pin an older release of it"
        return f"{needs}, and {python} is another patch release of {minor}", todo
    return needs, "pin an older release of it, or name the run's own Python, if that is another one (--python)"


def _no_fitting_wheel(files: Iterable[IndexFile], best: WheelName | None, target: Target) -> tuple[str, str]:
    """Which wheels there are instead: those of other targets, or variants alone, of which `best` is one."""
    wheels = [it for file in files if (it := parsed_wheel(file.filename))]
    if best is not None:
        labels = listed(sorted({it.label for it in wheels if it.label}))
        why = f"all its wheels for {target} are variants (PEP 825): {labels}; only one that the run had is locked"
        todo = "put the one that the image needs into a folder under its name without the label"
        return f"{why}, and for the cpu variant none that may need a GPU", f"{todo}, {best.plain}: --find-links DIR"
    tags = sorted({str(tag) for wheel in wheels for tag in wheel.tags})
    near = [tag for tag in tags if "linux" in tag and tag.endswith(target.machine)]
    return f"no wheel fits {target}; there are: {listed(near or tags)}", OWN_WHEEL


def _matching(requirement: Requirement, files: Sequence[IndexFile]) -> list[IndexFile]:
    return [file for file in files if requirement.specifier.contains(file.version, prereleases=True)]


def _no_version(requirement: Requirement, files: Sequence[IndexFile], place: str) -> tuple[str, str]:
    """Which versions there are instead: the same without its local label, else the two below and the two above."""
    versions = sorted({file.version for file in files})
    try:
        label = next((Version(specifier.version).local for specifier in requirement.specifier), None)
    except InvalidVersion:
        label = None
    if label and any(requirement.specifier.contains(f"{version.public}+{label}") for version in versions):
        why = f"the {place} has this version only without the local label +{label}"
        return why, _TODOS[place][1].format(label=label)
    exact = exact_version(requirement)
    middle = Version(exact) if exact else versions[-1]
    place_of_middle = bisect_right(versions, middle)
    near = versions[max(place_of_middle - 2, 0) : place_of_middle + 2]
    why = f"the {place} does not have this version, or has it no more; the nearest there: {', '.join(map(str, near))}"
    return why, _TODOS[place][0]


def _allows(requires_python: str | None, python: str) -> bool:
    """An invalid bound counts as none, as in pip."""
    try:
        return not requires_python or SpecifierSet(requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True


def why_foreign(fault: Fault, system: str, client: Client) -> str:
    """Why a distribution of a run on macOS or Windows is of no use on Linux; empty where that is not certain.

    A missing wheel is not enough: everything that the project ever published has to be for the other system.
    """
    if _systems(fault.foreign) != {system}:
        return ""
    name = {"Darwin": "macOS"}.get(system, system)
    if fault.sdist is None:
        return f"all wheels of the project are for {name}, and it has no source distribution to build another from"
    for wheel in fault.foreign:  # some older releases have no classifiers
        if systems := [it for it in read_classifiers(client, wheel) if it.startswith("Operating System ::")]:
            only = all(it.startswith(_CLASSIFIERS[system]) for it in systems)
            return f"all wheels of the project are for {name}, and its metadata names no other system" if only else ""
    return ""


def _systems(files: Iterable[IndexFile]) -> set[str]:
    """The systems that wheels are for; empty for Linux, for any system, and for those that no run can be on."""
    wheels = (parsed_wheel(file.filename) for file in files if file.is_wheel)
    return {_SYSTEMS.get(tag.platform.partition("_")[0], "") for it in wheels if it for tag in it.tags}
