"""Options of a build in Google Cloud Build, and the build that they describe; every value is checked."""

import re
from dataclasses import dataclass
from typing import Any, Self

import yaml

from envbuild.errors import UsageError
from envbuild.oci.reference import Reference

MOST_SECONDS = 24 * 3600
"""A build ends after a day at the latest (Build.timeout)."""
_DOCKER = "gcr.io/cloud-builders/docker"
"""The builder that has Docker's client (cloud.google.com/build/docs/cloud-builders)."""
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]+")
_REGION = re.compile(r"[a-z]+(?:-[a-z]+[0-9]+)?")
_FOLDER = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>[^\s?#*\[\]$]*))?")
_POOL = re.compile(r"projects/[^/\s]+/locations/(?P<region>[a-z0-9-]+)/workerPools/[a-z0-9-]+")
_ACCOUNT = re.compile(r"(?:projects/[^/\s]+/serviceAccounts/)?[A-Za-z0-9.@_-]+")
_SECRET_ID = re.compile(r"[A-Za-z0-9_.-]+")
_SECRET = re.compile(r"projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}/versions/[A-Za-z0-9_-]+")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = "_IMAGE"
_HEAD = """\
# What envbuild tells Cloud Build; the same by hand, in the folder of the build context:
#   gcloud builds submit --project={project} --region={region} --config=FILE .
# For another image: --substitutions={image}=HOST/REPOSITORY:TAG
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret of Secret Manager that a `RUN --mount=type=secret,id=ID` of the Dockerfile reads."""

    id: str
    version: str
    """`projects/P/secrets/S/versions/V`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ID=projects/P/secrets/S[/versions/V]`; without a version, the latest. UsageError else."""
        name, _, version = text.partition("=")
        version += "" if "/versions/" in version else "/versions/latest"
        _match(_SECRET_ID, name, "secret", "name it as the Dockerfile does, with letters, digits and ._-")
        _match(_SECRET, version, "secret", "write ID=projects/PROJECT/secrets/NAME/versions/VERSION")
        return cls(id=name, version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudBuild:
    """Where and how to build; UsageError for what Cloud Build would refuse."""

    project: str
    region: str = "global"
    bucket: str = ""
    """`gs://BUCKET[/PREFIX]` for contexts and logs; empty for the project's own, as gcloud names it."""
    timeout: int = 3600
    """Seconds that the build may run."""
    machine_type: str = ""
    """Such as `E2_HIGHCPU_8`; empty for Cloud Build's default."""
    service_account: str = ""
    """Email address or full name; empty for the project's default."""
    worker_pool: str = ""
    """`projects/P/locations/L/workerPools/W`; empty for Google's own machines."""
    secrets: tuple[Secret, ...] = ()
    build_args: tuple[tuple[str, str], ...] = ()
    """Nothing secret: they stand in the build's description, and in the image's history."""
    network: bool = True
    """Whether the Dockerfile's steps may reach anything but the context."""

    def __post_init__(self) -> None:
        _match(_PROJECT, self.project, "project", "give the project's id: --cloudbuild project=ID")
        _match(_REGION, self.region, "region", "give a name such as global or europe-west1: --cloudbuild region=NAME")
        if self.bucket:
            _match(_FOLDER, self.bucket, "bucket", "write gs://BUCKET or gs://BUCKET/PREFIX")
        if not 0 < self.timeout <= MOST_SECONDS:
            todo = f"give seconds from 1 to {MOST_SECONDS}, which is a day"
            raise UsageError("Cloud Build has no such timeout", where=str(self.timeout), todo=todo)
        for name, _ in self.build_args:
            _match(_ARGUMENT, name, "build argument", "use letters, digits and _")
        if self.service_account:
            _match(_ACCOUNT, self.service_account, "service account", "give its email address")
        if len({secret.id for secret in self.secrets}) < len(self.secrets):
            raise UsageError("two secrets have one name", where="secrets", todo="name each once")
        if not self.worker_pool:
            return
        todo = "write projects/PROJECT/locations/REGION/workerPools/POOL"
        region = _match(_POOL, self.worker_pool, "worker pool", todo)["region"]
        if region != self.region:
            todo = f"build in the pool's region: --cloudbuild region={region}"
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
        """Bucket and prefix of contexts; by default gcloud's bucket (googlecloudsdk, staging_bucket_util.py)."""
        if self.bucket:
            match = _match(_FOLDER, self.bucket, "bucket", "")
            return str(match["bucket"]), (match["prefix"] or "").strip("/")
        safe = self.project.replace(":", "_").replace(".", "_").replace("google", "elgoog")  # buckets may not say it
        return f"{safe}_cloudbuild", ""

    @property
    def log_folder(self) -> tuple[str, str]:
        """Bucket and prefix of logs."""
        bucket, prefix = self.contexts
        return bucket, f"{prefix}/logs" if prefix else "logs"

    @property
    def account_name(self) -> str:
        """The service account in full; empty for the default."""
        if not self.service_account or "/" in self.service_account:
            return self.service_account
        return f"projects/{self.project}/serviceAccounts/{self.service_account}"


def _match(pattern: re.Pattern[str], value: str, what: str, todo: str) -> re.Match[str]:
    match = pattern.fullmatch(value)
    if match is None:
        raise UsageError(f"this is no {what} for Cloud Build", where=ascii(value)[:200], todo=todo)
    return match


def describe_build(options: CloudBuild, target: Reference) -> dict[str, Any]:
    """Describe the build of a context, without its source: the Build of the REST API as JSON.

    UsageError when the target has no tag to push: Cloud Build names images by tags, and tells their digests later.
    """
    if target.tag is None or target.digest is not None:
        todo = "name the image HOST/REPOSITORY:TAG"
        raise UsageError("Cloud Build pushes an image by a tag", where=str(target), todo=todo)
    # A secret comes through a variable of the step, so that no file and no argument has it.
    secrets = [(f"ENVBUILD_SECRET_{number}", secret) for number, secret in enumerate(options.secrets)]
    arguments = [] if options.network else ["--network=none"]
    # Cloud Build replaces $NAME, and makes $$ a dollar (build/docs/configuring-builds/substitute-variable-values).
    arguments += [f"--build-arg={name}={value.replace('$', '$$')}" for name, value in options.build_args]
    arguments += [f"--secret=id={secret.id},env={name}" for name, secret in secrets]
    step: dict[str, Any] = {
        "id": "image",
        "name": _DOCKER,
        # Secrets and caches of a Dockerfile are BuildKit's; older clients use it only when told.
        "env": ["DOCKER_BUILDKIT=1"],
        "args": ["build", "--progress=plain", f"--tag=${_IMAGE}", *arguments, "."],
    }
    # Only a bucket's log can be read while it grows; with a service account of the user's there has to be one anyway.
    how: dict[str, Any] = {"logging": "GCS_ONLY", "logStreamingOption": "STREAM_ON"}
    if options.machine_type:
        how["machineType"] = options.machine_type
    if options.worker_pool:
        how["pool"] = {"name": options.worker_pool}
    described: dict[str, Any] = {
        "steps": [step],
        "images": [f"${_IMAGE}"],
        "substitutions": {_IMAGE: str(target)},
        "timeout": f"{options.timeout}s",
        "tags": ["envbuild"],
        "logsBucket": f"gs://{'/'.join(options.log_folder)}",
        "options": how,
    }
    if options.account_name:
        described["serviceAccount"] = options.account_name
    if secrets:
        step["secretEnv"] = [name for name, _ in secrets]
        available = [{"versionName": secret.version, "env": name} for name, secret in secrets]
        described["availableSecrets"] = {"secretManager": available}
    return described


def build_yaml(options: CloudBuild, target: Reference) -> bytes:
    """Write the build as cloudbuild.yaml: the same bytes for the same options; no source, which gcloud adds."""
    head = _HEAD.format(project=options.project, region=options.region, image=_IMAGE)
    return (
        head + yaml.safe_dump(describe_build(options, target), sort_keys=False, allow_unicode=True, width=120)
    ).encode()


def find_project(asked: str | None) -> str:
    """Return the project that was asked for, else that of GOOGLE_CLOUD_PROJECT or of the credentials; UsageError."""
    if asked:
        return asked
    import google.auth  # noqa: PLC0415 - slow
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    try:
        _, project = google.auth.default()  # which asks GOOGLE_CLOUD_PROJECT itself, and gcloud's settings
    except GoogleAuthError:
        project = None
    if not project:
        todo = "give --cloudbuild project=ID, or set GOOGLE_CLOUD_PROJECT"
        raise UsageError("no project is known to build in", where="Cloud Build", todo=todo)
    return str(project)
