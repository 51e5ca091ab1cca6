"""Layers that were made before: key -> digest, size, diff id and the bytes, content-addressed on disk."""

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
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor
from envbuild.trust import Claim

T = TypeVar("T")
Decode = Callable[[Any], T]
"""Reads what JSON holds; ValueError for anything that envbuild would not have written."""


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """A layer that lies in the cache."""

    result: LayerResult
    path: Path
    reused: bool


class Shared(Protocol):
    """What others have made and say of it, by the same keys: claims all, and nothing for what cannot be read."""

    def look_up(self, layers: Iterable[Digest], facts: Iterable[Digest]) -> None:
        """Ask for many at once, so that asking for each afterwards costs nothing."""

    def layer(self, key: Digest) -> Claim[LayerResult] | None:
        """The layer for a key, whose bytes they have."""

    def get(self, key: Digest, decode: Decode[T]) -> Claim[T] | None:
        """What they noted for a key."""

    def ignore(self, key: Digest, why: str) -> None:
        """Warn that a note turned out to be false, and give it to nobody any more."""

    def put(self, key: Digest, value: Any) -> None:
        """Take a note for them."""

    def publish(self, made: Mapping[Digest, LayerResult]) -> None:
        """Let them have layers and the notes that were taken."""


class LayerCache:
    """A folder of layers, safe for concurrent runs: every file appears whole, under a name that its content decides.

    Behind it there may be what one repository shares. Its answers are used in this run and kept in memory: none is
    written here, and none is sent to another repository.
    """

    def __init__(
        self, folder: Path, shared: Shared | None = None, note: Callable[[str], object] = lambda _line: None
    ) -> None:
        self._keys, self._blobs, self._notes = folder / "layers", folder / "blobs", folder / "notes"
        self._shared, self._tell = shared, note
        self._used: dict[Digest, Any] = {}

    def look_up(self, layers: Iterable[Digest], notes: Iterable[Digest] = ()) -> None:
        """Prepare for being asked for these, where others have to be asked."""
        if self._shared:
            absent = [key for key in layers if self.get(key) is None]
            self._shared.look_up(absent, [key for key in notes if not self._note_of(key).exists()])

    def elsewhere(self, key: Digest) -> Claim[LayerResult] | None:
        """The layer for a key that others have."""
        return self._shared.layer(key) if self._shared else None

    def knows(self, key: Digest) -> bool:
        """Whether a layer need not be made to have its digest."""
        return self.get(key) is not None or self.elsewhere(key) is not None

    def get(self, key: Digest) -> CachedLayer | None:
        """Return the layer for a key; None where it is not there.

        Its bytes are not read: whoever lets them out of the cache looks at them first (`Maker.layer`, `oci.blobs`).
        Its file is marked as used, for `cache.prune`.
        """
        result = read_entry(self._keys, f"{key.hex}.json", _result)
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
        """Read a layer's bytes; where they are damaged, remove them and say so.

        False too where they cannot be read now; then they stay.
        """
        try:
            damaged = is_damaged(layer.path, Descriptor(LAYER_GZIP, layer.result.digest, layer.result.size))
        except OSError as error:
            self._tell(f"a layer in the cache cannot be read ({error.strerror}) and is made again: {layer.path}")
            return False
        if damaged:
            remove(layer.path)
            self._tell(f"a layer in the cache was damaged and is made again: {layer.path}")
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
        write_entry(self._keys, f"{key.hex}.json", value)
        return CachedLayer(result, path, reused=False)

    def noted(self, key: Digest, decode: Decode[T]) -> T | None:
        """What this machine noted for a key; None when there is nothing, or nothing that `decode` accepts."""
        return decoded[1] if (decoded := self._read(key, decode)) else None

    def find_note(self, key: Digest, decode: Decode[T]) -> T | None:
        """Return this machine's note, else the registry's claim.

        Only for notes that are worth as much as the layers that they belong to: whoever can falsify them can falsify
        the layers too. This is where such a claim is used without proof.
        """
        if decoded := self._read(key, decode):
            self._used[key] = decoded[0]
            return decoded[1]
        claim = self._shared.get(key, decode) if self._shared else None
        return claim.value if claim else None

    def note(self, key: Digest, value: Any, *, keep: bool = True, share: bool = True) -> None:
        """Keep a small value that a key decides, and share it.

        keep=False: derived from claims, so publish it only to the same repository. share=False: nobody takes it from
        others.
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

    def share(self, made: Mapping[Digest, LayerResult]) -> None:
        """Let others have layers, whose bytes they got, and all notes of this machine that were read or made."""
        if self._shared:
            for key, value in self._used.items():
                self._shared.put(key, value)
            self._shared.publish(made)

    def _read(self, key: Digest, decode: Decode[T]) -> tuple[Any, T] | None:
        return read_entry(self._notes, f"{key.hex}.json", lambda value: (value, decode(value)))

    def _note_of(self, key: Digest) -> Path:
        return self._notes / f"{key.hex}.json"

    def _path(self, digest: Digest) -> Path:
        return self._blobs / "sha256" / digest.hex


def _result(value: Any) -> LayerResult:
    size = value["size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"a layer cannot have {size!r} bytes")
    return LayerResult(Digest.parse(value["digest"]), size, Digest.parse(value["diff_id"]))
