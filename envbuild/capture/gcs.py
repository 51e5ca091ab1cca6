"""Objects in Cloud Storage, through Google's own client where it is installed."""

from __future__ import annotations

import importlib
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

from envbuild.capture.reading import Facts

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


def list_objects(uri: str) -> Iterator[Facts]:
    """List the object that a gs:// URI names, or all objects below it by name; nothing where there is neither.

    Each has `name`, `size` in bytes, `generation` and `crc32c` in base64. Unread, also while listing.
    """
    return CloudStorage().objects(uri)


def split_uri(uri: str) -> tuple[str, str]:
    """Split gs://BUCKET/NAME; Unread if it is none."""
    bucket, _, name = uri[len("gs://") :].partition("/")
    if not uri.startswith("gs://") or not bucket:
        raise Unread("it names no bucket; gs://BUCKET/NAME does")
    return bucket, name


class CloudStorage:
    """A client with the environment's credentials (STORAGE_EMULATOR_HOST is honoured), for some seconds.

    Unread where there is no client library, and where credentials or an answer are not to be had.
    """

    def __init__(self, patience: Optional[float] = None) -> None:
        self.patience = PATIENCE if patience is None else patience
        self.end = time.monotonic() + self.patience
        self.client, self.retry = _within(CONNECTING, _connected)

    def objects(self, uri: str) -> Iterator[Facts]:
        """List as `list_objects` does."""
        bucket, name = split_uri(uri)
        if name and not name.endswith("/"):
            # Listing the bare name would also list its siblings, runs/10 and runs/11 beside runs/1.
            item = self.find(bucket, name)
            if item is not None:
                yield item
                return
            name += "/"
        for blob in self._below(bucket, name):
            # What a console shows as an empty folder is an object too.
            if not blob.name.endswith("/") or blob.size:
                yield _object_facts(blob)

    def find(self, bucket: str, name: str) -> Optional[Facts]:
        """Look an object up by its name; None where there is none. Unread."""
        with self._asking("storage.objects.get") as how:
            blob = self.client.bucket(bucket).get_blob(name, **how)
        return None if blob is None else _object_facts(blob)

    def read(self, uri: str, generation: int, start: int, size: int) -> bytes:
        """Read a range of bytes of one generation of an object, as they are stored; Unread."""
        bucket, name = split_uri(uri)
        blob = self.client.bucket(bucket).blob(name, generation=generation)
        with self._asking("storage.objects.get") as how:
            data: bytes = blob.download_as_bytes(
                start=start, end=start + size - 1, raw_download=True, checksum=None, **how
            )
        return data

    def _below(self, bucket: str, prefix: str) -> Iterator[Any]:
        with self._asking("storage.objects.list") as how:
            blobs = iter(self.client.list_blobs(bucket, prefix=prefix, fields=OBJECT_FIELDS, **how))
        while True:
            # Each page is only asked for when the one before is used up.
            with self._asking("storage.objects.list"):
                blob = next(blobs, None)
            if blob is None:
                return
            yield blob

    @contextmanager
    def _asking(self, permission: str) -> Iterator[Facts]:
        """Yield how long a call may take and be tried; Unread if it fails."""
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
    # What gives up after several tries keeps the last error.
    error = getattr(error, "cause", None) or error
    code = getattr(error, "code", None)
    if code in REFUSALS:
        return REFUSALS[code].replace("%s", permission)
    if isinstance(code, int):
        return "Cloud Storage refused with %d" % code
    if type(error).__module__.startswith("google.auth"):
        return NO_CREDENTIALS
    return "Cloud Storage could not be reached (%s)" % type(error).__name__


def _connected() -> tuple[Any, Any]:
    """Make a client, and what tries a call again."""
    try:
        # By name, since it is no dependency: it is there or not.
        storage = importlib.import_module("google.cloud.storage")
        retry = importlib.import_module("google.cloud.storage.retry").DEFAULT_RETRY
    except ImportError:
        raise Unread("google-cloud-storage is not installed here") from None
    # Objects belong to buckets; without this the client insists on a project that nothing here needs.
    return storage.Client(project=None), retry.with_delay(initial=0.2, maximum=1.0)


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns; Unread if it fails or takes longer."""
    done: Facts = {}

    def run() -> None:
        try:
            done["value"] = call()
        except BaseException as error:
            done["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if isinstance(done.get("error"), Unread):
        raise done["error"]
    if "value" not in done:
        raise Unread(NO_CREDENTIALS)
    return done["value"]
