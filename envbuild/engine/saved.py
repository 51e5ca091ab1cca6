"""An engine's image, read from the archive of `docker save` (moby, image/spec/v1.2.md)."""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

from envbuild.engine.build import Built
from envbuild.errors import BuildError
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_TAR, Descriptor, Image, Layer, history_lines, manifest_bytes
from envbuild.oci.tar import open_tar
from envbuild.report import Reporter

_QUIET = 600
"""Seconds of silence while the engine collects a large layer."""
_CHUNK = 1 << 20
_JSON_LIMIT = 4 << 20
_GZIP = b"\x1f\x8b"
_TODO = "push the image instead (--push), or load it (--load)"
_LEVEL = 1
"""The fastest: each build by an engine has other bytes, so no registry has these layers already."""


def save_image(image: Built, folder: Path | None, base: Sequence[Layer], report: Reporter) -> Image:
    """Read an image out of the engine, its layers compressed into `folder`; without a folder, only their digests.

    The base's layers stay as they are in `base`. BuildError when the archive is incomplete.
    """
    image.client.api.timeout = _QUIET
    contents = _Archive(folder, {layer.diff_id: layer for layer in base})
    stream = _Stream(image.client.api.get_image(image.id), report)
    try:
        with open_tar(io.BufferedReader(stream, _CHUNK), stream=True) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                if file is not None:
                    contents.add(member.name, member.size, file)
    except tarfile.TarError as error:
        raise BuildError(
            f"the engine's archive cannot be read: {error}", where="container engine", todo=_TODO
        ) from error
    return contents.image()


class _Stream(io.RawIOBase):
    """The chunks of an answer as a file."""

    def __init__(self, parts: Iterator[bytes], report: Reporter) -> None:
        super().__init__()
        self._parts, self._report = parts, report
        self._pending, self._read = memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._pending:
            self._pending = memoryview(next(self._parts, b""))
            self._read += len(self._pending)
            self._report.progress("reading from the engine", self._read, None)
        size = min(len(buffer), len(self._pending))
        buffer[:size], self._pending = self._pending[:size], self._pending[size:]
        return size


@dataclass(slots=True)
class _Archive:
    """The members of the archive: its few small JSON files, and its layers by diff id."""

    folder: Path | None
    base: Mapping[Digest, Layer]
    texts: dict[str, bytes] = field(default_factory=dict)
    layers: dict[Digest, Layer] = field(default_factory=dict)

    def add(self, name: str, size: int, file: IO[bytes]) -> None:
        head = file.read(min(size, _CHUNK))
        if head[:1] in (b"{", b"[") and size <= _JSON_LIMIT:
            self.texts[name] = head + file.read()
        elif size >= tarfile.BLOCKSIZE or head.startswith(_GZIP):
            layer = self._layer(head, file)
            self.layers[layer.diff_id] = self.base.get(layer.diff_id, layer)
            if layer.path and layer.diff_id in self.base:
                layer.path.unlink()

    def _layer(self, head: bytes, file: IO[bytes]) -> Layer:
        plain = _plain(head, file)
        if self.folder is None:
            digest, size = _digest(plain)
            return Layer(Descriptor(LAYER_TAR, digest, size), digest, _absent)
        path = self.folder / f"{len(self.layers)}.tar.gz"
        with path.open("wb") as target:
            written = _Hashed(target)
            with gzip.GzipFile(fileobj=written, filename="", mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
                diff_id, _ = _digest(plain, packed)
        descriptor = Descriptor(LAYER_GZIP, Digest(written.hasher.hexdigest()), written.size)
        return Layer(descriptor, diff_id, lambda: path.open("rb"), path=path)

    def image(self) -> Image:
        """Join the members; BuildError if one is missing."""
        try:
            config = self.texts[json.loads(self.texts["manifest.json"])[0]["Config"]]
            diff_ids = [Digest.parse(text) for text in json.loads(config)["rootfs"]["diff_ids"]]
            lines = history_lines(json.loads(config), len(diff_ids))
            pairs = zip(diff_ids, lines, strict=True)
            layers = tuple(replace(self.layers[diff_id], created_by=line) for diff_id, line in pairs)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            what = "the engine's archive of the image is incomplete"
            raise BuildError(what, where="container engine", todo=_TODO) from error
        return Image(manifest_bytes(config, layers, {}), config, layers)


@dataclass(slots=True)
class _Hashed(io.RawIOBase):
    """A file that hashes what is written to it."""

    target: BinaryIO
    hasher: Any = field(default_factory=hashlib.sha256)
    size: int = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hasher.update(data)
        self.size += len(data)
        return self.target.write(data)


def _digest(parts: Iterator[bytes], target: IO[bytes] | gzip.GzipFile | None = None) -> tuple[Digest, int]:
    hasher, size = hashlib.sha256(), 0
    for part in parts:
        hasher.update(part)
        size += len(part)
        if target is not None:
            target.write(part)
    return Digest(hasher.hexdigest()), size


def _plain(head: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """The uncompressed bytes; engines with containerd's store save layers as a registry has them."""
    inflated = zlib.decompressobj(zlib.MAX_WBITS | 16) if head.startswith(_GZIP) else None
    chunk = head
    while chunk:
        yield inflated.decompress(chunk, _CHUNK) if inflated else chunk
        chunk = (inflated.unconsumed_tail if inflated else b"") or file.read(_CHUNK)
    if inflated:
        yield inflated.flush()


def _absent() -> BinaryIO:
    raise BuildError("the layer was not kept", where="container engine", todo="push the image, or write an archive")
