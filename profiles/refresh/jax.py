"""JAX's releases: a wheel for every platform, and beside it the jaxlib and the CUDA plug-ins that belong to it."""

import re
import struct
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envbuild.match.rows import FrameworkProfile, FrameworkWheel, Release
from profiles.refresh.archive import calls, remote_wheel
from profiles.refresh.index import Index, IndexFile
from profiles.refresh.metadata import Metadata, Need, cudnn, limits, read_metadata
from profiles.refresh.rows import MACHINES, WORKERS, Report, Row, counted, dotted, linux_rows, profile, released

OLDEST = "0.4.20"
_PART = re.compile(r"jaxlib|jax-cuda\d+-(plugin|pjrt)")
_EXTRA = re.compile(r"cuda(\d+)(-pip)?")
_PLUGIN = re.compile(r"jax_plugins/xla_cuda\d+/__init__\.py")
_KERNELS = re.compile(r"jax_cuda\d+_plugin/_prng\.so")
"""The smallest library of a plug-in with code for GPUs; all are built for the same ones."""
_KERNELS_LIMIT = 64 << 20
_FATBIN = struct.Struct("<IHHQ")
_FATBIN_MAGIC, _FATBIN_VERSION, _PTX = 0xBA55ED50, 1, 1
_CODE = struct.Struct("<HHIQ12xI")
"""Of each piece of code in a fat binary its kind, a number, the sizes of its header and its content; what it is for."""


def read_jax(index: Index, report: Report) -> FrameworkProfile:
    """Read every release with its parts by range requests; LockError names what failed."""
    files = {version: it for it in index.files("jax") if (version := released(it.name, OLDEST, "jax")) is not None}
    shelf = _Shelf(index)
    with ThreadPoolExecutor(WORKERS) as pool:
        found = pool.map(lambda version: _read_release(shelf, version, files[version]), sorted(files))
        return profile("jax", tuple(counted(found, len(files), report)))


class _Missing(Exception):  # noqa: N818 - no error of the program: a note beside the rows
    """A part that the index does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wheel:
    """What a wheel of JAX or of one of its parts says."""

    metadata: Metadata
    opened: tuple[tuple[str, tuple[str, ...]], ...]
    """Folder below `nvidia` and names of the libraries in it that a plug-in opens."""
    capabilities: tuple[str, ...]
    """What the kernels of a plug-in were compiled for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """What a release needs on one machine with one extra."""

    parts: tuple[Row, ...]
    needs: tuple[Need, ...]
    opened: tuple[tuple[str, tuple[str, ...]], ...]
    capabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Shelf:
    """What was read of the index; threads may read a thing twice, which does no harm."""

    index: Index
    pages: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    wheels: dict[str, _Wheel] = field(default_factory=dict)

    def rows(self, distribution: str, machine: str) -> list[Row]:
        """The rows of a project for a machine, in rising order."""
        if distribution not in self.pages:
            self.pages[distribution] = linux_rows(self.index, distribution, "0")
        return [it for it in self.pages[distribution] if it.newest.machine == machine]

    def wheel(self, file: IndexFile) -> _Wheel:
        """Read one wheel."""
        if file.url not in self.wheels:
            with remote_wheel(self.index, file) as archive:
                self.wheels[file.url] = _Wheel(
                    metadata=read_metadata(archive), opened=_opened(archive), capabilities=_capabilities(archive)
                )
        return self.wheels[file.url]


def _read_release(shelf: _Shelf, version: Version, file: IndexFile) -> Release:
    """One row for each machine without CUDA, and one for each CUDA that it has an extra for."""
    extras = shelf.wheel(file).metadata.extras
    numbers = sorted({match[1] for it in extras if (match := _EXTRA.fullmatch(it))}, key=int)
    wheels: list[FrameworkWheel] = []
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for machine in MACHINES:
        for number in ("", *numbers):
            named = [it for it in (f"cuda{number}", f"cuda{number}-pip") if it in extras]
            found = _first_row(shelf, file, machine, number, named if number else ["cpu"])
            if isinstance(found, FrameworkWheel):
                wheels.append(found)
            elif not number:
                missing[found].append(machine)
        for extra in sorted(it for it in extras if it.startswith("cuda")):
            if note := _why_not(shelf, file, machine, extra):
                missing[note].append(machine)
    notes = (f"{text} for {' and '.join(machines)}" for text, machines in missing.items())
    return Release(version=version, wheels=tuple(wheels), extras=tuple(sorted(extras)), notes=tuple(notes))


def _why_not(shelf: _Shelf, file: IndexFile, machine: str, extra: str) -> str:
    """Why an extra brings no CUDA; empty where it does."""
    try:
        _, stack = _installable(shelf, file, machine, extra)
    except _Missing as missing:
        return f"{extra}: the index has no {missing}"
    brings = any(it.is_nvidia for it in stack.needs)
    return "" if brings else f"{extra}: it brings no library of CUDA; the base has to have them,"


def _first_row(shelf: _Shelf, file: IndexFile, machine: str, number: str, extras: list[str]) -> FrameworkWheel | str:
    """The row of the first extra that can be installed, else why the first cannot."""
    reasons = []
    for extra in extras:
        try:
            return _read_row(shelf, file, machine, extra, number)
        except _Missing as missing:
            reasons.append(f"{extra}: the index has no {missing}")
    return reasons[0]


def _read_row(shelf: _Shelf, file: IndexFile, machine: str, extra: str, number: str) -> FrameworkWheel:
    metadata = shelf.wheel(file).metadata
    pythons, stack = _installable(shelf, file, machine, extra)
    pins = {it.newest.distribution: f"{it.newest.distribution}=={it.newest.version}" for it in stack.parts}
    jaxlib = pins.pop("jaxlib")
    nvidia = [it.text for it in stack.needs if it.is_nvidia]
    name, version, _, _ = parse_wheel_filename(file.name)
    return FrameworkWheel(
        distribution=name,
        version=str(version),
        machine=machine,
        pythons=pythons,
        glibc=dotted(max(it.glibc for it in stack.parts)),
        extra=extra if number else None,
        cuda=number or None,
        cudnn=cudnn(stack.needs),
        compute_capabilities=stack.capabilities,
        libraries=_libraries(stack.opened, number),
        cuda_requirements=tuple(sorted((*pins.values(), *nvidia))),
        limits=limits(metadata.needs(machine, pythons, extra)),
        stands_for=jaxlib,
        wheel=file.name,
        sha256=file.sha256.hex,
        parts=tuple(f"{it.newest.file.name} ({it.newest.file.sha256})" for it in stack.parts),
    )


def _installable(shelf: _Shelf, file: IndexFile, machine: str, extra: str) -> tuple[tuple[str, ...], _Stack]:
    """The Pythons that an extra can be installed for, and what it brings."""
    metadata = shelf.wheel(file).metadata
    pythons = _pythons(shelf, metadata, machine, extra)
    stack = _resolve(shelf, metadata, machine, pythons, extra)
    if all(it.newest.distribution != "jaxlib" for it in stack.parts):
        raise _Missing("jaxlib for any Python that it allows")
    return pythons, stack


def _pythons(shelf: _Shelf, metadata: Metadata, machine: str, extra: str) -> tuple[str, ...]:
    """Those that jaxlib and every plug-in have wheels for, and that JAX itself allows."""
    known = {python for row in shelf.rows("jaxlib", machine) for python in row.pythons}
    allowed = tuple(sorted((it for it in known if metadata.requires_python.contains(f"{it}.99")), key=Version))
    parts = _resolve(shelf, metadata, machine, allowed, extra).parts
    return tuple(it for it in allowed if all(it in row.pythons for row in parts if row.pythons))


def _resolve(shelf: _Shelf, metadata: Metadata, machine: str, pythons: tuple[str, ...], extra: str) -> _Stack:
    """Take the newest of every part that is allowed, as pip does, and then what the parts require."""
    needs = metadata.needs(machine, pythons, extra)
    parts, rest, opened, capabilities = [], list(needs), [], list[str]()
    for name in dict.fromkeys(it.name for it in needs if _PART.fullmatch(it.name)):
        wanted = [it for it in needs if it.name == name]
        row = next((it for it in reversed(shelf.rows(name, machine)) if _allowed(it, wanted)), None)
        if row is None:
            raise _Missing(wanted[-1].text)
        wheel = shelf.wheel(row.newest.file)
        inside = next((it for need in wanted for it in need.extras), "")
        inner = _resolve(shelf, wheel.metadata, machine, pythons, inside)
        parts += [row, *inner.parts]
        rest += inner.needs
        opened += [*wheel.opened, *inner.opened]
        capabilities += [*wheel.capabilities, *inner.capabilities]
    return _Stack(parts=tuple(parts), needs=tuple(rest), opened=tuple(opened), capabilities=tuple(capabilities))


def _allowed(row: Row, wanted: list[Need]) -> bool:
    return all(it.specifier.contains(row.newest.version) for it in wanted)


def _opened(archive: zipfile.ZipFile) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What a plug-in opens by itself before its libraries are loaded; nothing before 0.6.2."""
    name = next((it for it in archive.namelist() if _PLUGIN.fullmatch(it)), None)
    found = (it for it in (calls(archive, name, "_load") if name else ()) if len(it) == 2)
    return tuple((str(folder), tuple(map(str, names))) for folder, names in found if isinstance(names, list))


def _capabilities(archive: zipfile.ZipFile) -> tuple[str, ...]:
    """What a plug-in's kernels were compiled for, by the headers of their fat binaries: `compute_90` has PTX too."""
    name = next((it for it in archive.namelist() if _KERNELS.fullmatch(it)), None)
    if name is None or archive.getinfo(name).file_size > _KERNELS_LIMIT:
        return ()
    data, found = archive.read(name), set[tuple[int, int]]()
    for match in re.finditer(re.escape(_FATBIN_MAGIC.to_bytes(4, "little")), data):
        found |= set(_codes(data, match.start()))
    numbers = sorted({number for _, number in found})
    return tuple(f"{'compute' if (_PTX, it) in found else 'sm'}_{it}" for it in numbers)


def _codes(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Kind and architecture of every piece of code in the fat binary that begins here."""
    if at + _FATBIN.size > len(data):
        return
    _, version, head, size = _FATBIN.unpack_from(data, at)
    if (version, head) != (_FATBIN_VERSION, _FATBIN.size):
        return  # the same four bytes in something else
    at, end = at + head, min(at + head + size, len(data))
    while at + _CODE.size <= end:
        kind, _, head, size, number = _CODE.unpack_from(data, at)
        yield kind, number
        at += max(head + size, _CODE.size)


def _libraries(opened: tuple[tuple[str, tuple[str, ...]], ...], number: str) -> tuple[str, ...]:
    """Of the one list that the plug-ins of all CUDAs share: CUDA 13 has a folder of its own there, 12 has the rest."""
    own = {_stem(name) for folder, names in opened if folder == f"cu{number}" for name in names}
    chosen = (
        name
        for folder, names in opened
        for name in names
        if folder == f"cu{number}" or not (re.fullmatch(r"cu\d+", folder) or _stem(name) in own)
    )
    return tuple(sorted(set(chosen)))


def _stem(library: str) -> str:
    return library.partition(".so")[0]
