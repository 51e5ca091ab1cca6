"""A model in Cloud Storage, through Google's own client (which reads STORAGE_EMULATOR_HOST by itself)."""

import io
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.api_core.exceptions import ClientError, Forbidden, NotFound, PreconditionFailed, RetryError, TooManyRequests
from google.cloud.storage import Bucket, Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from envbuild.errors import EnvbuildError, StampError
from envbuild.google_api import connect, no_credentials, retry_for, timeout_of, translated_errors
from envbuild.stamp.record import FOLDER, RECORD_PREFIX
from envbuild.stamp.store import MOST_NAMES, Changed, State, Unreachable, Unsure

SERVICE = "Cloud Storage"
_NEVER = 1
"""A generation that no object has: they count microseconds since 1970."""


@contextmanager
def connected(error: type[EnvbuildError] = StampError) -> Iterator[Client]:
    """Yield a client with the environment's credentials; `error` when there are none."""
    # Objects belong to buckets; without this the client requires a project that nothing here needs.
    client = connect(partial(Client, project=None), SERVICE, error)
    if client is None:
        raise no_credentials(SERVICE, error)
    with client:
        yield client


@dataclass(frozen=True, slots=True)
class GcsStore:
    """The folder of a model in a bucket, as `Store` describes it."""

    client: Client
    bucket: str
    folder: str
    """Without slashes around it; empty for the bucket itself."""

    def names(self, *, deep: bool) -> Mapping[str, str]:
        prefix = f"{self.folder}/" if self.folder else ""
        delimiter = None if deep else "/"
        with self._errors("", "storage.objects.list"):
            found = self.client.list_blobs(
                bucket_of(self.client, self.bucket), prefix=prefix, delimiter=delimiter, **_call_options()
            )
            # An empty folder of the console is an object too.
            files = (blob for blob in found if not blob.name.endswith("/"))
            return {
                blob.name.removeprefix(prefix): (blob.metadata or {}).get("envbuild-record") or ""
                for blob in itertools.islice(files, MOST_NAMES)
            }

    def records(self) -> list[str]:
        cut = len(self._full(""))
        with self._errors(FOLDER, "storage.objects.list"):
            found = self.client.list_blobs(
                bucket_of(self.client, self.bucket),
                prefix=self._full(RECORD_PREFIX),
                delimiter="/",
                fields="items(name),nextPageToken",
                **_call_options(),
            )
            return [blob.name[cut:] for blob in found]

    def state(self, name: str) -> State | None:
        blob = self._blob(name)
        with self._errors(name, "storage.objects.get"):
            try:
                blob.reload(**_call_options())
            except NotFound:
                return None
        generation, metageneration = str(blob.generation), str(blob.metageneration)
        return State(generation=generation, metageneration=metageneration, metadata=blob.metadata or {})

    def read(self, name: str, *, limit: int) -> bytes | None:
        try:
            return read_object(self.client, self.bucket, self._full(name), limit=limit)
        except StampError as error:
            cause = error.__cause__  # a 403 may hide the newest record
            if cause is None or (isinstance(cause, ClientError) and not isinstance(cause, Forbidden)):
                raise
            raise Unreachable(error.what, where=error.where, todo=error.todo) from error.__cause__

    def create(self, name: str, data: bytes) -> bool:
        try:
            with self._errors(name, "storage.objects.create"), suppress(PreconditionFailed):
                self._upload(name, data, generation=0)
                return True
        except StampError as error:
            # A caller who may create but not overwrite gets 403 for an object that exists.
            if not isinstance(error.__cause__, Forbidden) or self.state(name) is None:
                raise
        return False

    def patch(self, name: str, values: Mapping[str, str | None], state: State) -> None:
        """Set or remove keys of the object's metadata; Changed also when the reply to a first, good try was lost."""
        doubts: list[Exception] = []  # each answer that leaves open whether the change was made
        blob, options = self._blob(name), _call_options()
        blob.metadata = dict(values)
        retry = options.pop("retry")  # as the client itself does
        options |= {
            "if_generation_match": int(state.generation),
            "if_metageneration_match": int(state.metageneration),
        }
        try:
            with self._errors(name, "storage.objects.update"):
                retry(blob.patch, on_error=doubts.append)(retry=None, **options)
        except StampError as error:
            if isinstance(error.__cause__, PreconditionFailed | NotFound):
                raise Changed from error
            # 429 changes nothing; if all answers were 429, nothing was changed.
            refused = isinstance(error.__cause__, ClientError | RetryError if doubts else ClientError)
            if refused and all(isinstance(it, TooManyRequests) for it in doubts):
                raise
            raise Unsure(error) from error

    def check(self, name: str) -> None:
        """Try both writes under conditions that never hold: 412 means that they are allowed, 403 that they are not."""
        with self._errors(name, "storage.objects.update"), suppress(PreconditionFailed, NotFound):
            self._blob(name).patch(if_generation_match=_NEVER, **_call_options())
        with self._errors(f"{FOLDER}/check", "storage.objects.create"), suppress(PreconditionFailed, NotFound):
            self._upload(f"{FOLDER}/check", b"", generation=_NEVER)

    def unpointing(self, name: str) -> str:
        """Return the command that removes the object's pointer (gcloud storage objects update)."""
        url = shlex.quote(f"gs://{self.bucket}/{self._full(name)}")
        return f"gcloud storage objects update {url} --remove-custom-metadata=envbuild-record"

    def _upload(self, name: str, data: bytes, *, generation: int) -> None:
        content_type = "application/json" if name.endswith(".json") else "application/toml"
        self._blob(name).upload_from_string(
            data, content_type=content_type, if_generation_match=generation, **_call_options()
        )

    def _full(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def _blob(self, name: str) -> Any:
        return bucket_of(self.client, self.bucket).blob(self._full(name))

    def _errors(self, name: str, permission: str) -> AbstractContextManager[None]:
        return storage_errors(f"gs://{self.bucket}/{self._full(name)}", self.bucket, permission)


def bucket_of(client: Client, name: str) -> Bucket:
    """Name a bucket; GOOGLE_CLOUD_QUOTA_PROJECT pays if its requesters must, as in all of Google's libraries."""
    return client.bucket(name, user_project=os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT") or None)


def read_object(
    client: Client, bucket: str, name: str, *, limit: int, error: type[EnvbuildError] = StampError
) -> bytes | None:
    """Read an object of at most `limit` bytes; None when there is none, `error` when it is larger or not readable."""
    blob, where = bucket_of(client, bucket).blob(name), f"gs://{bucket}/{name}"
    sink = _Bounded(limit)
    with storage_errors(where, bucket, "storage.objects.get", error):
        try:
            blob.reload(**_call_options())
            if (blob.size or 0) <= limit:
                blob.download_to_file(sink, **_call_options())
                return sink.getvalue()
        except NotFound:
            return None
        except OverflowError:
            pass
    raise error(f"the object has more than {limit} bytes", where=where, todo="check that it is the right object")


class _Bounded(io.BytesIO):
    """Takes at most `limit` bytes, else OverflowError: an object that is stored gzipped is larger when it arrives."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.limit:
            raise OverflowError
        return super().write(data)


def _call_options() -> dict[str, Any]:
    """How long one call may try: ENVBUILD_GCS_TIMEOUT seconds, else 60, where the client's own default is 120."""
    seconds = timeout_of("ENVBUILD_GCS_TIMEOUT")
    return {"retry": retry_for(seconds, DEFAULT_RETRY), "timeout": min(seconds, 60.0)}


def storage_errors(
    where: str, bucket: str, permission: str, error: type[EnvbuildError] = StampError
) -> AbstractContextManager[None]:
    """Raise `error` for what Cloud Storage refuses in the block; the caller handles the answers that it expects."""

    def explain(code: int, message: str) -> tuple[str, str] | None:
        if code == 404:
            return f"bucket {bucket} does not exist (404)", "check the bucket's name"
        if code == 400 and "requester pays" in message:
            what = f"bucket {bucket} requires a project that pays for requests, and none is named (400)"
            return what, "name the project that pays: export GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT"
        if code != 403:
            return None
        # Cloud Storage names a permission, which may be another than the request's usual one.
        match = _PERMISSION.search(message)
        missing = match[1] if match else permission
        if missing == "serviceusage.services.use":
            todo = "grant roles/serviceusage.serviceUsageConsumer there, or let GOOGLE_CLOUD_QUOTA_PROJECT name another"
            return f"permission {missing} is missing on the project that pays (403)", todo
        if match or not message:
            todo = f"grant the caller a role with it on gs://{bucket}, such as roles/storage.objectUser"
            return f"permission {missing} is missing on bucket {bucket} (403)", todo
        return f"{SERVICE} forbids it (403): {message}", f"check the policies on gs://{bucket}: it needs {permission}"

    return translated_errors(SERVICE, where, error, explain, unreachable=(DataCorruption, InvalidResponse))


_PERMISSION = re.compile(r"\b([a-z]+\.[a-z][A-Za-z]*\.[a-z][A-Za-z]*) access\b")
"""In `CALLER does not have storage.objects.get access to the Google Cloud Storage object.`"""
