"""The files of an image that need not be built yet: those of its base, and those that its wheels install."""

import io
import json
import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from msgspec import convert, to_builtins
from packaging.version import Version

from envbuild.cache import read_entry, write_entry
from envbuild.errors import VerifyError
from envbuild.image.config import config_bytes
from envbuild.image.layers.plan import find_overlaps, install_order
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import LockedWheel
from envbuild.match.profiles import Profiles
from envbuild.match.rows import FrameworkWheel
from envbuild.match.stack import Stack
from envbuild.oci.deflate import DamagedStreamError, inflate
from envbuild.oci.digest import Digest
from envbuild.oci.rootfs import Node, Tree, contents, read_tree
from envbuild.recipe import Base, Recipe
from envbuild.verify.cuda.process import Elf, MissingLibrary, Process, System, read_cache, read_elf
from envbuild.wheel.archive import Member, WheelArchive, check_locked
from envbuild.wheel.install import Scheme, installed_files

_FORMAT = 2
"""Raised whenever other facts would be read from the same bytes."""
LIBRARY = re.compile(r".*\.so(\.[\w.]+)?")
DRIVER = re.compile(r"lib(cuda|nvidia-[\w-]+|nvcuvid|nvidia-ml)\.so\.1")
"""Libraries that the driver on the host brings, and no image."""
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)\Z")
_CACHE = "etc/ld.so.cache"
_IN_MEMORY = _LARGEST_CACHE = 16 << 20
_HEAD = 1 << 20
"""Bytes of the begin that are kept: most libraries have their names there and their dynamic section at the end."""
_BEFORE = 256 << 10
"""Bytes before the newest piece that are kept, as names lie close together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFiles:
    """The files of a base image, and what the loader reads of them."""

    tree: Tree
    libraries: Mapping[str, Elf]
    """By path without links and without the leading slash: `usr/lib/x86_64-linux-gnu/libz.so.1.2.13`."""
    cache: Mapping[str, str]
    """/etc/ld.so.cache."""


def read_base_files(base: Base, facts: Path) -> BaseFiles:
    """Read a base's layers in bounded memory; `facts` is a folder that remembers them. BaseError as `read_tree`."""
    name = f"base-{base.digest.hex}-{_FORMAT}.json"
    if known := read_entry(facts, name, _decode_base):
        return known
    tree, libraries, cache = read_tree(base.image, base.name), dict[str, Elf](), dict[str, str]()
    paths = {base.python_path.lstrip("/"), _CACHE, *filter(LIBRARY.fullmatch, tree)}
    for path, _, content in contents(base.image, tree, paths, base.name):
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            shutil.copyfileobj(content, file, 1 << 20)
            file.seek(0)
            if path == _CACHE:
                cache = read_cache(file.read(_LARGEST_CACHE), base.target.machine)
            elif elf := read_elf(cast("IO[bytes]", file)):
                libraries[path] = elf
    nodes = {path: [node.kind, node.target] for path, node in tree.items()}
    write_entry(facts, name, {"nodes": nodes, "libraries": to_builtins(libraries), "cache": cache})
    return BaseFiles(tree=tree, libraries=libraries, cache=cache)


def _decode_base(value: Any) -> BaseFiles:
    return BaseFiles(
        tree={path: Node(kind, target=target) for path, (kind, target) in value["nodes"].items()},
        libraries=convert(value["libraries"], dict[str, Elf]),
        cache=convert(value["cache"], dict[str, str]),
    )


class MemberFile(io.RawIOBase):
    """A file of a wheel that can be read anywhere, in bounded memory; fastest in rising order.

    Reading raises WheelError where the deflate stream is damaged. To go back, the stream is inflated again.
    """

    def __init__(self, archive: WheelArchive, member: Member) -> None:
        super().__init__()
        self._archive, self._member = archive, member
        self._place = 0
        self._head = b""
        self._pieces: Iterator[bytes] = iter(())
        self._window, self._start = b"", member.size + 1

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a place."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._member.size}[whence]
        return self._place

    def tell(self) -> int:
        """The place of the next byte."""
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        left = max(0, self._member.size - self._place)
        data = self._read_at(self._place, left if size < 0 else min(size, left))
        self._place += len(data)
        return data

    def _read_at(self, offset: int, size: int) -> bytes:
        if not size or not self._member.deflated:
            return bytes(self._archive.data(self._member)[offset : offset + size])
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        try:
            if offset < self._start:
                self._pieces = (piece for _, piece in inflate(self._archive.data(self._member)))
                self._window, self._start = b"", 0
            while self._start + len(self._window) < offset + size:
                self._inflate_piece()
        except DamagedStreamError as error:
            raise self._archive.refuse(f"{self._member.name} {error}") from error
        return self._window[offset - self._start : offset - self._start + size]

    def _inflate_piece(self) -> None:
        piece, end = next(self._pieces, None), self._start + len(self._window)
        if piece is None:
            raise DamagedStreamError("ends before the archive says")
        if end == len(self._head) < _HEAD:
            self._head += piece
        self._window = self._window[-_BEFORE:] + piece
        self._start = end + len(piece) - len(self._window)


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file of a wheel, in the image; without a member it is what installing makes."""

    wheel: LockedWheel
    archive: WheelArchive
    member: Member | None


class WheelFiles:
    """The files of all wheels of a recipe below its prefix; libraries are read once and remembered by content.

    The wheels are open while the block lasts; WheelError for one that cannot be installed.
    """

    def __init__(self, recipe: Recipe, wheels: Mapping[Digest, Path], facts: Path, stack: ExitStack) -> None:
        self._facts = facts
        self._known: dict[Digest, dict[str, Elf | None]] = {}
        self._added: set[Digest] = set()
        self.files: dict[str, InstalledFile] = {}
        """By path below the root: `opt/env/lib/python3.11/site-packages/six.py`."""
        scheme = Scheme(prefix=recipe.prefix, python_minor=recipe.target.python_minor)
        archives: dict[str, WheelArchive] = {}
        found = {}
        for wheel in recipe.wheels:
            path = wheels[wheel.sha256]
            check_locked(path, wheel.filename, wheel.size)
            archives[wheel.name] = archive = stack.enter_context(WheelArchive(path, wheel.filename))
            found[wheel] = tuple(installed_files(archive, scheme))
        pip = next((wheel.version for wheel in recipe.wheels if wheel.name == "pip"), None)
        self.overlaps = find_overlaps(
            found,
            recipe.owner_by_path,
            lambda: install_order({name: _requires(it) for name, it in archives.items()}, recipe.target, pip),
        )
        """Paths with different content in several wheels, below the prefix."""
        losers = {(it.path, name) for it in self.overlaps for name in it.losers}
        for wheel, files in found.items():
            for file in files:
                if (file.path, wheel.name) not in losers:
                    member = file.source if isinstance(file.source, Member) else None
                    installed = InstalledFile(wheel, archives[wheel.name], member)
                    self.files[f"{recipe.prefix[1:]}/{file.path}"] = installed

    def read(self, path: str) -> Elf | None:
        """Read a library by its path below the root; None for what is none."""
        file = self.files[path]
        if file.member is None:
            return None
        known, name = self._facts_of(file.wheel.sha256), file.member.name
        if name not in known:
            known[name] = read_elf(cast("IO[bytes]", MemberFile(file.archive, file.member)))
            self._added.add(file.wheel.sha256)
        return known[name]

    def warm(self, paths: Iterable[str]) -> None:
        """Read many libraries at once, largest first: most of the time goes into inflating them."""
        sizes = {path: member.size for path in paths if (member := self.files[path].member) and member.size}
        for path in sizes:
            self._facts_of(self.files[path].wheel.sha256)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for _ in pool.map(self.read, sorted(sizes, key=sizes.__getitem__, reverse=True)):
                pass

    def keep(self) -> None:
        """Remember what was read."""
        for digest in self._added:
            write_entry(self._facts, _entry_name(digest), to_builtins(self._known[digest]))
        self._added.clear()

    def _facts_of(self, digest: Digest) -> dict[str, Elf | None]:
        if digest not in self._known:
            known = read_entry(self._facts, _entry_name(digest), lambda it: convert(it, dict[str, Elf | None]))
            self._known[digest] = known or {}
        return self._known[digest]


def _requires(archive: WheelArchive) -> tuple[str, ...]:
    """Requires-Dist of a wheel's METADATA."""
    members = (it for it in archive.members if it.name.endswith(".dist-info/METADATA") and it.name.count("/") == 1)
    return requirements_of(archive.read(next(members)).decode("utf-8", "replace"))


def _entry_name(digest: Digest) -> str:
    return f"wheel-{digest.hex}-{_FORMAT}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedImage:
    """An image by its files, and what matching knows."""

    profiles: Profiles
    program: str
    """The absolute path of Python."""
    site: str
    """Absolute path of site-packages."""
    machine: str
    variables: Mapping[str, str]
    """The image's environment."""
    base: BaseFiles
    wheels: WheelFiles
    tree: Tree

    def process(self) -> tuple[Process, tuple[MissingLibrary, ...]]:
        """A process of the image's Python with nothing else loaded, and what is missing for that."""
        path, cache = self.variables.get("LD_LIBRARY_PATH", ""), self.base.cache
        system = System(
            tree=self.tree, read=self.read, machine=self.machine, cache=cache, library_path=path, host=DRIVER
        )
        process = Process(system)
        return process, process.start(self.program)

    def read(self, path: str) -> Elf | None:
        """Read what lies at an absolute path without links."""
        place = path[1:]
        return self.wheels.read(place) if place in self.wheels.files else self.base.libraries.get(place)

    def siblings(self, path: str) -> list[str]:
        """The names in the folder of an absolute path."""
        folder = posixpath.dirname(path)[1:]
        return [posixpath.basename(it) for it in self.tree if posixpath.dirname(it) == folder]

    def places(self, name: str) -> list[str]:
        """The absolute paths of all files and links of a name."""
        paths = (path for path, node in self.tree.items() if path.endswith(name) and node.kind != "directory")
        return sorted(f"/{path}" for path in paths if posixpath.basename(path) == name)

    def is_nvidia(self, name: str) -> bool:
        """Whether a distribution is NVIDIA's own, by its normalised name."""
        return any(fnmatchcase(name, it) for it in self.profiles.nvidia_wheels)

    def version(self, real: str) -> str:
        """The version of a library: that of NVIDIA's wheel, else that in the file's name."""
        file = self.wheels.files.get(real[1:])
        if file and self.is_nvidia(file.wheel.name):
            return file.wheel.version
        match = _VERSION.search(real)
        return match[1] if match else ""

    def short(self, path: str) -> str:
        """A path for people: below site-packages, where it lies there."""
        return posixpath.normpath(path).removeprefix(f"{self.site}/")


def plan_image(recipe: Recipe, base: Base, profiles: Profiles, below: BaseFiles, wheels: WheelFiles) -> PlannedImage:
    """Join the base's files and the wheels' files."""
    entries = json.loads(config_bytes(recipe, base, ()))["config"]["Env"]
    return PlannedImage(
        profiles=profiles,
        program=recipe.python_path,
        site=f"{recipe.prefix}/lib/python{recipe.target.python_minor}/site-packages",
        machine=recipe.target.machine,
        variables=dict(entry.partition("=")[::2] for entry in entries),
        base=below,
        wheels=wheels,
        tree=_tree(below.tree, wheels.files, recipe.prefix[1:]),
    )


def framework_wheel(stack: Stack, profiles: Profiles) -> FrameworkWheel:
    """The profile's row of what a stack has; without its CUDA in the CPU variant. VerifyError where there is none."""
    rows = [
        row
        for profile in profiles.frameworks
        for release in profile.releases
        if profile.name == stack.framework and release.version.public == Version(stack.version).public
        for row in release.wheels
        if (row.distribution, row.machine) == (stack.distribution, stack.machine)
    ]
    if not rows:
        what = f"no profile lists the libraries of {stack.distribution} {stack.version} for {stack.machine}"
        todo = "update envbuild; in its repository: python -m profiles.refresh"
        raise VerifyError(what, where="loader proof", todo=todo)
    if stack.variant == "cpu":
        return replace(rows[0], version=stack.version, cuda=None)
    row = min(rows, key=lambda row: _distance(row.cuda, stack.cuda))
    if Version(stack.version).local is None:
        return row
    # a build of its own CUDA, of which no row tells what it was built with
    return replace(row, version=stack.version, cuda=stack.cuda, cudnn=stack.cudnn, cudnn_built=None)


def _distance(cuda: str | None, wanted: str | None) -> int:
    """0 for the same CUDA, 1 for the same major version, 2 for another, 3 for none."""
    if cuda is None:
        return 3
    majors = (cuda.partition(".")[0], f"{wanted}".partition(".")[0])
    return 0 if cuda == wanted else 2 - (majors[0] == majors[1])


def _tree(base: Tree, files: Iterable[str], prefix: str) -> Tree:
    tree = dict(base)
    tree[f"{prefix}/lib64"] = Node("link", target="lib")
    for path in files:
        tree[path] = Node("file")
        folder = posixpath.dirname(path)
        while folder and folder not in tree:
            tree[folder] = Node("directory")
            folder = posixpath.dirname(folder)
    return tree
