"""What Cloud Build is told beside the context; every value is checked where it comes in."""

import re
from dataclasses import dataclass
from typing import Self

from envbuild.errors import UsageError

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
