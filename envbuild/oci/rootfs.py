"""A root filesystem, read from an image's layers without unpacking them (OCI image-spec, layer.md).

Each layer is an overlay: what it adds and hides. Overlays can be joined before it is known what they lie on, so layers
that two images share need not be read. Contents pass by and are not kept, unless the caller keeps some.
"""

import hashlib
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

from envbuild.errors import BaseError, BuildError
from envbuild.oci.compression import COMPRESSION_ERRORS, open_layer
from envbuild.oci.deflate import expansion_limit
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Image, Layer
from envbuild.oci.tar import open_tar

CHUNK = 1 << 20
DAMAGED: tuple[type[Exception], ...] = (*COMPRESSION_ERRORS, tarfile.TarError, ValueError, OverflowError)
"""What reading a damaged layer raises; OverflowError because tarfile accepts `mtime=inf` in a PAX header."""
_ZSTD_LIMIT = 16 << 30
"""Bytes that any layer of zstd may unpack to: zeros, as in new weights, expand more than 10,000 times."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LONGEST_VERSION = 256
_KEPT = re.compile(
    r"var/lib/dpkg/status(?:\.d/[^/]+)?|(?:etc|usr/lib)/os-release|usr/share/doc/[^/]+/copyright"
    r"|.+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)"
)
"""Files whose content is kept: what says which packages a base has."""
_STATUS = "var/lib/dpkg/status"
_LONGEST_STATUS, _LONGEST_KEPT, _MOST_KEPT = 64 << 20, 1 << 20, 128 << 20
"""Bytes of dpkg's database, of another such file, and of all in an image; ten thousand packages have 20 MB."""
_MOST_LINKS = 400
_PYTHON = re.compile(r"(?:.*/)?(?:python|libpython)(3\.\d+)(?:\.so[.\d]*)?")
_GLIBC = re.compile(r"(?:usr/)?lib(?:32|64)?/(?:[\w-]+/)?(?:libc\.so\.6|libc-2\.\d+\.so)")
_RELEASE = re.compile(r"(?:etc|usr/lib)/os-release")
_RELEASE_NAME = re.compile(rb"^PRETTY_NAME=\"?([^\"\r\n]{1,99})", re.MULTILINE)
_GLIBC_VERSION = re.compile(rb"GNU C Library[^\n]{0,99} version (\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """The file, directory or link at a path."""

    kind: Literal["file", "directory", "link", "device", "pipe"]
    mode: int = 0
    """Permission bits; 0 for links."""
    owner: tuple[int, int] = (0, 0)
    """uid and gid."""
    target: str = ""
    """Target of a link; kind and numbers of a device."""
    sha256: bytes = b""
    """Digest of a file's content, where it was read."""
    extended: tuple[tuple[str, str], ...] = ()
    """Extended attributes, such as capabilities."""
    mtime: int = 0
    """Seconds since 1970."""
    text: bytes = field(default=b"", repr=False)
    """The part of the content that was kept."""
    stamp: bytes = field(default=b"", repr=False)
    """For bytecode and sources: what shows whether one was compiled from the other."""
    content: bytes = field(default=b"", repr=False)
    """The whole content of a file that says which packages there are, as `read_tree` found it."""
    layer: int = 0
    """Index of the layer that contains it, lowest first; set by `read_tree`."""

    @property
    def version(self) -> str:
        """Version in an interpreter or C library, or name in an os-release file, as `read_tree` found it."""
        return self.text.decode(errors="replace")


IMPLIED = Node("directory", 0o755)
"""A directory that a layer fills but does not describe: as the layers below have it, or else like this."""
Tree = Mapping[str, Node]
"""Nodes by path below the root: `usr/bin/python3.11`; the root itself is the empty path."""


@dataclass(slots=True, kw_only=True)
class Overlay:
    """What one layer, or several as one, do to whatever lies below them."""

    nodes: dict[str, Node] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Paths that are deleted, or replaced by a file or link, with all below them."""
    emptied: set[str] = field(default_factory=set)
    """Directories whose lower content is hidden (opaque whiteouts)."""
    borrowed: dict[str, str] = field(default_factory=dict)
    """Hard links to files of the layers below."""

    def hides(self, path: str) -> bool:
        """Whether the layers below are invisible at a path."""
        if path in self.hidden:
            return True
        while path:
            path = path.rpartition("/")[0]
            if path in self.hidden or path in self.emptied:
                return True
        return False

    def settles(self, path: str) -> bool:
        """Whether the node at a path does not depend on the layers below."""
        node = self.nodes.get(path)
        return self.hides(path) if node is None else node is not IMPLIED or self.hides(path)


def over(lower: Overlay, upper: Overlay) -> Overlay:
    """Join two overlays into what they do one after the other."""
    nodes = lower.nodes
    if upper.emptied or any(path in nodes and nodes[path].kind == "directory" for path in upper.hidden):
        nodes = {path: node for path, node in nodes.items() if not upper.hides(path)}
    else:  # few layers hide directories, and only those need a look at all parents
        nodes = {path: node for path, node in nodes.items() if path not in upper.hidden}
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


Put = Callable[[Overlay, str, tarfile.TarInfo, tarfile.TarFile], None]
"""Adds a member of a layer to its overlay; the archive can be read only during the call."""


def read_layer(layer: Layer, name: str, put: Put, error: type[BuildError] = BuildError) -> Overlay:
    """Read a layer of the image `name`; `error` if it cannot be read. Memory grows with the number of files only."""
    media_type = layer.descriptor.media_type
    if media_type not in (LAYER_GZIP, LAYER_TAR, LAYER_ZSTD):
        raise error(f"a layer has the unknown media type {media_type[:80]}", where=name)
    overlay = Overlay()
    with _damage(layer, name, error):
        for member, archive in members(layer):
            path = place_of(member.name)
            folder, _, base = path.rpartition("/")
            if base == _OPAQUE:
                overlay.emptied.add(folder)
            elif base.startswith(_WHITEOUT):
                overlay.hidden.add(posixpath.join(folder, base.removeprefix(_WHITEOUT)))
            else:
                put(overlay, path, member, archive)
    overlay.hidden |= {path for path, node in overlay.nodes.items() if node.kind != "directory"}
    overlay.hidden |= overlay.borrowed.keys()
    for path in (*overlay.nodes, *overlay.borrowed):
        while path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 - up to the root
            if path in overlay.nodes:
                break
            overlay.nodes[path] = IMPLIED
    return overlay


def place_of(name: str) -> str:
    """Return the path of a member below the root."""
    return posixpath.normpath(f"/{name}").lstrip("/")


@contextmanager
def _damage(layer: Layer, name: str, error: type[BuildError]) -> Iterator[None]:
    try:
        yield
    except DAMAGED as damage:
        what = f"layer {layer.descriptor.digest} cannot be read: {damage}"
        raise error(what, where=name, todo="fetch the image again, or give another") from damage


def members(layer: Layer) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Yield every member of a layer with the archive, from which its content can be read before the next member.

    Raises one of DAMAGED if the blob is not a tar, is not compressed as its media type says, or has another diff id.
    """
    limit, headers, end = expansion_limit(layer.descriptor.size), 0, 0
    with _open_content(layer) as content, open_tar(cast("IO[bytes]", content), stream=True) as archive:
        while (member := archive.next()) is not None:
            headers += member.offset_data - end  # names and records are kept, contents pass by
            end = archive.offset  # of the next member
            if headers > limit:
                raise ValueError(f"its headers unpack to more than {limit} bytes, far more than its size allows")
            if member.issparse():
                content.count(member.size)
            yield member, archive
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps a kilobyte of each


def read_tar(layer: Layer, name: str) -> Iterator[bytes]:
    """Yield the tar of a base's layer; BaseError as `read_tree`."""
    with _damage(layer, name, BaseError), _open_content(layer) as content:
        while data := content.read(CHUNK):
            yield data


@contextmanager
def _open_content(layer: Layer) -> Iterator["_Hashed"]:
    """Open the tar of a layer; at the end of the block the whole blob is checked."""
    # tarfile's own gzip reading stops after the first member; eStargz, and our layers before format 13, have many
    with layer.open() as blob, open_layer(blob, layer.descriptor.media_type) as plain:
        limit = expansion_limit(layer.descriptor.size)
        content = _Hashed(plain, max(limit, _ZSTD_LIMIT) if layer.descriptor.media_type == LAYER_ZSTD else limit)
        yield content
        while content.read(CHUNK):
            pass
        if content.hasher.hexdigest() != layer.diff_id.hex:
            raise ValueError("its content does not match the diff id in the config")


class _Hashed:
    """An uncompressed layer, hashed as it is read; ValueError once it is longer than `limit`."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self.hasher, self._limit, self._size = file, hashlib.sha256(), limit, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self.hasher.update(data)
        self.count(len(data))
        return data

    def count(self, size: int) -> None:
        """Add to the unpacked size."""
        self._size += size
        if self._size > self._limit:
            raise ValueError(f"it unpacks to more than {self._limit} bytes, far more than its packed size allows")


_LAST: list[tuple[Image, Tree]] = []
"""The last image that was read: a base is read for its facts, its interpreter and its packages in turn."""


def read_tree(image: Image, name: str) -> Tree:
    """Read the tree of a base image; BaseError if a layer cannot be read or is not as declared.

    Of contents only the versions in interpreters and C libraries are kept, with those files' digests, and what says
    which packages there are. A hard link is a link with an absolute target.
    """
    for known, tree in _LAST:
        if known is image:
            return tree
    _LAST.clear()  # first, so that two are never in memory
    whole, room = Overlay(), [_MOST_KEPT]
    for number, layer in enumerate(image.layers):
        whole = over(whole, read_layer(layer, name, partial(_add, number, room), BaseError))
    whole.nodes.pop("", None)
    _LAST.append((image, whole.nodes))
    return whole.nodes


def _add(
    layer: int, room: list[int], overlay: Overlay, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile
) -> None:
    """Add a member; `room` is the number of bytes that may still be kept."""
    mode, owner = member.mode & 0o7777, (member.uid, member.gid)
    if member.isdir():
        node = Node("directory", mode, owner, layer=layer)
    elif member.issym() or member.islnk():
        target = member.linkname if member.issym() else "/" + member.linkname.removeprefix("./")
        node = Node("link", mode, owner, target, layer=layer)
    elif member.isreg():
        longest = min(room[0], _LONGEST_STATUS if path == _STATUS else _LONGEST_KEPT)
        pattern, keeps, kept = _version_pattern(path), _KEPT.fullmatch(path) and member.size <= longest, b""
        content = archive.extractfile(member) if pattern or keeps else None
        if content and keeps:
            content = BytesIO(kept := content.read())
            room[0] -= len(kept)
        version, sha256 = _find_version(content, pattern) if pattern and content else (b"", b"")
        node = Node("file", mode, owner, sha256=sha256, text=version, content=kept, layer=layer)
    else:
        node = Node("pipe" if member.isfifo() else "device", mode, owner, layer=layer)
    overlay.nodes[path] = node


def _version_pattern(path: str) -> re.Pattern[bytes] | None:
    if python := _PYTHON.fullmatch(path):
        # the beginning of Py_GetVersion: `3.11.2`, `3.14.0rc2`, `3.11.2+`
        return re.compile(rb"(?<![\w.])(%s\.\d+(?:(?:a|b|rc)\d+)?)\+?\0" % re.escape(python[1].encode()))
    return _GLIBC_VERSION if _GLIBC.fullmatch(path) else _RELEASE_NAME if _RELEASE.fullmatch(path) else None


def _find_version(content: IO[bytes], pattern: re.Pattern[bytes]) -> tuple[bytes, bytes]:
    """Return the first match of the pattern, and the digest of the whole content."""
    hasher, window, version = hashlib.sha256(), b"", b""
    while chunk := content.read(CHUNK):
        hasher.update(chunk)
        if not version and (match := pattern.search(window := window[-_LONGEST_VERSION:] + chunk)):
            version = match[1]
    return version, hasher.digest()


class Content:
    """The content of a file in a layer; reading raises BaseError as `read_tree` does."""

    def __init__(self, file: IO[bytes], layer: Layer, name: str) -> None:
        self._file, self._layer, self._name = file, layer, name

    def read(self, size: int = -1, /) -> bytes:
        """Read the next bytes; at most `size`, if that is not negative."""
        with _damage(self._layer, self._name, BaseError):
            return self._file.read(size)


def contents(
    image: Image, tree: Tree, paths: Collection[str], name: str
) -> Iterator[tuple[str, tarfile.TarInfo, Content]]:
    """Yield the regular files among `paths` that are visible in the image; BaseError as `read_tree`.

    A content can be read only before the next one is requested.
    """
    visible = {path: tree[path].layer for path in paths if path in tree and tree[path].kind == "file"}
    for number in sorted(set(visible.values())):
        layer = image.layers[number]
        with _damage(layer, name, BaseError):
            for member, archive in members(layer):
                path, file = place_of(member.name), archive.extractfile(member) if member.isreg() else None
                if file and visible.get(path) == number:
                    yield path, member, Content(file, layer, name)


def resolve(tree: Tree, path: str) -> str | None:
    """Follow all links from an absolute path to an absolute path; None for a dangling or circular path."""
    parts, done = path.split("/"), ""
    for _ in range(_MOST_LINKS):
        if not parts:
            return f"/{done}"
        part = parts.pop(0)
        here = posixpath.normpath(f"/{done}/{part}").lstrip("/")
        node = tree.get(here)
        if node is None and here:
            return None
        if node is not None and node.kind == "link":
            done = "" if node.target.startswith("/") else done
            parts = node.target.split("/") + parts
        else:
            done = here
    return None


def unpack(image: Image, folder: Path, name: str) -> None:
    """Write the files of an image into an empty folder, without owners and special files; BaseError as `read_tree`.

    Links come last, and those below others first, so that nothing is written through one.
    """
    tree = read_tree(image, name)
    for path, node in tree.items():
        if node.kind == "directory":
            folder.joinpath(path).mkdir(parents=True, exist_ok=True)
    for path, member, content in contents(image, tree, tree.keys(), name):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            while data := content.read(CHUNK):
                file.write(data)
        place.chmod(0o755 if member.mode & 0o111 else 0o644)
    for path, node in sorted(tree.items(), key=lambda it: it[0], reverse=True):
        if node.kind == "link" and not os.path.lexists(folder / path):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(node.target)
