"""The options of `--builder cloudbuild`."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from envbuild.cli.command import how_option
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.build.cloudbuild import CloudBuild

_KEYS = {
    "project": "project",
    "region": "region",
    "bucket": "cloudbuild_bucket",
    "timeout": "cloudbuild_timeout",
    "machine": "cloudbuild_machine",
    "account": "cloudbuild_account",
    "pool": "cloudbuild_pool",
    "secret": "cloudbuild_secret",
}
"""The keys of --cloudbuild, and the options of before."""

Pairs = Annotated[
    list[str] | None,
    how_option(
        help="With --builder cloudbuild; repeatable. Keys: project, region, bucket (gs://...), timeout (seconds), "
        "machine, account, pool, secret (pip, netrc or ca=projects/P/secrets/S).",
        metavar="KEY=VALUE",
    ),
]
_Hidden = Annotated[str | None, how_option(hidden=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    """How Cloud Build builds; all but the first are options of before."""

    cloudbuild: Pairs = None
    project: _Hidden = None
    region: _Hidden = None
    cloudbuild_bucket: _Hidden = None
    cloudbuild_timeout: Annotated[int | None, how_option(hidden=True)] = None
    cloudbuild_machine: _Hidden = None
    cloudbuild_account: _Hidden = None
    cloudbuild_pool: _Hidden = None
    cloudbuild_secret: Annotated[list[str] | None, how_option(hidden=True)] = None


def cloud_build(options: CloudOptions, *, chosen: bool) -> "CloudBuild | None":
    """Return how Cloud Build builds; None for other builders, which have none of these options (UsageError)."""
    if not chosen:
        if options != CloudOptions():
            todo = "add --builder cloudbuild, or leave them out"
            raise UsageError("options of Cloud Build need --builder cloudbuild", where="--builder", todo=todo)
        return None
    from envbuild.build.cloudbuild import CloudBuild, Secret, find_project

    values = _values(options)
    return CloudBuild(
        project=find_project(values["project"]),
        region=values["region"] or "global",
        bucket=values["bucket"] or "",
        timeout=3600 if values["timeout"] is None else values["timeout"],
        machine_type=values["machine"] or "",
        service_account=values["account"] or "",
        worker_pool=values["pool"] or "",
        secrets=tuple(Secret.parse(text) for text in values["secret"] or ()),
    )


def _values(options: CloudOptions) -> dict[str, Any]:
    before = asdict(options)
    values: dict[str, Any] = {key: before[name] for key, name in _KEYS.items()}
    for pair in options.cloudbuild or ():
        key, equals, value = pair.partition("=")
        where = f"--cloudbuild {pair}"
        if key not in _KEYS or not equals or not value:
            todo = f"give KEY=VALUE; the keys are {', '.join(_KEYS)}"
            raise UsageError("unknown setting of Cloud Build", where=where, todo=todo)
        if key == "secret":
            values[key] = [*(values[key] or ()), value]
        elif values[key] is not None:
            raise UsageError(f"{key} is given twice", where=where, todo="give it once")
        else:
            values[key] = value
    if isinstance(timeout := values["timeout"], str):
        if not timeout.isdecimal():
            where, todo = f"--cloudbuild timeout={timeout}", "give a whole number, such as timeout=3600"
            raise UsageError("the timeout is not a number of seconds", where=where, todo=todo)
        values["timeout"] = int(timeout)
    return values
