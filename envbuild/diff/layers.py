"""The files of an image's layers for a comparison, and their owners by RECORD and dpkg's lists."""

import _imp
import hashlib
import posixpath
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from itertools import takewhile
from typing import Literal

from packaging.utils import canonicalize_name

from envbuild.check import LIST, PROGRAM
from envbuild.errors import BuildError
from envbuild.oci import rootfs
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer
from envbuild.oci.rootfs import IMPLIED, Node, Overlay, Put, Tree, over, place_of, resolve
from envbuild.recipe import PREFIX
from envbuild.wheel.install import RecordError, Row, read_record

RECORD = re.compile(r"(?:.*/)?[^/]+\.dist-info/RECORD")
MARK = re.compile(r"(?:.*/)?[^/]+\.dist-info/(?:INSTALLER|REQUESTED|direct_url\.json)")
"""Files that name the installer of a distribution, and why it was installed."""
BYTECODE = re.compile(r"(?:.*/)?__pycache__/[^/]+\.pyc")
BYTECODE_FOLDER = re.compile(r"(?:.*/)?__pycache__")
_DIST_INFO = re.compile(r"((?:.*/)?([^/-]+)-([^/]+)\.dist-info)(?:/.*)?")
_STATUS = "var/lib/dpkg/status"
_DPKG_FILE = re.compile(r"var/lib/dpkg/info/([^/:]+)(?::[^/.]+)?\.[^/.]+")
_OF_SOURCE = re.compile(r"((?:.*/)?)__pycache__/([^/.]+)\.[^/]*pyc")


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package, whatever its version."""

    kind: Literal["debian", "envbuild", "python"]
    name: str
    """As its index writes it: normalised for Python."""


_CHECK = Package("envbuild", "check")
_OF_CHECK = {f"{PREFIX.strip('/')}/{path}" for path in (PROGRAM, LIST)}


class Packages:
    """The packages of one image, and the owner of each path."""

    def __init__(self, tree: Tree) -> None:
        self._versions: defaultdict[Package, set[str]] = defaultdict(set)
        self._files: dict[str, Package] = {}
        self._read_python(tree)
        self._read_debian(tree)
        self._folders = _folders(self._files)

    def version(self, package: Package) -> str:
        """Its version, all where it is installed more than once; empty where it is absent or not known."""
        return ", ".join(sorted(self._versions.get(package, ())))

    def owner(self, path: str) -> Package | None:
        """The owner of a path; a folder belongs to a package when all owned files in it do."""
        if owner := self._files.get(path) or _by_name(path) or self._folders.get(path):
            return owner
        # Unlisted bytecode belongs to the owner of its source, and its folder to that of the sources.
        if match := _OF_SOURCE.fullmatch(path):
            return self._files.get(f"{match[1]}{match[2]}.py")
        folder, _, base = path.rpartition("/")
        return self._folders.get(folder) if base == "__pycache__" else None

    def _read_python(self, tree: Tree) -> None:
        for path, node in tree.items():
            if node.kind != "file" or not (match := _DIST_INFO.fullmatch(path)):
                continue
            package = Package("python", canonicalize_name(match[2]))
            self._versions[package].add(match[3])
            if RECORD.fullmatch(path):
                with suppress(RecordError):
                    self._files.update((file, package) for file, _, _ in rows(path, node.text))

    def _read_debian(self, tree: Tree) -> None:
        status = tree.get(_STATUS)
        text = status.text.decode("utf-8", "surrogateescape") if status else ""
        for paragraph in text.split("\n\n"):  # deb822, dpkg(1)
            fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
            if fields.get("Status", "").endswith(" installed") and "Package" in fields:
                self._versions[Package("debian", fields["Package"])].add(fields.get("Version", ""))

        @cache
        def real(folder: str) -> str:
            return resolve(tree, folder) or folder

        for path, node in tree.items():
            match = _DPKG_FILE.fullmatch(path) if node.text else None
            for line in node.text.decode("utf-8", "surrogateescape").splitlines() if match else ():
                # /lib may be a link to usr/lib, which the lists do not show
                file = posixpath.join(real(posixpath.dirname(line)), posixpath.basename(line)).lstrip("/")
                if match and file in tree and tree[file].kind != "directory":
                    self._files[file] = Package("debian", match[1])


def _by_name(path: str) -> Package | None:
    """The owner of a file that a package manager names after the package."""
    if match := _DIST_INFO.fullmatch(path):
        return Package("python", canonicalize_name(match[2]))
    if match := _DPKG_FILE.fullmatch(path):
        return Package("debian", match[1])
    return _CHECK if path in _OF_CHECK else None


def _folders(files: dict[str, Package]) -> dict[str, Package | None]:
    """The owner of each folder; None for those of several packages."""
    found: dict[str, Package | None] = {}
    for path, package in files.items():
        folder = posixpath.dirname(path)
        while folder and found.get(folder, ...) not in (package, None):
            found[folder] = None if folder in found else package
            folder = posixpath.dirname(folder)
    return found


def rows(record: str, text: bytes) -> Iterator[Row]:
    """Read the RECORD at a path, with paths below the root; RecordError when it is not valid."""
    site = posixpath.dirname(posixpath.dirname(record))
    for row in read_record(text.decode("utf-8", "surrogateescape"), strict=True):
        yield Row(posixpath.normpath(posixpath.join("/", site, row.path)).lstrip("/"), row.hash, row.size)


_XATTR = "SCHILY.xattr."
_KEPT = re.compile(
    r"(?:.*/)?[^/]+\.dist-info/(?:RECORD|METADATA)|var/lib/dpkg/status|var/lib/dpkg/info/[^/]+\.list|(?:.*/)?pyvenv\.cfg"
)
"""Files that say what packages there are, what they need, which files are theirs, and whose an environment is."""
_LONGEST = 32 << 20


def read_layer(layer: Layer, name: str, put: Put | None = None) -> Overlay:
    """Read a layer of the image `name`; BuildError if it cannot be read. `put` replaces what is kept of its members."""
    return rootfs.read_layer(layer, name, put or _put)


def _put(found: Overlay, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    target = place_of(member.linkname) if member.islnk() else ""
    found.borrowed.pop(path, None)
    if not member.islnk():
        found.nodes[path] = _node(path, member, archive)
    elif target in found.nodes:
        found.nodes[path] = found.nodes[target]
    else:
        found.nodes.pop(path, None)
        found.borrowed[path] = target


def _node(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Node:
    mode, owner, mtime = member.mode & 0o7777, (member.uid, member.gid), int(member.mtime)
    headers = member.pax_headers.items()
    extended = tuple(sorted((key.removeprefix(_XATTR), it) for key, it in headers if key.startswith(_XATTR)))
    if member.isdir():
        return Node("directory", mode, owner, extended=extended, mtime=mtime)
    if member.issym():
        return Node("link", 0, owner, member.linkname, extended=extended, mtime=mtime)
    if member.isfifo():
        return Node("pipe", mode, owner, extended=extended, mtime=mtime)
    if member.isdev():
        numbers = f"{'character' if member.ischr() else 'block'} {member.devmajor}:{member.devminor}"
        return Node("device", mode, owner, numbers, extended=extended, mtime=mtime)
    sha256, text, stamp = _content(path, member, archive)
    return Node("file", mode, owner, sha256=sha256, extended=extended, mtime=mtime, text=text, stamp=stamp)


def _content(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> tuple[bytes, bytes, bytes]:
    """The digest of a file, what is kept of it, and its stamp."""
    kept, compiled = _KEPT.fullmatch(path), path.endswith(".pyc")
    wanted = member.size <= _LONGEST and (kept or path.endswith(".py"))
    hasher, pieces = hashlib.sha256(), list[bytes]()
    content = archive.extractfile(member)
    while content and (chunk := content.read(rootfs.CHUNK)):
        hasher.update(chunk)
        # of bytecode the beginning says all that is asked, however long it is
        if wanted or (compiled and not pieces):
            pieces.append(chunk)
    data = b"".join(pieces)
    return hasher.digest(), data if kept and wanted else b"", stamp_of(path, data) if wanted or compiled else b""


_MAGICS = (3495, 3531, 3571, 3627)
"""Of Python 3.11 to 3.14; older ones hash sources by another function, which no Python that runs envbuild has."""
_KEYS = tuple(int.from_bytes(it.to_bytes(2, "little") + b"\r\n", "little") for it in _MAGICS)
_HEADER, _HASH = 16, 8
_UNCHECKED = (1).to_bytes(4, "little")


def stamp_of(path: str, content: bytes) -> bytes:
    """The hashes of a source for each Python (PEP 552), the header of bytecode; empty for other files."""
    if path.endswith(".pyc"):
        return content[:_HEADER]
    return b"".join(_imp.source_hash(key, content) for key in _KEYS) if path.endswith(".py") else b""


def is_unchecked(bytecode: bytes) -> bool:
    """Whether Python uses bytecode with this header without reading its source."""
    return bytecode[4:8] == _UNCHECKED


def is_of(bytecode: bytes, source: bytes) -> bool | None:
    """Whether the header of bytecode has the hash of a source; None for a Python whose hash is not known."""
    magic = int.from_bytes(bytecode[:2], "little")
    if magic not in _MAGICS:
        return None
    start = _MAGICS.index(magic) * _HASH
    return bytecode[8:_HEADER] == source[start : start + _HASH]


Report = Callable[[str, int, int | None], None]
"""Called with a label, and how many bytes of how many are done."""


def read_pair(a: Image, b: Image, names: tuple[str, str], report: Report) -> tuple[Tree, Tree]:
    """Read the files of two images; BuildError where a layer cannot be read.

    Their common lowest layers, by the configs' diff ids, are read only where they can make a difference; else the
    files that only these layers have are absent from both.
    """
    pairs = zip(a.layers, b.layers, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0].diff_id == pair[1].diff_id, pairs))
    reading = LayerReader((*a.layers, *b.layers), report)
    reading.announce("reading layers", (*a.layers[shared:], *b.layers[shared:]))
    left, right = reading.joined(a.layers[shared:], names[0]), reading.joined(b.layers[shared:], names[1])
    if shared and not (_independent(left, right) and _independent(right, left)):
        reading.announce("reading layers that both have", a.layers[:shared])
        below = reading.joined(a.layers[:shared], names[0])
        left, right = over(below, left), over(below, right)
    for overlay, name in ((left, names[0]), (right, names[1])):
        for path, target in overlay.borrowed.items():
            what = f"a layer has {path} as a hard link to {target}, which does not exist"
            raise BuildError(what, where=name, todo="make the image again")
    return {"": IMPLIED} | left.nodes, {"": IMPLIED} | right.nodes


def _independent(one: Overlay, other: Overlay) -> bool:
    """Whether nothing in `one` has to be compared with the layers below `other`."""
    return (
        not one.borrowed
        and all(
            other.settles(path) or (node is IMPLIED and other.nodes.get(path) is IMPLIED)
            for path, node in one.nodes.items()
        )
        and all(other.hides(path) for path in one.hidden)
        and all(path in other.emptied or other.hides(path) for path in one.emptied)
    )


class LayerReader:
    """Reads each layer once, and keeps the overlays that are needed again."""

    def __init__(self, layers: Sequence[Layer], report: Report) -> None:
        self._times = Counter(map(_identity, layers))
        self._known: dict[tuple[Digest, Digest], Overlay] = {}
        self._report = report
        self._label, self._done, self._total = "", 0, 0

    def announce(self, label: str, layers: Sequence[Layer]) -> None:
        """Set the label and the total for the layers that are read next."""
        sizes = {key: it.descriptor.size for it in layers if (key := _identity(it)) not in self._known}
        self._label, self._done, self._total = label, 0, sum(sizes.values())

    def joined(self, layers: Sequence[Layer], name: str) -> Overlay:
        """Read layers, lowest first, as one."""
        return reduce(over, (self.read(layer, name) for layer in layers), Overlay())

    def read(self, layer: Layer, name: str) -> Overlay:
        """Read a layer, unless it is kept."""
        if overlay := self._known.get(_identity(layer)):
            return overlay
        overlay = read_layer(layer, name)
        self._done += layer.descriptor.size
        self._report(self._label, self._done, self._total)
        if self._times[_identity(layer)] > 1:
            self._known[_identity(layer)] = overlay
        return overlay


def _identity(layer: Layer) -> tuple[Digest, Digest]:
    """The blob and the diff id: a config may name the diff id of another layer, which only reading shows."""
    return layer.descriptor.digest, layer.diff_id
