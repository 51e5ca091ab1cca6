"""Read a Debian package: an ar archive of two compressed tars (deb(5)), which may be hostile."""

import bz2
import gzip
import lzma
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

from envbuild.errors import BuildError
from envbuild.oci.compression import COMPRESSION_ERRORS, open_layer
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_ZSTD
from envbuild.oci.tar import open_tar

_MAGIC = b"!<arch>\n"
_HEADER, _CHUNK = 60, 1 << 20
_LIMIT = {"control": 64 << 20, "data": 8 << 30}
"""Unpacked bytes: many times those of the largest package."""
_WORD = re.compile(r"[A-Za-z0-9][\w.+~:-]*")
_FIELD = re.compile(r"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_DAMAGED: tuple[type[Exception], ...] = (*COMPRESSION_ERRORS, ValueError, tarfile.TarError, lzma.LZMAError)
_OPENERS: Mapping[str, Callable[[Any], Any]] = {
    "": lambda file: file,
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".lzma": lzma.open,
    ".bz2": bz2.open,
    ".zst": partial(open_layer, media_type=LAYER_ZSTD),
}
"""By the ending of a member of the ar archive."""
Kind = Literal["file", "directory", "symlink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file, folder or link of a package."""

    path: str
    """Relative to the root, as in the package."""
    kind: Kind
    mode: int
    owner: tuple[int, int] = (0, 0)
    size: int = 0
    target: str = ""
    """Target of a link."""
    source: tuple[BinaryIO, int] | bytes = b""
    """The content, or the file with it and its offset."""

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of a file, in pieces."""
        if isinstance(self.source, bytes):
            yield self.source
            return
        file, offset = self.source
        file.seek(offset)
        for start in range(0, self.size, _CHUNK):
            yield file.read(min(_CHUNK, self.size - start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """A package, opened."""

    control: str
    """Its stanza."""
    scripts: Mapping[str, bytes]
    """The other files of its control archive, by name: `postinst`, `md5sums`, `conffiles`, `triggers`."""
    items: tuple[Item, ...]
    """Its files, folders and links, in its own order."""


def stanzas(text: str) -> list[str]:
    """Split a control file (deb822(5)) into its stanzas, without the empty lines between them."""
    return [part.strip("\n") for part in re.split(r"\n(?:[ \t]*\n)+", text) if part.strip()]


def fields(stanza: str) -> dict[str, str]:
    """Return the fields of a stanza; continued lines keep their indentation."""
    return dict(_FIELD.findall(stanza))


def open_deb(path: Path, sha256: Digest, stack: ExitStack) -> Deb:
    """Open a locked package; its content is in a temporary file until `stack` ends.

    BuildError if it is another one, or has entries that no package may have.
    """
    with path.open("rb") as file:
        if Digest.of_file(file)[0] != sha256:
            raise BuildError("a Debian package is not the locked one", where=path.name, todo="remove it from the cache")
        try:
            members = dict(_members(file))
            control = _unpacked(file, members, "control", stack)
            data = _unpacked(file, members, "data", stack)
            scripts = {}
            for member in control:
                name = member.name.removeprefix("./")
                content = control.extractfile(member) if member.isfile() and "/" not in name else None
                if content and _WORD.fullmatch(name):
                    scripts[name] = content.read()
            stanza = _stanza(scripts.pop("control"), path.name)
            return Deb(control=stanza, scripts=scripts, items=tuple(_items(data, path.name)))
        except _DAMAGED as error:
            raise _refused(path.name, f"it is damaged: {error}") from error
        except KeyError as error:
            raise _refused(path.name, f"it has no {error}") from error


def _stanza(data: bytes, where: str) -> str:
    """Return the package's own stanza; its name and architecture become names of files."""
    text = data.decode().strip("\n")
    values = fields(text)
    for key in ("Package", "Version", "Architecture"):
        if not _WORD.fullmatch(values.get(key, "")):
            raise _refused(where, f"it has no valid {key}")
    if len(stanzas(text)) != 1:
        raise _refused(where, "it has more than one stanza")
    return text


def _refused(name: str, why: str) -> BuildError:
    todo = "find out where it comes from; or build with --no-system-packages"
    return BuildError(f"a Debian package is refused: {why}", where=name, todo=todo)


def _members(file: BinaryIO) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name, place and size of each member of the ar archive."""
    if file.seek(0) or file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not an ar archive")
    while header := file.read(_HEADER):
        if len(header) < _HEADER or header[58:] != b"`\n":
            raise ValueError("a header of its ar archive is broken")
        name, size = header[:16].decode("ascii").rstrip(" /"), int(header[48:58])
        yield name, (file.tell(), size)
        file.seek(size + size % 2, 1)


def _unpacked(file: BinaryIO, members: Mapping[str, tuple[int, int]], part: str, stack: ExitStack) -> tarfile.TarFile:
    name = next((it for it in members if it.startswith(f"{part}.tar")), f"{part}.tar")
    place, size = members[name]
    file.seek(place)
    target = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    ending = name.removeprefix(f"{part}.tar")
    if ending not in _OPENERS:
        raise ValueError(f"it has the unknown compression {ending!r}")
    _copy(_OPENERS[ending](_Part(file, size)), target, _LIMIT[part])
    target.seek(0)
    return stack.enter_context(open_tar(target))


class _Part:
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _copy(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    done = 0
    while chunk := source.read(_CHUNK):
        done += target.write(chunk)
        if done > limit:
            raise ValueError(f"it unpacks to more than {limit} bytes")


def _items(archive: tarfile.TarFile, where: str) -> Iterator[Item]:
    """Yield the package's items except the root; BuildError for an item that could leave the image."""
    file = cast("BinaryIO", archive.fileobj)
    seen: dict[str, Item] = {}
    for member in archive:
        path = member.name.removeprefix("./").rstrip("/")
        if path in ("", "."):
            continue
        _check(path, member, where)
        kind: Kind = "directory" if member.isdir() else "symlink" if member.issym() else "file"
        if member.islnk():
            other = seen.get(member.linkname.removeprefix("./"))
            if other is None or other.kind != "file":
                raise _refused(where, f"the hard link {path[:120]} leads to no file of the package")
            item = replace(other, path=path)
        else:
            item = Item(
                path=path,
                kind=kind,
                mode=0o777 if kind == "symlink" else member.mode & 0o7777,
                owner=(member.uid, member.gid),
                size=member.size if kind == "file" else 0,
                target=member.linkname if kind == "symlink" else "",
                source=(file, member.offset_data),
            )
        seen[path] = item
        yield item


def _check(path: str, member: tarfile.TarInfo, where: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or not path.isprintable() or any(it in ("", ".", "..") for it in parts):
        raise _refused(where, f"it has the path {ascii(member.name)[:120]}")
    if any(it.startswith(".wh.") for it in parts):
        raise _refused(where, f"{path[:120]} would hide files of the image")
    if member.issparse() or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise _refused(where, f"{path[:120]} is neither file, folder nor link")
    target = member.linkname
    if member.issym() and (not target or not target.isprintable() or _climbs(path, target)):
        raise _refused(where, f"the link {path[:120]} leads to {ascii(target)[:120]}")


def _climbs(path: str, target: str) -> bool:
    """Whether a link goes above the root."""
    depth = 0 if target.startswith("/") else path.count("/")
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False
