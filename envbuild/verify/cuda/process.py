"""The search of glibc's dynamic loader (ld.so(8), dlopen(3), elf/dl-load.c), by names alone.

Not modelled: versions of symbols (the wheels' platform tags cover them), folders for newer processors (glibc-hwcaps),
and relative or empty entries of paths, as they depend on the working folder.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from envbuild.oci.rootfs import Tree, resolve
from envbuild.verify.cuda.elf import MACHINES, Elf

LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
"""The loader's own name, by machine."""
HOST = "the host"
"""What leads to libraries that no image has."""
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?!\w))")


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
        before = len(self._loaded)
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
                elif id(found) not in seen:
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
