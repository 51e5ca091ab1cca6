"""The files of an image, read from its layers without unpacking them (OCI image-spec, layer.md)."""

import hashlib
import os
import posixpath
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, BinaryIO, Literal, Protocol, cast

from envbuild.errors import BaseError
from envbuild.oci.deflate import GZIP_ERRORS, expansion_limit, open_gzip
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, LAYER_ZSTD, Image, Layer
from envbuild.oci.tar import open_tar

_CHUNK = 1 << 20
DAMAGED: tuple[type[Exception], ...] = (*GZIP_ERRORS, tarfile.TarError, ValueError)
"""What reading a layer raises that is no compressed tar."""
_OVERLAP = 256
_STEPS = 400
_PYTHON = re.compile(r"(?:.*/)?(?:python|libpython)(3\.\d+)(?:\.so[.\d]*)?")
_GLIBC = re.compile(r"(?:usr/)?lib(?:32|64)?/(?:[\w-]+/)?(?:libc\.so\.6|libc-2\.\d+\.so)")
_RELEASE = re.compile(r"(?:etc|usr/lib)/os-release")
_RELEASE_SAYS = re.compile(rb"^PRETTY_NAME=\"?([^\"\r\n]{1,99})", re.MULTILINE)
_GLIBC_SAYS = re.compile(rb"GNU C Library[^\n]{0,99} version (\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """What lies at a path."""

    kind: Literal["file", "directory", "link"]
    """A hard link counts as a link to an absolute path."""
    mode: int = 0
    """Permission bits."""
    owner: tuple[int, int] = (0, 0)
    target: str = ""
    """Where a link points."""
    version: str = ""
    """The version that an interpreter or a C library says of itself, or the name of a distribution."""
    sha256: str = ""
    """Of the content, where a version was looked for in it."""
    layer: int = 0
    """Which of the image's layers has it, from 0."""


Tree = Mapping[str, Node]
"""Nodes by path, relative to the root: `usr/bin/python3.11`."""
_LAST: list[tuple[Image, Tree]] = []
"""The image that was read last: a base is asked for its facts, its interpreter and its packages in turn."""


def read_tree(image: Image, name: str) -> Tree:
    """Read all layers, lowest first, in bounded memory; BaseError when one cannot be read or is not as declared.

    Only names are kept, and the versions that stand in interpreters and C libraries.
    """
    for known, tree in _LAST:
        if known is image:
            return tree
    _LAST.clear()  # first, so that two are never in memory
    tree = _read(image, name)
    _LAST.append((image, tree))
    return tree


def _read(image: Image, name: str) -> Tree:
    tree: Tree = {}
    for place, layer in enumerate(image.layers):
        media_type = layer.descriptor.media_type
        if media_type == LAYER_ZSTD:
            todo = "copy it with `skopeo copy --dest-compress-format gzip`, and give the copy"
            raise BaseError(
                "a layer of the base is compressed with zstd, which is not read here", where=name, todo=todo
            )
        if media_type not in (LAYER_GZIP, LAYER_TAR):
            raise BaseError(f"a layer of the base has the unknown media type {media_type[:80]}", where=name)
        with _blamed(layer, name):
            tree = _applied(tree, layer, place)
    return tree


class Content:
    """What a file of a layer holds; reading raises BaseError as `read_tree`."""

    def __init__(self, file: IO[bytes], layer: Layer, name: str) -> None:
        self._file, self._layer, self._name = file, layer, name

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; at most `size`, where that is not negative."""
        with _blamed(self._layer, self._name):
            return self._file.read(size)


def contents(
    image: Image, tree: Tree, paths: Collection[str], name: str
) -> Iterator[tuple[str, tarfile.TarInfo, Content]]:
    """The regular files among `paths` as the image shows them, from the layers that have one; BaseError as `read_tree`.

    What one holds can be read before the next is asked for.
    """
    visible = {path: tree[path].layer for path in paths if path in tree and tree[path].kind == "file"}
    for place in sorted(set(visible.values())):
        layer = image.layers[place]
        with _blamed(layer, name):
            for member, archive in members(layer):
                path, file = _path(member), archive.extractfile(member) if member.isreg() else None
                if file and visible.get(path) == place:
                    yield path, member, Content(file, layer, name)


@contextmanager
def _blamed(layer: Layer, name: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        what = f"layer {layer.descriptor.digest} of the base cannot be read: {error}"
        raise BaseError(what, where=name, todo="fetch the base again, or give another") from error


def _path(member: tarfile.TarInfo) -> str:
    return posixpath.normpath(member.name).lstrip("/")


def members(layer: Layer) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Every member of a layer, in bounded memory; its content can be read of the archive before the next is asked for.

    One of DAMAGED when it is no tar, is not packed as its media type says, or is not its diff id.
    """
    with layer.open() as blob, ExitStack() as stack:
        # tarfile's own gzip reading stops after the first member; eStargz and our own layers have many
        packed = layer.descriptor.media_type == LAYER_GZIP
        limit = expansion_limit(layer.descriptor.size)
        content = _Hashed(stack.enter_context(open_gzip(blob)) if packed else blob, limit)
        archive = stack.enter_context(open_tar(cast("IO[bytes]", content), stream=True))
        while (member := archive.next()) is not None:
            if member.issparse():
                content.count(member.size)
            yield member, archive
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps a kilobyte of each
        content.finish(layer.diff_id)


def _applied(lower: Tree, layer: Layer, place: int) -> Tree:
    """Put a layer on top; its whiteouts hide what lies below, never what lies beside them."""
    upper: dict[str, Node] = {}
    hidden: set[str] = set()
    emptied: set[str] = set()
    for member, archive in members(layer):
        path = _path(member)
        folder, _, base = path.rpartition("/")
        if base == ".wh..wh..opq":
            emptied.add(folder)
        elif base.startswith(".wh."):
            hidden.add(posixpath.join(folder, base.removeprefix(".wh.")))
        else:
            upper[path] = replace(_node(path, member, archive), layer=place)
    hidden |= {path for path, node in upper.items() if node.kind != "directory"}
    tree = {path: node for path, node in lower.items() if not _gone(path, hidden, emptied)} | upper
    for path in upper:
        _add_parents(tree, path)
    return tree


def _add_parents(tree: dict[str, Node], path: str) -> None:
    """A layer may leave out folders that it fills."""
    while (path := posixpath.dirname(path)) and path not in tree:
        tree[path] = Node("directory", 0o755)


def _gone(path: str, hidden: set[str], emptied: set[str]) -> bool:
    if path in hidden:
        return True
    while path:
        path = path.rpartition("/")[0]
        if path in hidden or path in emptied:
            return True
    return False


def _node(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Node:
    mode, owner = member.mode & 0o7777, (member.uid, member.gid)
    if member.isdir():
        return Node("directory", mode, owner)
    if member.issym():
        return Node("link", mode, owner, member.linkname)
    if member.islnk():
        return Node("link", mode, owner, "/" + member.linkname.removeprefix("./"))
    version, sha256 = _said(path, member, archive)
    return Node("file", mode, owner, version=version, sha256=sha256)


def _said(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> tuple[str, str]:
    if python := _PYTHON.fullmatch(path):
        # what Py_GetVersion begins with: `3.11.2`, `3.14.0rc2`, `3.11.2+`
        says = re.compile(rb"(?<![\w.])(%s\.\d+(?:(?:a|b|rc)\d+)?)\+?\0" % re.escape(python[1].encode()))
    elif _GLIBC.fullmatch(path):
        says = _GLIBC_SAYS
    elif _RELEASE.fullmatch(path):
        says = _RELEASE_SAYS
    else:
        return "", ""
    content = archive.extractfile(member) if member.isreg() else None
    return _search(content, says) if content else ("", "")


def _search(content: IO[bytes], says: re.Pattern[bytes]) -> tuple[str, str]:
    """Return what the first match says, and the digest of the whole."""
    hasher, rest, found = hashlib.sha256(), b"", ""
    while chunk := content.read(_CHUNK):
        hasher.update(chunk)
        if not found and (match := says.search(rest := rest[-_OVERLAP:] + chunk)):
            found = match[1].decode(errors="replace")
    return found, hasher.hexdigest()


class _Hashed:
    """An uncompressed layer, hashed as it passes; ValueError once it is longer than `limit`."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._hasher, self._limit, self._size = file, hashlib.sha256(), limit, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._hasher.update(data)
        self.count(len(data))
        return data

    def count(self, size: int) -> None:
        """Add to what the layer unpacks to."""
        self._size += size
        if self._size > self._limit:
            raise ValueError(f"it unpacks to more than {self._limit} bytes, which is far more than its packed size")

    def finish(self, diff_id: Digest) -> None:
        """Read what follows the archive's end, so that the blob is checked too; ValueError when it is not `diff_id`."""
        while self.read(_CHUNK):
            pass
        if self._hasher.hexdigest() != diff_id.hex:
            raise ValueError("its content is not what the config says (diff id)")


class Placed(Protocol):
    """What following links has to know of a node."""

    @property
    def kind(self) -> str: ...
    @property
    def target(self) -> str: ...


def resolve(tree: Mapping[str, Placed], path: str) -> str | None:
    """Follow all links from an absolute path to an absolute path; None where it leads nowhere or in circles."""
    parts, done = path.split("/"), ""
    for _ in range(_STEPS):
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
    """Write what an image shows into an empty folder; BaseError as `read_tree`.

    Owners and special files are left out. Links come last, so that no file is written through one.
    """
    tree = {path: node for path, node in read_tree(image, name).items() if path != ".." and not path.startswith("../")}
    for path, node in tree.items():
        if node.kind == "directory":
            folder.joinpath(path).mkdir(parents=True, exist_ok=True)
    for path, member, content in contents(image, tree, tree.keys(), name):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            while data := content.read(_CHUNK):
                file.write(data)
        place.chmod(0o755 if member.mode & 0o111 else 0o644)
    for path, node in tree.items():
        if node.kind == "link" and not os.path.lexists(folder / path):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(node.target)
