"""A layer from one wheel file, and what other readers find in it."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envbuild.image.layers.writer import LayerFile, write_layer
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.wheel.archive import WheelArchive
from envbuild.wheel.install import Scheme, installed_files

SCHEME = Scheme(prefix="/opt/env", python_minor="3.11")


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """Wheels that are all on this machine, by their sha256."""

    paths: Mapping[Digest, Path]

    def path(self, wheel: LockedWheel) -> Path:
        return self.paths[wheel.sha256]

    def stop(self) -> None:
        """Do nothing, as nothing waits."""


def layer_of(path: Path, filename: str | None = None) -> bytes:
    """Make the layer of one wheel; WheelError when it is refused."""
    sink = io.BytesIO()
    with WheelArchive(path, filename or path.name) as archive, ThreadPoolExecutor(1) as pool:
        files = [LayerFile(file, archive) for file in installed_files(archive, SCHEME)]
        result = write_layer(sink, SCHEME.prefix, files, pool)
    blob = sink.getvalue()
    assert (result.digest.hex, result.size) == (hashlib.sha256(blob).hexdigest(), len(blob))
    assert result.diff_id.hex == hashlib.sha256(_unpacked(blob)).hexdigest()
    return blob


def entries_of(blob: bytes) -> dict[str, bytes | None]:
    """Content by path, as Python's gzip and tarfile read a layer; None for a folder, and nothing else may be there."""
    found: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(_unpacked(blob))) as archive:
        for member in archive:
            assert member.isfile() or member.isdir(), member.name
            assert member.name not in found, member.name
            assert (member.uid, member.gid, member.mtime) == (0, 0, 315532800)
            parent = member.name.rpartition("/")[0]
            assert not parent or (parent in found and found[parent] is None), member.name
            content = archive.extractfile(member) if member.isfile() else None
            found[member.name] = content.read() if content else None
    return found


def _unpacked(blob: bytes) -> bytes:
    # gzip.decompress copies all that follows once for each member
    return gzip.GzipFile(fileobj=io.BytesIO(blob)).read()
