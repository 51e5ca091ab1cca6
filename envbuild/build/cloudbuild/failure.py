"""What a build that did not succeed tells people."""

from collections.abc import Sequence

from google.cloud.devtools.cloudbuild_v1 import Build, BuildStep

from envbuild.build.cloudbuild.options import CloudBuild
from envbuild.build.cloudbuild.service import FAILED
from envbuild.errors import BuildError

_Status = Build.Status
_Kind = Build.FailureInfo.FailureType


def failure(build: Build, options: CloudBuild, last: Sequence[str], log: str) -> BuildError:
    """Explain the end of a build that is no success: the step, what can be done, and the last lines of its log."""
    step = next((step for step in build.steps if step.status in FAILED), None)
    lines = [_ended(build, options, step), *(f"  | {line}" for line in last)]
    where = f"build {build.id}, log {log}" + (f", {build.log_url}" if build.log_url else "")
    return BuildError("\n".join(lines), where=where, todo=_todo(build, options))


def _ended(build: Build, options: CloudBuild, step: BuildStep | None) -> str:
    at = f" at step {step.id or step.name}" if step else ""
    match build.status:
        case _Status.TIMEOUT:
            return f"the build was not done after {options.timeout} s{at}"
        case _Status.CANCELLED:
            return f"the build was cancelled{at}"
        case _Status.EXPIRED:
            return "the build waited too long for a machine"
        case _Status.INTERNAL_ERROR:
            return f"Cloud Build failed by itself{at}: {_detail(build)}"
        case _:
            code = f" (exit code {step.exit_code})" if step and step.exit_code else ""
            return f"the build failed{at}{code}: {_detail(build)}"


def _detail(build: Build) -> str:
    text = build.failure_info.detail or build.status_detail or "no reason given"
    return " ".join(text.split())[:500]


def _todo(build: Build, options: CloudBuild) -> str:
    match build.status:
        case _Status.TIMEOUT:
            return "give it longer with --cloudbuild-timeout, or a larger machine with --cloudbuild-machine"
        case _Status.CANCELLED:
            return "somebody cancelled it; run the command again"
        case _Status.EXPIRED | _Status.INTERNAL_ERROR:
            return "run the command again; if it stays so, see Cloud Build's history and quotas"
        case _:
            return _todo_of_failure(build, options)


def _todo_of_failure(build: Build, options: CloudBuild) -> str:
    account = options.service_account or "the project's default service account"
    match build.failure_info.type_:
        case _Kind.PUSH_NOT_AUTHORIZED | _Kind.PUSH_FAILED | _Kind.PUSH_IMAGE_NOT_FOUND:
            return f"see that the repository is there, and grant {account} roles/artifactregistry.writer on it"
        case _Kind.FETCH_SOURCE_FAILED:
            return f"grant {account} roles/storage.objectViewer on gs://{options.contexts[0]}"
        case _:
            return "the lines above say what failed; the log has all of them"
