"""Cloud Storage: lists, reads and writes objects with Google's client, where it is installed."""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Optional

from envbuild.capture.files import Facts, write_whole
from envbuild.capture.redact import scrub_line

PATIENCE = 10.0
"""Seconds that one use of Cloud Storage may take in all."""
CONNECTING = 5.0
"""Seconds for finding credentials: away from Google, its library looks for a metadata server for longer."""
ANSWERING = 4.0
"""Seconds for one answer."""
OBJECT_FIELDS = "items(name,size,generation,crc32c),nextPageToken"
NO_CREDENTIALS = "there are no Google credentials here that can be used"
REFUSALS = {
    403: "Cloud Storage refused: permission %s is missing (403)",
    404: "there is no such bucket or object in Cloud Storage (404)",
}


class Unread(Exception):  # noqa: N818 - it is a result as much as a fault
    """Why something could not be read, in one sentence."""


def split_uri(uri: str) -> tuple[str, str]:
    """Split gs://BUCKET/NAME; Unread for any other text."""
    bucket, _, name = uri[len("gs://") :].partition("/")
    if not uri.startswith("gs://") or not bucket:
        raise Unread("it names no bucket; gs://BUCKET/NAME does")
    return bucket, name


class CloudStorage:
    """A client with the environment's credentials, for `patience` seconds; Unread without library or credentials."""

    def __init__(self, patience: Optional[float] = None) -> None:
        self.patience = PATIENCE if patience is None else patience
        self.end = time.monotonic() + self.patience
        self.client, self.retry = _connect()

    def objects(self, uri: str) -> Iterator[Facts]:
        """List an object, or all below it: `name`, `size` in bytes, `generation`, `crc32c` in base64. Unread."""
        bucket, name = split_uri(uri)
        if name and not name.endswith("/"):
            # Listing the bare name would also list its siblings, runs/10 and runs/11 beside runs/1.
            item = self.find(bucket, name)
            if item is not None:
                yield item
                return
            name += "/"
        with self._call_options("storage.objects.list") as options:
            blobs = iter(self.client.list_blobs(bucket, prefix=name, fields=OBJECT_FIELDS, **options))
        while True:
            # The client requests a page when the one before is used up.
            with self._call_options("storage.objects.list"):
                blob = next(blobs, None)
            if blob is None:
                return
            # What a console shows as an empty folder is an object too.
            if not blob.name.endswith("/") or blob.size:
                yield _object_facts(blob)

    def find(self, bucket: str, name: str) -> Optional[Facts]:
        """Look up an object by its name; None where there is none. Unread."""
        with self._call_options("storage.objects.get") as options:
            blob = self.client.bucket(bucket).get_blob(name, **options)
        return None if blob is None else _object_facts(blob)

    def read(self, uri: str, generation: int, start: int, size: int) -> bytes:
        """Read a range of bytes of one generation of an object, as they are stored; Unread."""
        bucket, name = split_uri(uri)
        blob = self.client.bucket(bucket).blob(name, generation=generation)
        with self._call_options("storage.objects.get") as options:
            stop = start + size - 1
            data: bytes = blob.download_as_bytes(start=start, end=stop, raw_download=True, checksum=None, **options)
        return data

    def write(self, uri: str, text: str) -> None:
        """Write an object, which Cloud Storage does atomically; Unread."""
        bucket, name = split_uri(uri)
        with self._call_options("storage.objects.create") as options:
            blob = self.client.bucket(bucket).blob(name)
            blob.upload_from_string(text.encode("utf-8"), content_type="application/json", **options)

    @contextmanager
    def _call_options(self, permission: str) -> Iterator[Facts]:
        """Yield timeout and retries for a call; Unread if it fails."""
        left = min(ANSWERING, self.end - time.monotonic())
        if left <= 0:
            raise Unread("Cloud Storage took longer than %d s" % self.patience)
        try:
            yield {"timeout": left, "retry": self.retry.with_deadline(left)}
        except Exception as error:
            # What Google's libraries say of an error can quote credentials.
            raise Unread(_refusal(error, permission)) from None


def _object_facts(blob: Any) -> Facts:
    return {"name": blob.name, "size": blob.size or 0, "generation": blob.generation, "crc32c": blob.crc32c}


def _refusal(error: Exception, permission: str) -> str:
    # RetryError keeps the last error.
    error = getattr(error, "cause", None) or error
    code = getattr(error, "code", None)
    if code in REFUSALS:
        return REFUSALS[code].replace("%s", permission)
    if isinstance(code, int):
        return "Cloud Storage refused with %d" % code
    if type(error).__module__.startswith("google.auth"):
        return NO_CREDENTIALS
    return "Cloud Storage could not be reached (%s)" % type(error).__name__


def _connect() -> tuple[Any, Any]:
    """Return a client and its retry; Unread without library or credentials, or where they take too long."""
    clients: list[Any] = []
    try:
        # By name, since it is not a dependency.
        storage = importlib.import_module("google.cloud.storage")
        retry = importlib.import_module("google.cloud.storage.retry").DEFAULT_RETRY
    except ImportError:
        raise Unread("google-cloud-storage is not installed here") from None

    def create() -> None:
        with suppress(Exception):
            # Objects belong to buckets; without this the client insists on a project.
            clients.append(storage.Client(project=None))

    thread = threading.Thread(target=create, daemon=True)
    thread.start()
    thread.join(CONNECTING)
    if not clients:
        raise Unread(NO_CREDENTIALS)
    return clients[0], retry.with_delay(initial=0.2, maximum=1.0)


def check_out(out: Any) -> None:
    """ValueError unless `out` can be a file or an object of Cloud Storage; checked before anything is done."""
    path = None if out is None else os.fspath(out)
    scheme = re.match("[A-Za-z][A-Za-z0-9+.-]*(?=://)", path or "")
    if scheme and scheme.group() != "gs":
        raise ValueError("out: a manifest goes to a file or to gs://BUCKET/OBJECT, not to %s://" % scheme.group())
    if scheme and re.fullmatch("gs://[^/]+/.*[^/]", str(path)) is None:
        raise ValueError("out: give the object's name as well: gs://BUCKET/FOLDER/manifest.json")
    if path == "":
        raise ValueError("out: is empty; give the path of a file")
    if path is not None and os.path.isdir(path):
        raise ValueError("out: %s is a folder; give the path of a file" % scrub_line(path))


def write_out(out: Any, text: str) -> None:
    """Write to a path, or to `gs://bucket/object`; OSError if that cannot be done."""
    if not (isinstance(out, str) and out.startswith("gs://")):
        write_whole(os.path.realpath(out), text)
        return
    try:
        CloudStorage().write(out, text)
    except Unread as reason:
        raise OSError("%s: %s" % (out, reason)) from None
