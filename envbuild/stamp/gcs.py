"""A model in Cloud Storage (JSON API; object metadata and request preconditions pages)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from envbuild.errors import EnvbuildError, StampError
from envbuild.stamp.store import METADATA_LIMIT, Anchor, choose_anchor

TIMEOUT_VARIABLE = "ENVBUILD_GCS_TIMEOUT"
"""Seconds that one call may take with all its retries; 60 unless it is set."""
_MOST_NAMES = 1000


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415 - heavy

    return DEFAULT_RETRY.with_timeout(_seconds())


def _seconds() -> float:
    try:
        return max(0.1, float(os.environ.get(TIMEOUT_VARIABLE, "60")))
    except ValueError:
        return 60.0


def client() -> Any:
    """Make the client, with Application Default Credentials or, for STORAGE_EMULATOR_HOST, without any."""
    from google.cloud.storage import Client  # noqa: PLC0415 - heavy

    return Client()


@contextmanager
def translated(where: str, action: str, kind: type[EnvbuildError] = StampError) -> Iterator[None]:
    """Turn the client's errors into ours: what, where, what to do."""
    from google.api_core import exceptions as api  # noqa: PLC0415 - heavy
    from google.auth import exceptions as auth  # noqa: PLC0415 - heavy
    from requests import exceptions as requests  # noqa: PLC0415 - heavy

    bucket = where.removeprefix("gs://").partition("/")[0]
    try:
        yield
    except (api.Forbidden, api.Unauthorized) as error:
        role = f"grant {action} on gs://{bucket} (roles/storage.objectUser) to this account"
        raise kind(f"Cloud Storage refuses: permission {action} is missing", where=where, todo=role) from error
    except api.NotFound as error:
        raise kind("Cloud Storage has no such bucket or object", where=where, todo="check the address") from error
    except (auth.DefaultCredentialsError, auth.RefreshError) as error:
        todo = "run `gcloud auth application-default login`, or give the job a service account"
        raise kind("there are no usable Google credentials", where=where, todo=todo) from error
    except (api.RetryError, auth.TransportError, requests.RequestException) as error:
        todo = "check the network and try again; nothing was stamped"
        raise kind("Cloud Storage cannot be reached", where=where, todo=todo) from error
    except api.GoogleAPICallError as error:
        what = f"Cloud Storage answers {error.code}: {str(error.message)[:300]}"
        raise kind(what, where=where, todo="try again; nothing was stamped") from error


class GcsStore:
    """The folder of a model in a bucket."""

    def __init__(self, bucket: str, path: str) -> None:
        self._where = f"gs://{bucket}/{path}"
        with translated(self._where, "storage.objects.get"):
            self._bucket = client().bucket(bucket)
            single = self._bucket.get_blob(path, retry=_retry()) is not None
        folder, _, name = path.rpartition("/")
        self._name = name if single else None
        self._prefix = (f"{folder}/" if folder else "") if single else f"{path}/"

    def anchor(self) -> Anchor:
        """Find the anchor and read its metadata."""
        with translated(self._where, "storage.objects.list"):
            name = self._name or self._choose()
        with translated(f"gs://{self._bucket.name}/{self._prefix}{name}", "storage.objects.get"):
            blob = self._bucket.get_blob(f"{self._prefix}{name}", retry=_retry())
        if blob is None:
            raise self._nothing()
        metadata = dict(blob.metadata or {})
        return Anchor(
            name=name, generation=str(blob.generation), metageneration=int(blob.metageneration), metadata=metadata
        )

    def _choose(self) -> str:
        blobs = self._bucket.client.list_blobs(
            self._bucket, prefix=self._prefix, delimiter="/", max_results=_MOST_NAMES, retry=_retry()
        )
        name = choose_anchor(blob.name.removeprefix(self._prefix) for blob in blobs if not blob.name.endswith("/"))
        if name is None:
            raise self._nothing()
        return name

    def _nothing(self) -> StampError:
        return StampError(
            "there is no model here", where=self._where, todo="give the folder or object of the saved model"
        )

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None when there is none."""
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - heavy

        with translated(f"gs://{self._bucket.name}/{self._prefix}{name}", "storage.objects.get"):
            try:
                return bytes(self._bucket.blob(f"{self._prefix}{name}").download_as_bytes(retry=_retry()))
            except NotFound:
                return None

    def create(self, name: str, data: bytes) -> None:
        """Write an object whose name its content decides; an older one of this name is the same, and stays."""
        from google.api_core.exceptions import PreconditionFailed  # noqa: PLC0415 - heavy

        with translated(f"gs://{self._bucket.name}/{self._prefix}{name}", "storage.objects.create"):
            blob = self._bucket.blob(f"{self._prefix}{name}")
            kind = "application/toml" if name.endswith(".toml") else "application/json"
            try:
                blob.upload_from_string(data, content_type=kind, if_generation_match=0, retry=_retry())
            except PreconditionFailed:
                return

    def patch(self, anchor: Anchor, metadata: Mapping[str, str]) -> bool:
        """Merge into the anchor's metadata, if nothing changed since it was read."""
        from google.api_core.exceptions import NotFound, PreconditionFailed  # noqa: PLC0415 - heavy

        together = {**anchor.metadata, **metadata}
        where = f"gs://{self._bucket.name}/{self._prefix}{anchor.name}"
        if sum(len(key.encode()) + len(value.encode()) for key, value in together.items()) > METADATA_LIMIT:
            todo = "remove custom metadata from the object (gcloud storage objects update --remove-custom-metadata)"
            raise StampError("the object's custom metadata would exceed 8 KiB", where=where, todo=todo)
        with translated(where, "storage.objects.update"):
            blob = self._bucket.blob(f"{self._prefix}{anchor.name}", generation=int(anchor.generation))
            blob.metadata = dict(metadata)
            try:
                blob.patch(
                    if_generation_match=int(anchor.generation),
                    if_metageneration_match=anchor.metageneration,
                    retry=_retry(),
                )
            except (PreconditionFailed, NotFound):
                return False
            return True


def read_object(bucket: str, path: str, limit: int, kind: type[EnvbuildError]) -> bytes:
    """Read one object of at most `limit` bytes; its size is asked first."""
    where = f"gs://{bucket}/{path}"
    with translated(where, "storage.objects.get", kind):
        blob = client().bucket(bucket).get_blob(path, retry=_retry())
        if blob is None:
            raise kind("Cloud Storage has no such object", where=where, todo="check the address")
        if blob.size > limit:
            raise kind(f"the object has {blob.size} bytes, more than the {limit} allowed", where=where)
        return bytes(blob.download_as_bytes(retry=_retry()))
