"""TensorFlow's releases, as their wheels on the index say."""

import ast
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import HeaderParser
from itertools import groupby
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuild.errors import LockError
from envbuild.match.profiles import FrameworkProfile, FrameworkWheel, Release
from envbuild.refresh.index import Index, IndexFile
from envbuild.refresh.remote import member, remote_wheel
from envbuild.refresh.toml import to_toml

DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-cpu-aws")
"""In the order they are written; the last one holds the code of `tensorflow` on aarch64 up to 2.15."""
OLDEST = Version("2.5.0")
_BUILD_INFO = "tensorflow/python/platform/build_info.py"
_CUDA_EXTRA = "and-cuda"
_WORKERS = 16
_NAMED = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX = re.compile(r"(manylinux1|manylinux2010|manylinux2014|manylinux_(\d+)_(\d+))_(x86_64|aarch64)\Z")
_INTERPRETER = re.compile(r"cp(\d)(\d+)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A Linux wheel on a project's page."""

    distribution: str
    version: Version
    machine: str
    python: tuple[int, int]
    glibc: tuple[int, int]
    file: IndexFile

    @property
    def row(self) -> tuple[Version, int, str]:
        """What shares a row, and the order of rows; x86_64 comes first."""
        return self.version, DISTRIBUTIONS.index(self.distribution), {"x86_64": "0", "aarch64": "1"}[self.machine]


def refresh_tensorflow(index: Index, *, report: Callable[[str], object] = lambda _: None) -> str:
    """Read every release's wheels by range requests; returns profiles/tensorflow.toml, LockError names what failed."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        pages = pool.map(lambda name: tuple(_candidates(name, index.files(name))), DISTRIBUTIONS)
        found = sorted((candidate for page in pages for candidate in page), key=lambda it: (it.row, it.python))
        groups = [tuple(group) for _, group in groupby(found, key=lambda it: it.row)]
        report(f"reading {len(groups)} wheels")
        rows = list(pool.map(lambda group: _read_row(index, group), groups))
    if not rows:
        raise LockError("the package index has no release of tensorflow", todo="check the index settings of pip or uv")
    return to_toml(FrameworkProfile(name="tensorflow", releases=_releases(rows)))


def _releases(rows: Iterable[FrameworkWheel]) -> tuple[Release, ...]:
    versions: defaultdict[Version, list[FrameworkWheel]] = defaultdict(list)
    for row in rows:
        versions[Version(row.version)].append(row)
    return tuple(Release(version=version, wheels=tuple(versions[version])) for version in sorted(versions))


def _candidates(distribution: str, files: Iterable[IndexFile]) -> Iterable[_Candidate]:
    for file in files:
        try:
            name, version, _, tags = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue
        if name == distribution and version >= OLDEST and not version.is_prerelease:
            python, machine, glibc = _platform(tags)
            if python and machine and glibc:
                yield _Candidate(
                    distribution=distribution, version=version, machine=machine, python=python, glibc=glibc, file=file
                )


def _platform(tags: Iterable[Tag]) -> tuple[tuple[int, int] | None, str, tuple[int, int] | None]:
    """Python, machine and the lowest glibc of a Linux wheel; none for the wheels of other systems."""
    python, machine, levels = None, "", []
    for tag in tags:
        interpreter, platform = _INTERPRETER.match(tag.interpreter), _MANYLINUX.match(tag.platform)
        if interpreter and platform:
            python, machine = (int(interpreter[1]), int(interpreter[2])), platform[4]
            levels.append(_NAMED.get(platform[1]) or (int(platform[2]), int(platform[3])))
    return python, machine, min(levels, default=None)


def _read_row(index: Index, group: tuple[_Candidate, ...]) -> FrameworkWheel:
    """Read the wheel of the newest Python; those of the others were built from the same source in the same way."""
    newest = group[-1]
    with remote_wheel(index, newest.file) as archive:
        requirements = _requirements(archive)
        build = _build_info(archive)
    is_cuda = build is not None and bool(build.get("is_cuda_build"))
    facts = build if build is not None and is_cuda else {}
    return FrameworkWheel(
        distribution=newest.distribution,
        version=str(newest.version),
        machine=newest.machine,
        pythons=tuple("{}.{}".format(*python) for python in sorted({one.python for one in group})),
        glibc="{}.{}".format(*max(one.glibc for one in group)),
        cuda=str(facts["cuda_version"]) if is_cuda else None,
        cudnn=str(facts["cudnn_version"]) if is_cuda else None,
        compute_capabilities=tuple(map(str, facts.get("cuda_compute_capabilities", ()))),
        cuda_requirements=_cuda_requirements(requirements) if is_cuda else (),
        stands_for=None if build is not None else _stands_for(newest, requirements),
        wheel=newest.file.name,
        sha256=newest.file.sha256,
    )


def _requirements(archive: zipfile.ZipFile) -> tuple[Requirement, ...]:
    """Requires-Dist of METADATA; BadZipFile where there is no such file or it cannot be understood."""
    name = next((it for it in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", it)), None)
    if name is None:
        raise zipfile.BadZipFile("it has no METADATA")
    try:
        lines = HeaderParser().parsestr(member(archive, name)).get_all("Requires-Dist", [])
        return tuple(Requirement(line) for line in lines)
    except InvalidRequirement as error:
        raise zipfile.BadZipFile(f"a requirement cannot be read: {error}") from error


def _build_info(archive: zipfile.ZipFile) -> dict[str, Any] | None:
    """The dictionary `build_info`, parsed as a literal and never run; None where the wheel holds no code."""
    if _BUILD_INFO not in archive.namelist():
        return None
    try:
        for node in ast.parse(member(archive, _BUILD_INFO)).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "build_info":
                value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
                return dict(ast.literal_eval(value))
    except (SyntaxError, ValueError, TypeError, IndexError, RecursionError) as error:
        raise zipfile.BadZipFile(f"{_BUILD_INFO} cannot be read: {error}") from error
    raise zipfile.BadZipFile(f"{_BUILD_INFO} does not set build_info")


def _cuda_requirements(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """The requirements that only the extra for CUDA brings, without their marker, sorted by name."""
    chosen = (
        (canonicalize_name(it.name), str(it.specifier))
        for it in requirements
        if it.marker and it.marker.evaluate({"extra": _CUDA_EXTRA}) and not it.marker.evaluate({"extra": ""})
    )
    return tuple(name + specifier for name, specifier in sorted(chosen))


def _stands_for(candidate: _Candidate, requirements: Iterable[Requirement]) -> str:
    """The one requirement of a wheel without code on its own platform; BadZipFile where that is not plain."""
    machine = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": candidate.machine, "extra": ""}
    chosen = [f"{it.name}{it.specifier}" for it in requirements if it.marker is None or it.marker.evaluate(machine)]
    if len(chosen) != 1:
        where, todo = candidate.file.name, "report it to the framework's makers"
        raise LockError(f"the wheel has no {_BUILD_INFO} and requires {len(chosen)} others", where=where, todo=todo)
    return chosen[0]
