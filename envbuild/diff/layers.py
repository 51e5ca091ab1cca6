"""The nodes of a layer for a comparison: with the digest of each content, and the texts that name packages."""

import hashlib
import re
import tarfile
from collections.abc import Iterator

from envbuild.diff.bytecode import stamp_of
from envbuild.oci import rootfs
from envbuild.oci.image import Layer
from envbuild.oci.rootfs import Node, Overlay, Put, place_of

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
    while content and (chunk := content.read(rootfs.CHUNK)):
        hasher.update(chunk)
        # of bytecode the beginning says all that is asked, however long it is
        if wanted or (compiled and not pieces):
            pieces.append(chunk)
    data = b"".join(pieces)
    return hasher.digest(), data if kept and wanted else b"", stamp_of(path, data) if wanted or compiled else b""
