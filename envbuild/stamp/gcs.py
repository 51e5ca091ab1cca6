"""A model in Cloud Storage, through Google's own client (which honours STORAGE_EMULATOR_HOST by itself)."""

import io
import itertools
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from google.api_core.exceptions import (
    ClientError,
    Forbidden,
    GoogleAPICallError,
    NotFound,
    PreconditionFailed,
    RetryError,
    TooManyRequests,
)
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud.storage import Bucket, Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY
from requests import RequestException

from envbuild.errors import EnvbuildError, StampError, UsageError
from envbuild.stamp.record import FOLDER, RECORD_PREFIX
from envbuild.stamp.store import MOST_NAMES, Changed, State, Unreachable, Unsure

_DEFAULT_SECONDS = 60.0
_NEVER = 1
"""A generation that no object has: they count microseconds since 1970."""
_LOGIN = "log in with `gcloud auth application-default login`, or run with a service account"


@contextmanager
def connected(error: type[EnvbuildError] = StampError) -> Iterator[Client]:
    """Yield a client with the environment's credentials; `error` when there are none."""
    try:
        # Objects belong to buckets; without this the client insists on a project that nothing here needs.
        client = Client(project=None)
    except DefaultCredentialsError as cause:
        raise error("there are no Google credentials here", where="Cloud Storage", todo=_LOGIN) from cause
    except (GoogleAuthError, ValueError, OSError) as cause:
        raise error(f"the Google credentials cannot be used: {cause}", where="Cloud Storage", todo=_LOGIN) from cause
    with client:
        yield client


@dataclass(frozen=True, slots=True)
class GcsStore:
    """The folder of a model in a bucket."""

    client: Client
    bucket: str
    folder: str
    """Without slashes around it; empty for the bucket itself."""

    @property
    def where(self) -> str:
        """The folder's URI."""
        return f"gs://{self.bucket}/{self.folder}"

    def names(self, *, deep: bool) -> Mapping[str, str]:
        """Objects in the folder itself, or in all below it: the first thousand, each with the record it points to."""
        prefix = f"{self.folder}/" if self.folder else ""
        delimiter = None if deep else "/"
        with told(self.where, self.bucket, "storage.objects.list"):
            found = self.client.list_blobs(
                bucket_of(self.client, self.bucket), prefix=prefix, delimiter=delimiter, **_patience()
            )
            # What a console shows as an empty folder is an object too, and no file.
            files = (blob for blob in found if not blob.name.endswith("/"))
            return {
                blob.name.removeprefix(prefix): (blob.metadata or {}).get("envbuild-record") or ""
                for blob in itertools.islice(files, MOST_NAMES)
            }

    def records(self) -> list[str]:
        """All names in the stamp's folder that begin as those of records do."""
        cut = len(self._full(""))
        with self._told(FOLDER, "storage.objects.list"):
            found = self.client.list_blobs(
                bucket_of(self.client, self.bucket),
                prefix=self._full(RECORD_PREFIX),
                delimiter="/",
                fields="items(name),nextPageToken",
                **_patience(),
            )
            return [blob.name[cut:] for blob in found]

    def state(self, name: str) -> State | None:
        """The object's state now; None when there is no such object, or no such bucket."""
        blob = self._blob(name)
        with self._told(name, "storage.objects.get"):
            try:
                blob.reload(**_patience())
            except NotFound:
                return None
        generation, metageneration = str(blob.generation), str(blob.metageneration)
        return State(generation=generation, metageneration=metageneration, metadata=blob.metadata or {})

    def read(self, name: str, *, limit: int) -> bytes | None:
        """An object's content; None when there is no such object."""
        try:
            return read_object(self.client, self.bucket, self._full(name), limit=limit)
        except StampError as error:
            cause = error.__cause__  # an access list may hide the newest record
            if cause is None or (isinstance(cause, ClientError) and not isinstance(cause, Forbidden)):
                raise
            raise Unreachable(error.what, where=error.where, todo=error.todo) from error.__cause__

    def create(self, name: str, data: bytes) -> bool:
        """Write an object that is named by its content; False where one is there already."""
        try:
            with self._told(name, "storage.objects.create"), suppress(PreconditionFailed):
                self._upload(name, data, generation=0)
                return True
        except StampError as error:
            # Who may create but not overwrite can be told 403 about an object that is there.
            if not isinstance(error.__cause__, Forbidden) or self.state(name) is None:
                raise
        return False

    def patch(self, name: str, values: Mapping[str, str | None], state: State) -> None:
        """Set or remove keys of the object's metadata; Changed also when the reply to a first, good try was lost."""
        doubts: list[Exception] = []
        try:
            with self._told(name, "storage.objects.update"):
                self._patch(name, values, state, doubts.append)
        except StampError as error:
            # 429 changes nothing; who was told so to the end knows it.
            refused = isinstance(error.__cause__, ClientError | RetryError if doubts else ClientError)
            if refused and all(isinstance(it, TooManyRequests) for it in doubts):
                raise
            raise Unsure(error) from error

    def _patch(
        self, name: str, values: Mapping[str, str | None], state: State, doubt: Callable[[Exception], object]
    ) -> None:
        """Try as the client itself does, and tell of each answer that leaves open what was done."""
        blob, patience = self._blob(name), _patience()
        blob.metadata = dict(values)
        retry = patience.pop("retry")
        conditions = {
            "if_generation_match": int(state.generation),
            "if_metageneration_match": int(state.metageneration),
        }
        try:
            retry(blob.patch, on_error=doubt)(**conditions, retry=None, **patience)
        except (PreconditionFailed, NotFound) as error:
            raise Changed from error

    def check(self, name: str) -> None:
        """Try both writes under conditions that never hold: 412 says that they are allowed, 403 that they are not."""
        with self._told(name, "storage.objects.update"), suppress(PreconditionFailed, NotFound):
            self._blob(name).patch(if_generation_match=_NEVER, **_patience())
        with self._told(f"{FOLDER}/check", "storage.objects.create"), suppress(PreconditionFailed, NotFound):
            self._upload(f"{FOLDER}/check", b"", generation=_NEVER)

    def unpointing(self, name: str) -> str:
        """Return the command that removes the object's pointer (gcloud storage objects update)."""
        url = shlex.quote(f"gs://{self.bucket}/{self._full(name)}")
        return f"gcloud storage objects update {url} --remove-custom-metadata=envbuild-record"

    def _upload(self, name: str, data: bytes, *, generation: int) -> None:
        content_type = "application/json" if name.endswith(".json") else "application/toml"
        self._blob(name).upload_from_string(
            data, content_type=content_type, if_generation_match=generation, **_patience()
        )

    def _full(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def _blob(self, name: str) -> Any:
        return bucket_of(self.client, self.bucket).blob(self._full(name))

    def _told(self, name: str, permission: str) -> Any:
        return told(f"gs://{self.bucket}/{self._full(name)}", self.bucket, permission)


def bucket_of(client: Client, name: str) -> Bucket:
    """Name a bucket; GOOGLE_CLOUD_QUOTA_PROJECT pays where its requesters have to, as in all of Google's libraries."""
    return client.bucket(name, user_project=os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT") or None)


def read_object(
    client: Client, bucket: str, name: str, *, limit: int, error: type[EnvbuildError] = StampError
) -> bytes | None:
    """Read an object of at most `limit` bytes; None when there is none, `error` when it is larger or not readable."""
    blob, where = bucket_of(client, bucket).blob(name), f"gs://{bucket}/{name}"
    sink = _Bounded(limit)
    with told(where, bucket, "storage.objects.get", error):
        try:
            blob.reload(**_patience())
            if (blob.size or 0) <= limit:
                blob.download_to_file(sink, **_patience())
        except NotFound:
            return None
        except _TooLargeError:
            sink.full = True
    if sink.full or (blob.size or 0) > limit:
        raise error(f"the object has more than {limit} bytes", where=where, todo="see that it is the right object")
    return sink.getvalue()


class _TooLargeError(Exception):
    """More came than was asked for."""


class _Bounded(io.BytesIO):
    """Takes `limit` bytes and no more: an object that is stored gzipped grows on its way here."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.full = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.limit:
            raise _TooLargeError
        return super().write(data)


def _patience() -> dict[str, Any]:
    """How long one call may try: ENVBUILD_GCS_TIMEOUT seconds, else 60, where the client's own default is 120.

    UsageError for what is no number of seconds.
    """
    text = os.environ.get("ENVBUILD_GCS_TIMEOUT") or str(_DEFAULT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        todo = "give a number, such as 60"
        raise UsageError(f"{text!r} is no number of seconds", where="ENVBUILD_GCS_TIMEOUT", todo=todo)
    seconds = min(max(seconds, 0.01), 3600.0)
    retry = DEFAULT_RETRY.with_timeout(seconds).with_delay(initial=min(1.0, seconds / 60), maximum=10.0)
    return {"retry": retry, "timeout": min(seconds, 60.0)}


@contextmanager
def told(where: str, bucket: str, permission: str, error: type[EnvbuildError] = StampError) -> Iterator[None]:
    """Turn what Cloud Storage refuses into `error`; answers that the caller expects do not get here."""
    try:
        yield
    except GoogleAPICallError as cause:
        raise _refused(cause, where, bucket, permission, error) from cause
    except GoogleAuthError as cause:
        raise error("Google refused the credentials", where=where, todo=_LOGIN) from cause
    except RetryError as cause:
        raise _given_up(cause, where, error) from cause
    except (RequestException, ConnectionError, DataCorruption, InvalidResponse) as cause:
        raise error("Cloud Storage could not be reached, or its answer broke off", where=where, todo=_AGAIN) from cause


_AGAIN = "see that the network reaches Cloud Storage, then run the command again"


def _refused(
    cause: GoogleAPICallError, where: str, bucket: str, permission: str, error: type[EnvbuildError]
) -> EnvbuildError:
    match cause.code:
        case 401:
            return error("Cloud Storage wants other credentials (401)", where=where, todo=_LOGIN)
        case 403:
            return _forbidden(_said(cause), where, bucket, permission, error)
        case 400 if "requester pays" in _said(cause):
            what = f"who uses bucket {bucket} pays for it, and no project was named that pays (400)"
            return error(
                what, where=where, todo="name the project that pays: export GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT"
            )
        case 404:
            return error("there is no such bucket", where=where, todo="check the bucket's name")
        case _:
            return error(f"Cloud Storage refused with {cause.code}: {_said(cause)}", where=where, todo=_AGAIN)


def _forbidden(said: str, where: str, bucket: str, permission: str, error: type[EnvbuildError]) -> EnvbuildError:
    """Name the permission that Cloud Storage names, which need not be the one that the request is known for."""
    named = _PERMISSION.search(said)
    missing = named[1] if named else permission
    if missing == _USE_SERVICES:
        todo = "grant roles/serviceusage.serviceUsageConsumer there, or have GOOGLE_CLOUD_QUOTA_PROJECT name another"
        return error(f"permission {missing} is missing on the project that pays (403)", where=where, todo=todo)
    if named or said == _NO_REASON:
        todo = f"grant the caller a role with it on gs://{bucket}, such as roles/storage.objectUser"
        return error(f"permission {missing} is missing on bucket {bucket} (403)", where=where, todo=todo)
    todo = f"see what forbids it on gs://{bucket}: the caller needs {permission} there"
    return error(f"Cloud Storage forbids it (403): {said}", where=where, todo=todo)


_PERMISSION = re.compile(r"\b([a-z]+\.[a-z][A-Za-z]*\.[a-z][A-Za-z]*) access\b")
"""In `CALLER does not have storage.objects.get access to the Google Cloud Storage object.`"""
_USE_SERVICES = "serviceusage.services.use"
_NO_REASON = "no reason given"


def _given_up(cause: RetryError, where: str, error: type[EnvbuildError]) -> EnvbuildError:
    last = cause.cause
    if isinstance(last, GoogleAPICallError):
        return error(f"Cloud Storage kept answering {last.code}: {_said(last)}", where=where, todo=_AGAIN)
    return error("Cloud Storage could not be reached", where=where, todo=_AGAIN)


def _said(cause: GoogleAPICallError) -> str:
    """One line of what Cloud Storage itself said."""
    try:
        text = str(cause.response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        text = ""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:300])
    return line or _NO_REASON
