"""The cache of layers: key -> digest, size, diff id and the bytes, content-addressed on disk."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from envbuild.cache import read_entry, remove, write_entry
from envbuild.files import settle, written_aside
from envbuild.image.layers.writer import LayerResult
from envbuild.oci.blobs import READ_ONLY, is_damaged
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, canonical_json
from envbuild.trust import Claim

T = TypeVar("T")
Decode = Callable[[Any], T]
"""Reads a JSON value; ValueError for a value that envbuild would not write."""


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """A layer in the cache."""

    result: LayerResult
    path: Path
    reused: bool


class Shared(Protocol):
    """Layers and notes that others share, by the same keys: unproven claims, and None for what cannot be read."""

    def prefetch(self, layers: Iterable[Digest], notes: Iterable[Digest]) -> None:
        """Look up many keys at once, so that single lookups cost nothing afterwards."""

    def layer(self, key: Digest) -> Claim[LayerResult] | None:
        """Return the layer for a key, whose bytes the registry has."""

    def get(self, key: Digest, decode: Decode[T]) -> Claim[T] | None:
        """Return the note for a key."""

    def ignore(self, key: Digest, why: str) -> None:
        """Warn that a note is false, and no longer return it."""

    def put(self, key: Digest, value: Any) -> None:
        """Take a note to publish."""

    def publish(self, results: Mapping[Digest, LayerResult]) -> None:
        """Publish layers and the notes that were taken."""


class LayerCache:
    """A folder of layers, safe for concurrent runs: every file appears whole, under a name from its content.

    A key is that of a layer's tar, and the layers are those of one compression; notes are the same for all.
    One repository's shared cache may be behind it. Its answers are used in this run and kept in memory: they are
    neither written here nor sent to another repository.
    """

    def __init__(
        self,
        folder: Path,
        shared: Shared | None = None,
        on_damage: Callable[[str], object] = lambda _line: None,
        compression: Compression = GZIP,
    ) -> None:
        self.compression = compression.plain
        self._folder = folder
        self._keys, self._blobs, self._notes = folder / "layers", folder / "blobs", folder / "notes"
        self._shared, self._on_damage = shared, on_damage
        self._used: dict[Digest, Any] = {}

    @property
    def local(self) -> "LayerCache":
        """The same folder without the shared cache."""
        return LayerCache(self._folder, None, self._on_damage, self.compression)

    def blobs(self, keys: Iterable[Digest]) -> frozenset[Digest]:
        """Return the blobs of those layers that this machine made; what the registry has does not count."""
        return frozenset(it.result.digest for it in map(self.get, keys) if it)

    def prefetch(self, layers: Iterable[Digest], notes: Iterable[Digest] = ()) -> None:
        """Look up keys in the shared cache at once."""
        if self._shared:
            absent = [key for key in layers if self.get(key) is None]
            absent = [self.compressed_key(key) for key in absent]
            self._shared.prefetch(absent, [key for key in notes if not (self._notes / f"{key.hex}.json").exists()])

    def claim(self, key: Digest) -> Claim[LayerResult] | None:
        """Return the layer for a key in the shared cache."""
        claim = self._shared.layer(self.compressed_key(key)) if self._shared else None
        return claim if claim and claim.value.media_type == self.compression.media_type else None

    def compressed_key(self, key: Digest) -> Digest:
        """Return the digest of everything that decides the layer's bytes; of gzip layers it is the tar's key itself."""
        return key if self.compression == GZIP else Digest.of(canonical_json([str(self.compression), str(key)]))

    def knows(self, key: Digest) -> bool:
        """Whether the digest of a layer is known without making it."""
        return self.get(key) is not None or self.claim(key) is not None

    def get(self, key: Digest) -> CachedLayer | None:
        """Return the layer for a key; None if it is absent.

        Its bytes are not read: they are checked when they leave the cache (`Maker.layer`, `oci.blobs`). Its file is
        marked as used, for `cache.prune`.
        """
        result = read_entry(self._keys, f"{self.compressed_key(key).hex}.json", _decode_result)
        if result is None:
            return None
        path = self._path(result.digest)
        with suppress(OSError):  # another run may have removed it
            state = path.stat()
            if stat.S_ISREG(state.st_mode) and state.st_size == result.size:
                with suppress(OSError):  # it is another user's, or the cache may only be read
                    os.utime(path)
                return CachedLayer(result, path, reused=True)
        return None

    def is_intact(self, layer: CachedLayer) -> bool:
        """Read a layer's bytes; if they are damaged, remove them and report it.

        Also False if they cannot be read now; then they stay.
        """
        try:
            damaged = is_damaged(layer.path, layer.result.descriptor)
        except OSError as error:
            self._on_damage(f"a layer in the cache cannot be read ({error.strerror}) and is made again: {layer.path}")
            return False
        if damaged:
            remove(layer.path)
            self._on_damage(f"a layer in the cache was damaged and is made again: {layer.path}")
        return not damaged

    def make(self, key: Digest, write: Callable[[BinaryIO], LayerResult]) -> CachedLayer:
        """Make a layer and keep it."""
        with written_aside(self._blobs) as (file, temporary):
            result = write(file)
            path = self._path(result.digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                remove(path)
            settle(file, temporary, path, mode=READ_ONLY)
        value = {"digest": str(result.digest), "size": result.size, "diff_id": str(result.diff_id)}
        if result.media_type != LAYER_GZIP:
            value["media_type"] = result.media_type
        write_entry(self._keys, f"{self.compressed_key(key).hex}.json", value)
        return CachedLayer(result, path, reused=False)

    def local_note(self, key: Digest, decode: Decode[T]) -> T | None:
        """Return this machine's note for a key; None if it is absent or `decode` refuses it."""
        return decoded[1] if (decoded := self._read(key, decode)) else None

    def note_or_claim(self, key: Digest, decode: Decode[T]) -> T | None:
        """Return this machine's note, else the registry's claim, which is used without proof.

        Only for notes that need no more trust than their layers: an attacker who can forge them can forge the layers.
        """
        if decoded := self._read(key, decode):
            self._used[key] = decoded[0]
            return decoded[1]
        claim = self._shared.get(key, decode) if self._shared else None
        return claim.value if claim else None

    def store_note(self, key: Digest, value: Any, *, keep: bool = True, share: bool = True) -> None:
        """Keep a small value that a key decides, and share it.

        keep=False: derived from claims, so publish it only to the same repository. share=False: keep it here only.
        """
        if keep:
            write_entry(self._notes, f"{key.hex}.json", value)
        if share:
            self._used[key] = value

    def ignore(self, key: Digest, why: str) -> None:
        """Ignore a false note; the caller writes a new one."""
        self._used.pop(key, None)
        if self._shared:
            self._shared.ignore(key, why)

    def share(self, results: Mapping[Digest, LayerResult]) -> None:
        """Publish layers that were pushed, and all notes of this machine that were read or made."""
        if self._shared:
            for key, value in self._used.items():
                self._shared.put(key, value)
            self._shared.publish({self.compressed_key(key): result for key, result in results.items()})

    def _read(self, key: Digest, decode: Decode[T]) -> tuple[Any, T] | None:
        return read_entry(self._notes, f"{key.hex}.json", lambda value: (value, decode(value)))

    def _path(self, digest: Digest) -> Path:
        return self._blobs / "sha256" / digest.hex


def _decode_result(value: Any) -> LayerResult:
    size = value["size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"a layer cannot have {size!r} bytes")
    media_type = str(value.get("media_type", LAYER_GZIP))
    return LayerResult(Digest.parse(value["digest"]), size, Digest.parse(value["diff_id"]), media_type)
