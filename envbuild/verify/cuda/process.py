"""A process and the libraries that glibc's dynamic loader finds for it (ld.so(8), dlopen(3), elf/dl-load.c).

The loader reads the dynamic section of ELF files and /etc/ld.so.cache (dl-cache.h). Not modelled are versions of
symbols (the wheels' platform tags cover them), folders for newer processors (glibc-hwcaps), and relative or empty
entries of paths, as they depend on the working folder.
"""

import posixpath
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import Dynamic
from elftools.elf.elffile import ELFFile
from msgspec import Struct

from envbuild.oci.rootfs import Tree, resolve

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""e_machine, by the names that lock and manifest use."""
_NODEFLIB = 0x800
_MOST_SEGMENTS, _MOST_TAGS = 512, 1 << 12
"""Far above what real libraries have; a damaged file may claim any number."""
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = struct.Struct("<20sLL20x"), struct.Struct("<LLLLQ")
_FLAGS = {"x86_64": 0x303, "aarch64": 0xA03}
"""What the loader of a machine accepts: the ELF kind and the ABI (FLAG_X8664_LIB64, FLAG_AARCH64_LIB64)."""
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
"""The loader's own name, by machine."""
HOST = "the host"
"""What leads to libraries that no image has."""
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?!\w))")


class Elf(Struct, frozen=True, array_like=True, kw_only=True):
    """One library, or program."""

    bits: int
    machine: str
    """e_machine; the other fields are read of 64-bit files only."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str = ""
    """Empty where there is a RUNPATH too, as the loader then ignores it."""
    runpath: str = ""
    nodeflib: bool = False
    """Whether the default folders are not searched for what it needs (DF_1_NODEFLIB)."""


class _ElfFile(ELFFile):
    """Without sections: the loader ignores them, and to read them at the end of a wheel's file inflates it twice."""

    def iter_sections(self, type: str | None = None) -> Iterator[Any]:  # noqa: A002, ARG002 - as the parent has it
        return iter(())


class _Offsets:
    """A string table that gives places, so that the strings are read later, in rising order."""

    def get_string(self, offset: int, /) -> str:
        return str(offset)


def read_elf(file: IO[bytes]) -> Elf | None:
    """Read a file's dynamic section; None for a file that no loader accepts."""
    try:
        return _read(_ElfFile(file), file)
    except (ELFError, ValueError, LookupError, OverflowError):  # what pyelftools raises for damaged files
        return None


def _read(elf: _ElfFile, file: IO[bytes]) -> Elf | None:
    machine = str(elf["e_machine"])
    if elf.elfclass != 64 or not elf.little_endian:
        return Elf(bits=elf.elfclass, machine=machine)
    if elf["e_phnum"] > _MOST_SEGMENTS:
        return None
    tags: dict[str, list[int]] = {}
    for segment in islice(elf.iter_segments("PT_DYNAMIC"), 1):
        table = Dynamic(file, elf, _Offsets(), segment["p_offset"], segment["p_filesz"] == 0)
        for tag in islice(table.iter_tags(), min(_MOST_TAGS, segment["p_filesz"] // 16)):
            tags.setdefault(str(tag.entry.d_tag), []).append(tag.entry.d_val)
    places = sorted({it for name in ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH") for it in tags.get(name, ())})
    start = next(elf.address_offsets(tags["DT_STRTAB"][0]), None) if places else 0
    if start is None:
        return None
    texts = {it: _text(file, start + it) for it in places}
    first = {name: texts[values[0]] for name, values in tags.items() if values[0] in texts}
    return Elf(
        bits=64,
        machine=machine,
        soname=first.get("DT_SONAME", ""),
        needed=tuple(texts[it] for it in tags.get("DT_NEEDED", ())),
        rpath="" if "DT_RUNPATH" in tags else first.get("DT_RPATH", ""),
        runpath=first.get("DT_RUNPATH", ""),
        nodeflib=bool(tags.get("DT_FLAGS_1", [0])[0] & _NODEFLIB),
    )


def _text(file: IO[bytes], start: int) -> str:
    """A string that ends with a null byte; ValueError without one. 30 kB of RUNPATH is the longest that was seen."""
    for size in (1 << 8, 1 << 12, 1 << 18):
        file.seek(start)
        text, end, _ = file.read(size).partition(b"\0")
        if end:
            return text.decode()
    raise ValueError("a string has no end")


def read_cache(data: bytes, machine: str) -> dict[str, str]:
    """The path of each name for a machine, without those for newer processors; empty for another file."""
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return {}
    paths: dict[str, str] = {}
    try:
        _, count, _ = _HEADER.unpack_from(data, start)
        for index in range(count):
            place = start + _HEADER.size + index * _ENTRY.size
            flags, name, path, _, capabilities = _ENTRY.unpack_from(data, place)
            if flags == _FLAGS[machine] and capabilities == 0:
                paths.setdefault(_cache_text(data, start + name), _cache_text(data, start + path))
    except (struct.error, ValueError):
        return {}
    return paths


def _cache_text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The files that a process sees, and what its loader looks at."""

    tree: Tree
    read: Callable[[str], Elf | None]
    """Reads the file at an absolute path without links; None for what is no library."""
    machine: str
    """`x86_64` or `aarch64`."""
    cache: Mapping[str, str] = field(default_factory=dict)
    """Path by name, of /etc/ld.so.cache."""
    library_path: str = ""
    """LD_LIBRARY_PATH."""
    host: re.Pattern[str] | None = None
    """Names that the host brings where the image does not."""

    @property
    def multiarch(self) -> str:
        """Debian's folder of libraries below /lib; empty where there is none."""
        folder = f"{self.machine}-linux-gnu"
        return folder if any(f"{root}/{folder}" in self.tree for root in ("lib", "usr/lib")) else ""

    @property
    def defaults(self) -> tuple[str, ...]:
        """The folders that are compiled into the loader."""
        if folder := self.multiarch:
            return (f"/lib/{folder}", f"/usr/lib/{folder}", "/lib", "/usr/lib")
        return ("/lib64", "/usr/lib64")


@dataclass(slots=True, kw_only=True, eq=False)
class Loaded:
    """A library in a process."""

    path: str
    """As it was opened, which is what $ORIGIN goes by."""
    real: str
    """Without links."""
    elf: Elf
    via: str
    """How the loader found it: `RUNPATH of /opt/env/…/libx.so`."""
    loader: "Loaded | None"
    """What needs it, where it was not opened: whose RPATH serves it too."""
    names: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLibrary:
    """A library that is not found, or is none."""

    name: str
    needed_by: str
    """Path of what needs or opens it; empty for the process itself."""
    why: str


class Process:
    """A process by the libraries that it has loaded."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._loaded: list[Loaded] = []
        self.program: Loaded | None = None
        self._take(LOADERS[system.machine], "the kernel, with the program")

    def start(self, program: str) -> tuple[MissingLibrary, ...]:
        """Load a program, whose path has no links, and what it needs."""
        self.program, missing = self.open(program, None)
        return missing

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """In the order they came."""
        return tuple(self._loaded)

    def find(self, path: str) -> Loaded | None:
        """What was loaded from a path; None where nothing was."""
        return next((one for one in self._loaded if path in (one.path, one.real)), None)

    def open(self, name: str, caller: Loaded | None) -> tuple[Loaded | None, tuple[MissingLibrary, ...]]:
        """Do what dlopen does for code in `caller`: everything that the library needs comes too, or nothing at all.

        All that is missing is listed, where the loader would stop at the first.
        """
        before, complete = len(self._loaded), set(map(id, self._loaded))  # all of these have what they need
        first = self._map(name, caller)
        if isinstance(first, MissingLibrary):
            return None, (first,)
        if len(self._loaded) > before:
            first.loader = None  # what is opened does not hand on its opener's RPATH to what it needs; observed
        missing: list[MissingLibrary] = []
        queue, seen = [first], {id(first)}
        for one in queue:  # breadth first, as the order decides which of two libraries of a name is taken
            for needed in one.elf.needed:
                found = self._map(needed, one)
                if isinstance(found, MissingLibrary):
                    missing.append(found)
                elif id(found) not in seen and id(found) not in complete:
                    seen.add(id(found))
                    queue.append(found)
        if missing:
            del self._loaded[before:]
            return None, tuple(missing)
        return first, ()

    def _map(self, name: str, caller: Loaded | None) -> Loaded | MissingLibrary:
        for one in self._loaded:
            if name in one.names or name == one.elf.soname:
                return one
        for path, via in self._places(name, caller):
            if found := self._at(path, via, name, caller):
                return found
        if self._system.host and self._system.host.fullmatch(name):
            return self._take(name, HOST)
        return MissingLibrary(name=name, needed_by=_path_of(caller), why="it is in no folder that the loader looks at")

    def _at(self, path: str, via: str, name: str, caller: Loaded | None) -> Loaded | MissingLibrary | None:
        """Take what lies at a path; None where nothing does, or a library for another machine."""
        real = resolve(self._system.tree, path)
        if real is None or self._system.tree[real[1:]].kind != "file":
            return None
        if same := next((one for one in self._loaded if one.real == real), None):
            same.names.add(name)
            return same
        elf = self._system.read(real)
        if elf is None:
            return MissingLibrary(
                name=name, needed_by=_path_of(caller), why=f"{path} is found first, and is no library"
            )
        if (elf.bits, elf.machine) != (64, MACHINES[self._system.machine]):
            return None
        self._loaded.append(Loaded(path=path, real=real, elf=elf, via=via, loader=caller, names={name}))
        return self._loaded[-1]

    def _take(self, name: str, via: str) -> Loaded:
        """Take a library as loaded that is none of the image's files."""
        elf = Elf(bits=64, machine=MACHINES[self._system.machine], soname=name)
        self._loaded.append(Loaded(path="", real="", elf=elf, via=via, loader=None, names={name}))
        return self._loaded[-1]

    def _places(self, name: str, caller: Loaded | None) -> Iterator[tuple[str, str]]:
        if "/" in name:
            yield self._expanded(name, caller), "its path"
            return
        system = self._system
        if caller and not caller.elf.runpath:
            for one in self._ancestors(caller):
                yield from self._under(one.elf.rpath, name, f"RPATH of {one.path}", one)
        yield from self._under(system.library_path.replace(";", ":"), name, "LD_LIBRARY_PATH", None)
        if caller:
            yield from self._under(caller.elf.runpath, name, f"RUNPATH of {caller.path}", caller)
        default = system.defaults
        bare = bool(caller and caller.elf.nodeflib)
        cached = system.cache.get(name)
        if cached and not (bare and posixpath.dirname(cached) in default):
            yield cached, "/etc/ld.so.cache"
        for folder in () if bare else default:
            yield f"{folder}/{name}", "the loader's default folders"

    def _ancestors(self, caller: Loaded) -> Iterator[Loaded]:
        """The library, what loaded it, and so on; at last the program, whose RPATH serves every library."""
        one: Loaded | None = caller
        while one:
            yield one
            if one is self.program:
                return
            one = one.loader
        if self.program:
            yield self.program

    def _under(self, path: str, name: str, via: str, owner: Loaded | None) -> Iterator[tuple[str, str]]:
        for folder in dict.fromkeys(filter(None, path.split(":"))):
            place = self._expanded(folder, owner)
            if place.startswith("/"):
                yield f"{place}/{name}", via

    def _expanded(self, text: str, owner: Loaded | None) -> str:
        """Replace the loader's tokens; without an owner $ORIGIN is the program's.

        $PLATFORM is the machine's name, which glibc has for it on most processors (`haswell` on Intel's with AVX2).
        """
        owner = owner or self.program
        folder = self._system.multiarch
        values = {
            "ORIGIN": posixpath.dirname(owner.path) if owner else "",
            "LIB": f"lib/{folder}" if folder else "lib64",
            "PLATFORM": self._system.machine,
        }
        return _TOKEN.sub(lambda token: values[token[1] or token[2]], text)


def _path_of(caller: Loaded | None) -> str:
    return caller.path if caller else ""
