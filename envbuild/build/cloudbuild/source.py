"""A build context in a bucket, named by its content and pinned by its generation."""

import hashlib
import os
import stat
import tarfile
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY

from envbuild.build.cloudbuild.service import TIMEOUT
from envbuild.errors import BuildError
from envbuild.google_api import retry_for, timeout_of
from envbuild.oci import gzip
from envbuild.stamp.gcs import storage_errors

_PIECE = 16 * gzip.STORED_LIMIT
"""Bytes: a whole number of stored blocks, so that pieces make no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A context as one file."""

    path: Path
    size: int
    sha256: str
    md5: str
    """As Cloud Storage tells it, in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a context lies."""

    bucket: str
    name: str
    generation: int

    def to_dict(self) -> dict[str, str]:
        """Return Cloud Build's StorageSource as JSON; 64-bit numbers are text there."""
        return {"bucket": self.bucket, "object": self.name, "generation": str(self.generation)}


class _Gzip:
    """Takes a tar's bytes and writes a gzip member whose bytes no compression library decides.

    Stored, not compressed: requirements and locks are small, and wheels do not get smaller.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._rest, self._crc, self._plain = file, bytearray(), 0, 0
        self._sha256, self._md5, self.size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        self._put(gzip.start())

    def write(self, data: bytes) -> int:
        self._crc, self._plain = zlib.crc32(data, self._crc), self._plain + len(data)
        self._rest += data
        while len(self._rest) > _PIECE:
            self._stored(bytes(self._rest[:_PIECE]), final=False)
            del self._rest[:_PIECE]
        return len(data)

    def end(self, path: Path) -> Packed:
        self._stored(bytes(self._rest), final=True)
        self._put(gzip.end(self._crc, self._plain))
        self._file.flush()
        md5 = b64encode(self._md5.digest()).decode()
        return Packed(path=path, size=self.size, sha256=self._sha256.hexdigest(), md5=md5)

    def _stored(self, data: bytes, *, final: bool) -> None:
        for piece in gzip.stored(data, final=final):
            self._put(piece)

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self._md5.update(data)
        self.size += len(data)


@contextmanager
def packed(context: Path) -> Iterator[Packed]:
    """Yield a context as a tar.gz, which vanishes with the block: the same bytes for the same files, on any machine.

    Of a file's mode only its right to be executed is kept. BuildError for a link or a device in the context.
    """
    with tempfile.NamedTemporaryFile(prefix="envbuild-context-", suffix=".tar.gz") as file:
        sink = _Gzip(file)  # type: ignore[arg-type]
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for path in _files(context):
                _add(archive, context, path)
        yield sink.end(Path(file.name))


def _files(context: Path) -> list[Path]:
    paths = sorted((path for path in context.rglob("*") if path.is_symlink() or not path.is_dir()), key=os.fsencode)
    for path in paths:
        if path.is_symlink() or not path.is_file():
            todo = "let the context hold files and folders only"
            raise BuildError(
                "what is neither file nor folder cannot be sent to Cloud Build", where=str(path), todo=todo
            )
    return paths


def _add(archive: tarfile.TarFile, context: Path, path: Path) -> None:
    """Add a file; its owner and times are those of no machine."""
    entry = tarfile.TarInfo(path.relative_to(context).as_posix())
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        entry.size = state.st_size
        entry.mode = 0o755 if state.st_mode & stat.S_IXUSR else 0o644
        archive.addfile(entry, file)


def check_owned(client: Client, project: str, bucket: str) -> None:
    """See that a bucket whose name anybody can guess is the project's own; BuildError otherwise.

    Bucket names are global: who makes the bucket of a project that has none would get its contexts.
    """
    where, other = f"gs://{bucket}", "name a bucket of yours with --cloudbuild-bucket"
    with storage_errors(where, bucket, "storage.buckets.list", BuildError):
        try:
            found = [one.name for one in client.list_buckets(project=project, prefix=bucket, **call_options())]
        except Forbidden as error:
            what = (
                f"the buckets of {project} may not be listed (storage.buckets.list), so whose this one is, is unknown"
            )
            raise BuildError(what, where=where, todo=other) from error
    if bucket not in found:
        todo = f"gcloud storage buckets create {where} --project={project}; or {other}"
        raise BuildError(f"project {project} has no such bucket", where=where, todo=todo)


def upload(client: Client, context: Packed, bucket: str, prefix: str) -> Source:
    """Put a packed context into a bucket, unless it is there; BuildError when it cannot be, or lies there falsely."""
    name = "/".join(filter(None, (prefix, f"{context.sha256}.tar.gz")))
    blob, where = client.bucket(bucket).blob(name), f"gs://{bucket}/{name}"
    with storage_errors(where, bucket, "storage.objects.create", BuildError):
        try:
            blob.upload_from_filename(
                str(context.path),
                content_type="application/gzip",
                if_generation_match=0,
                checksum="md5",
                **call_options(),
            )
        except PreconditionFailed:
            _reload(blob, where, bucket)
    if (blob.md5_hash, blob.size) != (context.md5, context.size):
        todo = "remove the object, and find out who wrote it; contexts are named by their content"
        raise BuildError("another context lies under this one's name", where=where, todo=todo)
    return Source(bucket=bucket, name=name, generation=int(blob.generation))


def _reload(blob: Any, where: str, bucket: str) -> None:
    with storage_errors(where, bucket, "storage.objects.get", BuildError):
        try:
            blob.reload(**call_options())
        except NotFound as error:
            todo = "run the command again"
            raise BuildError("the context vanished while it was sent", where=where, todo=todo) from error


def call_options() -> dict[str, Any]:
    """How long one call to Cloud Storage may try; between two bytes of a large context may lie ten minutes."""
    seconds = timeout_of(TIMEOUT)
    return {"retry": retry_for(seconds, DEFAULT_RETRY), "timeout": (min(seconds, 60.0), 600.0)}
