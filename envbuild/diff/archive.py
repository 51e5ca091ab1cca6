"""An image in one tar file, as `docker save`, `podman save` and `envbuild from-manifest --archive` write it.

All have `manifest.json` (moby, image/spec/v1.2.md, "Combined Image JSON + Filesystem Changeset Format"). What others
write without it, such as BuildKit (`--output type=oci`) and skopeo, is a packed OCI layout.
"""

import io
import json
import os
import posixpath
import re
import shutil
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import (
    INDEX,
    LAYER_GZIP,
    LAYER_TAR,
    LAYER_ZSTD,
    Descriptor,
    Image,
    Layer,
    manifest_bytes,
    parse_manifest,
)
from envbuild.oci.layout import read_layout
from envbuild.oci.tar import open_tar

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_LIMIT = 4 << 20
_MAGIC = {b"\x1f\x8b": LAYER_GZIP, b"\x28\xb5": LAYER_ZSTD}
_WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, tarfile.TarError, EOFError)
_PART = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")
_TODO = "save one image with `docker save --output FILE IMAGE`, and do not compress the file"


def read_archive(path: Path, *, machine: str, scratch: Callable[[], Path]) -> Image:
    """Read the image of an archive; BuildError when it is none or has several.

    The layers stay in it, but for those of a packed layout: that is unpacked into the folder that `scratch` then
    makes, and `machine` chooses of several platforms.
    """
    try:
        with path.open("rb") as file, open_tar(file) as archive:
            found = {posixpath.normpath(member.name): member for member in archive}
            if "manifest.json" in found or "oci-layout" not in found:
                return _Archive(path, found).image()
            return read_layout(_unpacked(archive, found, scratch()), machine=machine)
    except _WRONG as error:
        what = f"this is no archive of an image ({type(error).__name__}: {error})"
        raise BuildError(what, where=str(path), todo=_TODO) from error


def _unpacked(archive: tarfile.TarFile, found: Mapping[str, tarfile.TarInfo], folder: Path) -> Path:
    for name, member in found.items():
        content = archive.extractfile(member) if member.isreg() and _PART.fullmatch(name) else None
        if content:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
    return folder


class _Archive:
    def __init__(self, path: Path, found: Mapping[str, tarfile.TarInfo]) -> None:
        self._path, self._found = path, found

    def image(self) -> Image:
        images = json.loads(self._read("manifest.json"))
        if len(images) != 1:
            raise ValueError(f"it has {len(images)} images")
        config = self._read(images[0]["Config"])
        diff_ids = [Digest.parse(text) for text in json.loads(config)["rootfs"]["diff_ids"]]
        pairs = zip(images[0]["Layers"], diff_ids, strict=True)
        layers = tuple(self._layer(name, diff_id) for name, diff_id in pairs)
        return Image(self._manifest(Digest.of(config)) or manifest_bytes(config, layers, {}), config, layers)

    def _manifest(self, config: Digest) -> bytes:
        """The manifest that the archive has of the image, as older engines write none; empty then."""
        entries = parse_manifest(self._read("index.json"), INDEX)["manifests"] if "index.json" in self._found else ()
        for entry in entries:
            name = f"blobs/sha256/{Digest.parse(entry['digest']).hex}"
            data = self._read(name) if name in self._found else b"{}"
            if (parse_manifest(data).get("config") or {}).get("digest") == str(config):
                return data
        return b""

    def _layer(self, name: str, diff_id: Digest) -> Layer:
        member = self._member(name)
        opener = partial(_open, self._path, member.offset_data, member.size)
        with opener() as file:
            media_type = _MAGIC.get(file.read(2), LAYER_TAR)
        # Nobody asks for a packed layer by its digest, which only newer archives have as its name.
        return Layer(Descriptor(media_type, diff_id, member.size), diff_id, opener)

    def _read(self, name: str) -> bytes:
        member = self._member(name)
        if member.size > _LIMIT:
            raise ValueError(f"{name} is too large")
        with _open(self._path, member.offset_data, member.size) as file:
            return file.read()

    def _member(self, name: str) -> tarfile.TarInfo:
        """Find a file; of equal layers older engines write all but one as links."""
        member = self._found.get(posixpath.normpath(name))
        if member and member.issym():
            member = self._found.get(posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
        if member is None or not member.isreg():
            raise ValueError(f"it has no {name}")
        return member


def _open(path: Path, start: int, size: int) -> BinaryIO:
    # BufferedReader is a BinaryIO in all but name.
    return cast("BinaryIO", io.BufferedReader(_Part(path.open("rb", buffering=0), start, size), 1 << 20))


class _Part(io.RawIOBase):
    """A part of a file."""

    def __init__(self, file: io.FileIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._left = file, size
        file.seek(start, os.SEEK_SET)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        count = self._file.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
