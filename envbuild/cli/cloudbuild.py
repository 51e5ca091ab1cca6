"""The options of --builder cloudbuild."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.build.cloudbuild import CloudBuild

_PANEL = "With --builder cloudbuild"


def _option(text: str, metavar: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, metavar=metavar, rich_help_panel=_PANEL)
    return option


Project = Annotated[str | None, _option("The project that builds; by default that of the credentials.", "ID")]
Region = Annotated[str | None, _option("Where to build; by default global.", "REGION")]
Bucket = Annotated[
    str | None,
    _option("For contexts and logs; by default the bucket that gcloud uses, PROJECT_cloudbuild.", "gs://..."),
]
Timeout = Annotated[int | None, _option("How long the build may run; by default an hour.", "SECONDS")]
Machine = Annotated[str | None, _option("Such as E2_HIGHCPU_8.", "TYPE")]
Account = Annotated[str | None, _option("The service account that builds; by default the project's.", "EMAIL")]
Pool = Annotated[str | None, _option("A worker pool, by its full name.", "POOL")]
Secrets = Annotated[
    list[str] | None,
    _option("pip, netrc or ca: what the build reads the index by, in Secret Manager.", "NAME=projects/P/secrets/S"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """What Cloud Build is told."""

    project: Project = None
    region: Region = None
    cloudbuild_bucket: Bucket = None
    cloudbuild_timeout: Timeout = None
    cloudbuild_machine: Machine = None
    cloudbuild_account: Account = None
    cloudbuild_pool: Pool = None
    cloudbuild_secret: Secrets = None


def options(given: Cloud, *, chosen: bool) -> "CloudBuild | None":
    """Say what Cloud Build is told; None for other builders, which have none of these options (UsageError)."""
    if not chosen:
        if given != Cloud():
            todo = "add --builder cloudbuild, or leave them out"
            raise UsageError("options of Cloud Build are given, which does not build", where="--builder", todo=todo)
        return None
    from envbuild.build.cloudbuild import CloudBuild, Secret, find_project

    return CloudBuild(
        project=find_project(given.project),
        region=given.region or "global",
        bucket=given.cloudbuild_bucket or "",
        timeout=3600 if given.cloudbuild_timeout is None else given.cloudbuild_timeout,
        machine_type=given.cloudbuild_machine or "",
        service_account=given.cloudbuild_account or "",
        worker_pool=given.cloudbuild_pool or "",
        secrets=tuple(Secret.parse(text) for text in given.cloudbuild_secret or ()),
    )
