"""A layer as what it does to the files below it, and several as one (OCI image-spec, layer.md).

What layers do can be joined before it is known what they lie on, so layers that two images share are read only where
something depends on them. Contents are hashed as they pass and not kept.
"""

import _imp
import hashlib
import posixpath
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from typing import Literal

from envbuild.base.tree import DAMAGED, members
from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Image, Layer

_CHUNK = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_XATTR = "SCHILY.xattr."
_KEPT = re.compile(
    r"(?:.*/)?[^/]+\.dist-info/(?:RECORD|METADATA)|var/lib/dpkg/status|var/lib/dpkg/info/[^/]+\.list|(?:.*/)?pyvenv\.cfg"
)
"""Files that say what packages there are, what they need, which files are theirs, and whose an environment is."""
_LONGEST = 32 << 20
_DAMAGED: tuple[type[Exception], ...] = (*DAMAGED, OverflowError)
"""OverflowError, as tarfile takes `mtime=inf` from a PAX header."""


@dataclass(frozen=True, slots=True)
class Node:
    """What lies at a path; a hard link is the file that it leads to."""

    kind: Literal["file", "directory", "link", "device", "pipe"]
    mode: int = 0
    """Permission bits; links have none."""
    owner: tuple[int, int] = (0, 0)
    """uid and gid."""
    target: str = ""
    """Where a link points; kind and numbers of a device."""
    sha256: bytes = b""
    """Of a file's content."""
    extended: tuple[tuple[str, str], ...] = ()
    """Extended attributes, such as capabilities."""
    mtime: int = 0
    """Seconds since 1970."""
    text: bytes = field(default=b"", repr=False)
    """The content, where it says what packages there are."""
    stamp: bytes = field(default=b"", repr=False)
    """Of bytecode and of sources, what tells whether one is of the other; of no source that is too long."""


IMPLIED = Node("directory", 0o755)
"""A folder that a layer fills and does not describe: it is as the layers below have it, or else like this."""
Tree = Mapping[str, Node]
"""Nodes by path below the root: `usr/bin/python3.11`; the root itself is the empty path."""


@dataclass(slots=True, kw_only=True)
class Overlay:
    """What one layer, or several as one, do to whatever lies below them."""

    nodes: dict[str, Node] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Paths that are seen no more below, with all in them: deleted, or replaced by what is no folder."""
    emptied: set[str] = field(default_factory=set)
    """Folders of which nothing is seen that lies below (opaque whiteouts)."""
    borrowed: dict[str, str] = field(default_factory=dict)
    """Hard links to files that only the layers below have."""

    def hides(self, path: str) -> bool:
        """Whether nothing of what lies below is seen at a path."""
        if path in self.hidden:
            return True
        while path:
            path = path.rpartition("/")[0]
            if path in self.hidden or path in self.emptied:
                return True
        return False

    def settles(self, path: str) -> bool:
        """Whether what lies at a path does not depend on what lies below."""
        node = self.nodes.get(path)
        return self.hides(path) if node is None else node is not IMPLIED or self.hides(path)


def over(lower: Overlay, upper: Overlay) -> Overlay:
    """Join two: what they do one after the other."""
    nodes = _seen(lower.nodes, upper)
    for path, node in upper.nodes.items():
        if node is not IMPLIED or path not in nodes or nodes[path].kind != "directory":
            nodes[path] = node
    borrowed = {
        path: target for path, target in lower.borrowed.items() if path not in upper.nodes and not upper.hides(path)
    }
    for path, target in upper.borrowed.items():
        if target in lower.nodes:
            nodes[path] = lower.nodes[target]
        else:
            borrowed[path] = lower.borrowed.get(target, target)
    return Overlay(
        nodes=nodes, hidden=lower.hidden | upper.hidden, emptied=lower.emptied | upper.emptied, borrowed=borrowed
    )


def _seen(nodes: dict[str, Node], upper: Overlay) -> dict[str, Node]:
    """What is still seen below a layer; few layers hide folders, and only for those all parents are looked up."""
    if upper.emptied or any(path in nodes and nodes[path].kind == "directory" for path in upper.hidden):
        return {path: node for path, node in nodes.items() if not upper.hides(path)}
    return {path: node for path, node in nodes.items() if path not in upper.hidden}


Put = Callable[[Overlay, str, tarfile.TarInfo, tarfile.TarFile], None]
"""Takes what a layer has at a path, if it is of use; the archive can be read then and no later."""


def read_layer(layer: Layer, name: str, put: "Put | None" = None) -> Overlay:
    """Read a layer in memory that grows with its number of files alone; BuildError, with the image's name.

    `put` takes less of it than all, where that does.
    """
    media_type = layer.descriptor.media_type
    if media_type == LAYER_ZSTD:
        todo = "copy it with `skopeo copy --dest-compress-format gzip`, and give the copy"
        raise BuildError("a layer is compressed with zstd, which is not read here", where=name, todo=todo)
    if media_type not in (LAYER_GZIP, LAYER_TAR):
        raise BuildError(f"a layer has the unknown media type {media_type[:80]}", where=name)
    try:
        found = _read(layer, put or _put)
    except _DAMAGED as error:
        todo = "fetch or make the image again"
        raise BuildError(f"layer {layer.diff_id} cannot be read: {error}", where=name, todo=todo) from error
    found.hidden |= {path for path, node in found.nodes.items() if node.kind != "directory"}
    found.hidden |= found.borrowed.keys()
    for path in (*found.nodes, *found.borrowed):
        _imply_parents(found.nodes, path)
    return found


def _read(layer: Layer, put: Put) -> Overlay:
    found = Overlay()
    for member, archive in members(layer):
        path = place_of(member.name)
        folder, _, base = path.rpartition("/")
        if base == _OPAQUE:
            found.emptied.add(folder)
        elif base.startswith(_WHITEOUT):
            found.hidden.add(posixpath.join(folder, base.removeprefix(_WHITEOUT)))
        else:
            put(found, path, member, archive)
    return found


def _put(found: Overlay, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    if member.islnk():
        _link(found, path, place_of(member.linkname))
    else:
        found.borrowed.pop(path, None)
        found.nodes[path] = _node(path, member, archive)


def _link(found: Overlay, path: str, target: str) -> None:
    if target in found.nodes:
        found.nodes[path] = found.nodes[target]
    else:
        found.nodes.pop(path, None)
        found.borrowed[path] = target


def place_of(name: str) -> str:
    """Where a member lies, below the root."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def _imply_parents(nodes: dict[str, Node], path: str) -> None:
    while path:
        path = path.rpartition("/")[0]
        if path in nodes:
            return
        nodes[path] = IMPLIED


def _node(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Node:
    mode, owner, mtime = member.mode & 0o7777, (member.uid, member.gid), int(member.mtime)
    extended = tuple(sorted(_extended(member)))
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


def _extended(member: tarfile.TarInfo) -> Iterator[tuple[str, str]]:
    for key, value in member.pax_headers.items():
        if key.startswith(_XATTR):
            yield key.removeprefix(_XATTR), value


def _content(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> tuple[bytes, bytes, bytes]:
    """The digest of a file, what is kept of it, and its stamp."""
    kept, compiled = _KEPT.fullmatch(path), path.endswith(".pyc")
    wanted = member.size <= _LONGEST and (kept or path.endswith(".py"))
    hasher, pieces = hashlib.sha256(), list[bytes]()
    content = archive.extractfile(member)
    while content and (chunk := content.read(_CHUNK)):
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
    reading = _LayerReader((*a.layers, *b.layers), report)
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


class _LayerReader:
    """Reads each layer once, and keeps the overlays that are needed again."""

    def __init__(self, layers: Sequence[Layer], report: Report) -> None:
        self._times = Counter(layer.diff_id for layer in layers)
        self._known: dict[Digest, Overlay] = {}
        self._report = report
        self._label, self._done, self._total = "", 0, 0

    def announce(self, label: str, layers: Sequence[Layer]) -> None:
        """Set the label and the total for the layers that are read next."""
        sizes = {layer.diff_id: layer.descriptor.size for layer in layers}
        self._label, self._done, self._total = label, 0, sum(sizes.values())

    def joined(self, layers: Sequence[Layer], name: str) -> Overlay:
        """Read layers, lowest first, as one."""
        return reduce(over, (self._read(layer, name) for layer in layers), Overlay())

    def _read(self, layer: Layer, name: str) -> Overlay:
        if overlay := self._known.get(layer.diff_id):
            return overlay
        overlay = read_layer(layer, name)
        self._done += layer.descriptor.size
        self._report(self._label, self._done, self._total)
        if self._times[layer.diff_id] > 1:
            self._known[layer.diff_id] = overlay
        return overlay
