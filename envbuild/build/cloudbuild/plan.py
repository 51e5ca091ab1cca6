"""Options, build plan and source archive of a build in Cloud Build; every value is checked."""

import hashlib
import os
import re
import stat
import tarfile
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import yaml
from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY

from envbuild.errors import BuildError, UsageError
from envbuild.google_api import retry_for, timeout_of
from envbuild.oci import gzip
from envbuild.oci.reference import Reference
from envbuild.stamp.gcs import storage_errors

DOCKER = "gcr.io/cloud-builders/docker"
"""The builder that has Docker's client (cloud.google.com/build/docs/cloud-builders)."""
MOST_SECONDS = 24 * 3600
"""A build ends after a day at the latest (Build.timeout)."""
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]+")
_REGION = re.compile(r"[a-z]+(?:-[a-z]+[0-9]+)?")
_FOLDER = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>[^\s?#*\[\]$]*))?")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_POOL = re.compile(r"projects/[^/\s]+/locations/(?P<region>[a-z0-9-]+)/workerPools/[a-z0-9-]+")
_ACCOUNT = re.compile(r"(?:projects/[^/\s]+/serviceAccounts/)?[A-Za-z0-9.@_-]+")
_SECRET_ID = re.compile(r"[A-Za-z0-9_.-]+")
_SECRET = re.compile(r"projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}(?P<version>/versions/[A-Za-z0-9_-]+)?")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
STEP = "image"
"""The step's name, which logs and failures tell."""
_IMAGE = "_IMAGE"
_TEXT = """\
# What envbuild tells Cloud Build; the same by hand, in the folder of the build context:
#   gcloud builds submit --project={project} --region={region} --config=FILE .
# For another image: --substitutions={image}=HOST/REPOSITORY:TAG
"""
TIMEOUT = "ENVBUILD_CLOUDBUILD_TIMEOUT"
"""The variable with the seconds that one call may be tried again, 60 without it; all waiting shrinks with it."""
_DEFAULT = 60.0
_SLOWEST = 5.0
_PIECE = 16 * gzip.STORED_LIMIT
"""Bytes: a whole number of stored blocks, so that pieces make no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret of Secret Manager that a `RUN --mount=type=secret,id=ID` of the Dockerfile reads."""

    id: str
    version: str
    """`projects/P/secrets/S/versions/V`."""

    def __post_init__(self) -> None:
        _matching(_SECRET_ID, self.id, "secret", "name it as the Dockerfile does, with letters, digits and ._-")
        if not _matching(_SECRET, self.version, "secret", _VERSION_TODO)["version"]:
            raise UsageError("the secret's version is missing", where=self.version, todo=_VERSION_TODO)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ID=projects/P/secrets/S[/versions/V]`; without a version, the latest. UsageError else."""
        name, _, version = text.partition("=")
        latest = "" if "/versions/" in version else "/versions/latest"
        return cls(id=name, version=version + latest)


_VERSION_TODO = "write ID=projects/PROJECT/secrets/NAME/versions/VERSION"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudBuild:
    """Where and how to build; UsageError for what Cloud Build would refuse."""

    project: str
    region: str = "global"
    bucket: str = ""
    """`gs://BUCKET[/PREFIX]` for contexts and logs; empty for the project's own, as gcloud names it."""
    logs: str = ""
    """`gs://BUCKET[/PREFIX]` for logs; empty for `logs` beside the contexts."""
    timeout: int = 3600
    """Seconds that the build may run."""
    machine_type: str = ""
    """Such as `E2_HIGHCPU_8`; empty for Cloud Build's default."""
    disk_gb: int = 0
    """0 for Cloud Build's default."""
    service_account: str = ""
    """Email address or full name; empty for the project's default."""
    worker_pool: str = ""
    """`projects/P/locations/L/workerPools/W`; empty for Google's own machines."""
    tags: tuple[str, ...] = ()
    """Labels of the build, not of the image."""
    secrets: tuple[Secret, ...] = ()
    build_args: tuple[tuple[str, str], ...] = ()
    """Nothing secret: they stand in the build's description, and in the image's history."""
    network: bool = True
    """Whether the Dockerfile's steps may reach anything but the context."""
    docker: str = DOCKER
    """The image whose `docker` builds; one by digest never changes."""

    def __post_init__(self) -> None:
        _matching(_PROJECT, self.project, "project", "give the project's id with --project")
        _matching(_REGION, self.region, "region", "give --region a name such as global or europe-west1")
        for folder in filter(None, (self.bucket, self.logs)):
            _matching(_FOLDER, folder, "bucket", "write gs://BUCKET or gs://BUCKET/PREFIX")
        if not 0 < self.timeout <= MOST_SECONDS:
            todo = f"give seconds from 1 to {MOST_SECONDS}, which is a day"
            raise UsageError("Cloud Build has no such timeout", where=str(self.timeout), todo=todo)
        for tag in self.tags:
            _matching(_TAG, tag, "tag", "use letters, digits and ._-")
        for name, _ in self.build_args:
            _matching(_ARGUMENT, name, "build argument", "use letters, digits and _")
        if self.service_account:
            _matching(_ACCOUNT, self.service_account, "service account", "give its email address")
        if len({secret.id for secret in self.secrets}) < len(self.secrets):
            raise UsageError("two secrets have one name", where="secrets", todo="name each once")
        self._check_pool()

    def _check_pool(self) -> None:
        if not self.worker_pool:
            return
        todo = "write projects/PROJECT/locations/REGION/workerPools/POOL"
        region = _matching(_POOL, self.worker_pool, "worker pool", todo)["region"]
        if region != self.region:
            todo = f"build in the pool's region: --region {region}"
            raise UsageError(f"the worker pool is not in {self.region}", where=self.worker_pool, todo=todo)
        if self.machine_type:
            todo = "leave the machine type out"
            raise UsageError("a worker pool has its own machine type", where=self.machine_type, todo=todo)

    @property
    def parent(self) -> str:
        """What the build belongs to."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def contexts(self) -> tuple[str, str]:
        """Bucket and prefix of contexts."""
        return _split(self.bucket) if self.bucket else (default_bucket(self.project), "")

    @property
    def log_folder(self) -> tuple[str, str]:
        """Bucket and prefix of logs."""
        if self.logs:
            return _split(self.logs)
        bucket, prefix = self.contexts
        return bucket, f"{prefix}/logs" if prefix else "logs"

    @property
    def account_name(self) -> str:
        """The service account in full; empty for the default."""
        if not self.service_account or "/" in self.service_account:
            return self.service_account
        return f"projects/{self.project}/serviceAccounts/{self.service_account}"


def default_bucket(project: str) -> str:
    """The bucket that gcloud makes for a project's contexts (googlecloudsdk, staging_bucket_util.py)."""
    safe = project.replace(":", "_").replace(".", "_").replace("google", "elgoog")  # buckets may not say it
    return f"{safe}_cloudbuild"


def _split(folder: str) -> tuple[str, str]:
    match = _matching(_FOLDER, folder, "bucket", "")
    return str(match["bucket"]), (match["prefix"] or "").strip("/")


def _matching(pattern: re.Pattern[str], value: str, what: str, todo: str) -> re.Match[str]:
    match = pattern.fullmatch(value)
    if match is None:
        raise UsageError(f"this is no {what} for Cloud Build", where=ascii(value)[:200], todo=todo)
    return match


def plan(options: CloudBuild, target: Reference) -> dict[str, Any]:
    """Describe the build of a context, without its source: the Build of the REST API as JSON.

    UsageError when the target has no tag to push: Cloud Build names images by tags, and tells their digests later.
    """
    if target.tag is None or target.digest is not None:
        todo = "name the image HOST/REPOSITORY:TAG"
        raise UsageError("Cloud Build pushes an image by a tag", where=str(target), todo=todo)
    bucket, prefix = options.log_folder
    described: dict[str, Any] = {
        "steps": [_step(options)],
        "images": [f"${_IMAGE}"],
        "substitutions": {_IMAGE: str(target)},
        "timeout": f"{options.timeout}s",
        "tags": ["envbuild", *options.tags],
        "logsBucket": "/".join(filter(None, (f"gs://{bucket}", prefix))),
        "options": _options(options),
    }
    if options.account_name:
        described["serviceAccount"] = options.account_name
    if options.secrets:
        described["availableSecrets"] = {"secretManager": _available(options)}
    return described


def _step(options: CloudBuild) -> dict[str, Any]:
    step: dict[str, Any] = {
        "id": STEP,
        "name": options.docker,
        # Secrets and caches of a Dockerfile are BuildKit's; older clients use it only when told.
        "env": ["DOCKER_BUILDKIT=1"],
        "args": ["build", "--progress=plain", f"--tag=${_IMAGE}", *_arguments(options), "."],
    }
    return step | ({"secretEnv": [name for name, _ in _substitution_names(options)]} if options.secrets else {})


def _arguments(options: CloudBuild) -> list[str]:
    """Docker's options; a secret comes through a variable of the step, so that no file and no argument has it."""
    values = [] if options.network else ["--network=none"]
    values += [f"--build-arg={name}={_literal(value)}" for name, value in options.build_args]
    return values + [f"--secret=id={secret.id},env={name}" for name, secret in _substitution_names(options)]


def _substitution_names(options: CloudBuild) -> list[tuple[str, Any]]:
    return [(f"ENVBUILD_SECRET_{number}", secret) for number, secret in enumerate(options.secrets)]


def _available(options: CloudBuild) -> list[dict[str, str]]:
    return [{"versionName": secret.version, "env": name} for name, secret in _substitution_names(options)]


def _literal(value: str) -> str:
    """Escape what Cloud Build would replace (build/docs/configuring-builds/substitute-variable-values)."""
    return value.replace("$", "$$")


def _options(options: CloudBuild) -> dict[str, Any]:
    # Only a bucket's log can be read while it grows; with a service account of the user's there has to be one anyway.
    chosen: dict[str, Any] = {"logging": "GCS_ONLY", "logStreamingOption": "STREAM_ON"}
    if options.machine_type:
        chosen["machineType"] = options.machine_type
    if options.disk_gb:
        chosen["diskSizeGb"] = str(options.disk_gb)  # 64-bit numbers are text in protobuf's JSON
    if options.worker_pool:
        chosen["pool"] = {"name": options.worker_pool}
    return chosen


def plan_yaml(options: CloudBuild, target: Reference) -> bytes:
    """Write the build as cloudbuild.yaml: the same bytes for the same options; no source, which gcloud adds."""
    head = _TEXT.format(project=options.project, region=options.region, image=_IMAGE)
    return (head + yaml.safe_dump(plan(options, target), sort_keys=False, allow_unicode=True, width=120)).encode()


def submitted(plan: Mapping[str, Any], source: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Add what belongs to one run only: its source, and the tag that it is found by again."""
    return {**plan, "source": {"storageSource": dict(source)}, "tags": [*plan["tags"], mark]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A context as one file."""

    path: Path
    size: int
    sha256: str
    md5: str
    """As Cloud Storage tells it, in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedContext:
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
        self._upload_archive(gzip.start())

    def write(self, data: bytes) -> int:
        self._crc, self._plain = zlib.crc32(data, self._crc), self._plain + len(data)
        self._rest += data
        while len(self._rest) > _PIECE:
            self._stored(bytes(self._rest[:_PIECE]), final=False)
            del self._rest[:_PIECE]
        return len(data)

    def end(self, path: Path) -> Packed:
        self._stored(bytes(self._rest), final=True)
        self._upload_archive(gzip.end(self._crc, self._plain))
        self._file.flush()
        md5 = b64encode(self._md5.digest()).decode()
        return Packed(path=path, size=self.size, sha256=self._sha256.hexdigest(), md5=md5)

    def _stored(self, data: bytes, *, final: bool) -> None:
        for piece in gzip.stored(data, final=final):
            self._upload_archive(piece)

    def _upload_archive(self, data: bytes | memoryview) -> None:
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


def upload(client: Client, context: Packed, bucket: str, prefix: str) -> UploadedContext:
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
    return UploadedContext(bucket=bucket, name=name, generation=int(blob.generation))


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
