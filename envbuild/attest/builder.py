"""Who runs the build, as the variables of a CI system say it; nobody proves them, and a signature vouches for them."""

from collections.abc import Mapping
from dataclasses import dataclass

LOCAL = "https://envbuild.dev/builder/local"
"""A machine of which nothing is known."""
_CLOUD_BUILD = "https://cloudbuild.googleapis.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """What ran the build."""

    id: str
    """A URI (SLSA provenance v1, `builder.id`)."""
    invocation: str = ""
    """The URI of this one run; empty where nobody gives it one."""


def builder_of(variables: Mapping[str, str]) -> Builder:
    """Tell GitHub Actions, GitLab CI and Cloud Build by their variables; all else is a machine like any other.

    https://docs.github.com/actions/reference/workflows-and-actions/variables;
    https://docs.gitlab.com/ci/variables/predefined_variables; in a step of Cloud Build BUILD_ID and PROJECT_ID are
    there where its template passes them on.
    """
    get = {name: text.strip() for name, text in variables.items()}.get
    server, workflow, run = (get(f"GITHUB_{it}", "") for it in ("SERVER_URL", "WORKFLOW_REF", "RUN_ID"))
    if get("GITHUB_ACTIONS") == "true" and server and workflow and run:
        attempt = get("GITHUB_RUN_ATTEMPT") or "1"
        where = f"{server}/{get('GITHUB_REPOSITORY', '')}/actions/runs/{run}/attempts/{attempt}"
        return Builder(id=f"{server}/{workflow}", invocation=where)
    project, runner, job = get("CI_PROJECT_URL", ""), get("CI_RUNNER_ID", ""), get("CI_JOB_URL", "")
    if get("GITLAB_CI") == "true" and project and runner:
        return Builder(id=f"{project}/-/runners/{runner}", invocation=job)
    if (build := get("BUILD_ID", "")) and (owner := get("PROJECT_ID", "")):
        where = f"{_CLOUD_BUILD}/v1/projects/{owner}/locations/{get('LOCATION') or 'global'}/builds/{build}"
        return Builder(id=f"{_CLOUD_BUILD}/GoogleHostedWorker", invocation=where)
    return Builder(id=LOCAL)
