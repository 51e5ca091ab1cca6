"""Cloud Build's API through Google's own client (REST), and what it refuses, in our words."""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.api_core.exceptions import Forbidden, NotFound, RequestRangeNotSatisfiable, RetryError, TooManyRequests
from google.api_core.retry import Retry
from google.cloud.devtools.cloudbuild_v1 import Build, BuildStep, CloudBuildClient
from google.cloud.storage import Client
from google.protobuf.json_format import ParseDict, ParseError

from envbuild import google_api
from envbuild.build.cloudbuild.plan import TIMEOUT, CloudBuild, call_options
from envbuild.errors import BuildError, UsageError
from envbuild.google_api import connect, no_credentials, retry_for, timeout_of, translated_errors
from envbuild.lock.settings import without_credentials
from envbuild.stamp.gcs import storage_errors

ENDPOINT = "ENVBUILD_CLOUDBUILD_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
_ONE_ANSWER = 60.0
_PIECE = 1 << 20
_LONGEST = 10_000
"""Bytes of one line at most, so that a build without line ends does not fill the memory."""
_BuildStatus = Build.Status
_Kind = Build.FailureInfo.FailureType


@dataclass(frozen=True, slots=True)
class Service:
    """The builds of one project in one region.

    No request has the older fields `project_id` and `id`: with them the client takes paths without a region.
    """

    client: CloudBuildClient
    parent: str
    """`projects/P/locations/L`."""

    @property
    def project(self) -> str:
        """The project's id."""
        return self.parent.split("/")[1]

    def check(self) -> None:
        """Ask for one build, which needs the API to be on and the caller to be known; BuildError otherwise."""
        request = {"parent": self.parent, "page_size": 1}
        with self._errors():
            next(iter(self.client.list_builds(request=request, retry=_retry(), timeout=_ONE_ANSWER)), None)

    def create(self, described: Mapping[str, Any], mark: str) -> Build:
        """Start a build, once: where an answer was lost, it is looked for by its tag `mark` before another try.

        The API has no request id (CreateBuildRequest), so this is the only way to know.
        """
        request = {"parent": self.parent, "build": _parsed(described)}
        unsure = False

        def attempt() -> Build:
            nonlocal unsure
            if unsure and (found := self._marked(mark)):
                return found[0]
            unsure = True
            try:
                return self._created(request)
            except TooManyRequests:
                unsure = False
                raise

        with self._errors():
            try:
                return _retry()(attempt)()
            except RetryError:
                if unsure and (found := self._marked(mark)):
                    return found[0]
                raise

    def _created(self, request: dict[str, Any]) -> Build:
        started: Build = self.client.create_build(request=request, retry=None, timeout=_ONE_ANSWER).metadata.build
        return started

    def get(self, identity: str) -> Build:
        """Return a build as it is now."""
        with self._errors():
            return self.client.get_build(
                request={"name": f"{self.parent}/builds/{identity}"}, retry=_retry(), timeout=_ONE_ANSWER
            )

    def cancel(self, known: str, mark: str) -> list[str]:
        """End the build with this id, or, where none is known, what runs with this tag; return the ids."""
        with self._errors():
            found = [known] if known else [it.id for it in self._marked(mark) if it.status not in ENDED]
            for identity in found:
                self._cancel(identity)
        return found

    def _cancel(self, identity: str) -> None:
        request = {"name": f"{self.parent}/builds/{identity}"}
        self.client.cancel_build(request=request, retry=_retry(), timeout=_ONE_ANSWER)

    def _marked(self, mark: str) -> list[Build]:
        """The builds with a tag, which are looked at again: a filter that is not understood must not give others'."""
        request = {"parent": self.parent, "filter": f'tags="{mark}"'}
        found = self.client.list_builds(request=request, retry=_retry(), timeout=_ONE_ANSWER)
        return [build for _, build in zip(range(100), found, strict=False) if mark in build.tags]

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(
            "Cloud Build", f"Cloud Build, {self.parent}", BuildError, partial(_explain, self.project)
        )


_Status = Build.Status
FAILED = frozenset({_Status.FAILURE, _Status.INTERNAL_ERROR, _Status.TIMEOUT, _Status.CANCELLED, _Status.EXPIRED})
ENDED = FAILED | {_Status.SUCCESS}
"""A state that is not known yet is none of these: such a build is waited for."""


@contextmanager
def connected(parent: str) -> Iterator[Service]:
    """Yield the service with the environment's credentials; BuildError when there are none."""
    make = partial(CloudBuildClient, transport="rest")
    client = connect(make, "Cloud Build", BuildError, os.environ.get(ENDPOINT, ""))
    if client is None:
        raise no_credentials("Cloud Build", BuildError)
    with client:
        yield Service(client, parent)


def is_local() -> bool:
    """Whether what builds is on this machine: a test's stand-in."""
    return google_api.is_local(os.environ.get(ENDPOINT, ""))


def _parsed(described: Mapping[str, Any]) -> Build:
    """Make the client's value of JSON; UsageError for what it does not know, such as a machine type of no machine."""
    build = Build()
    try:
        ParseDict(dict(described), Build.pb(build))
    except ParseError as error:
        todo = "see the names in Cloud Build's reference, Build"
        raise UsageError(f"Cloud Build has no such value: {error}", where="Cloud Build", todo=todo) from error
    return build


def _retry() -> Retry:
    return retry_for(timeout_of(TIMEOUT))


def _explain(project: str, code: int, message: str) -> tuple[str, str] | None:
    match code:
        case 403 if "SERVICE_DISABLED" in message or "has not been used" in message:
            todo = f"gcloud services enable cloudbuild.googleapis.com --project={project}"
            return "the Cloud Build API is off in this project (403)", todo
        case 403:
            todo = (
                "grant the caller roles/cloudbuild.builds.editor, and roles/iam.serviceAccountUser on the build's "
                "service account"
            )
            return f"Cloud Build forbids it (403): {message}", todo
        case 404:
            todo = "check --project and --region, and the names of worker pool and service account"
            return f"Cloud Build does not find it (404): {message}", todo
        case 400:
            todo = "print the build with --dry-run, and correct the option that made it"
            return f"Cloud Build does not take this build: {message}", todo
        case 429:
            todo = f"run the command again later, or raise the quota of builds of project {project}"
            return f"Cloud Build's quota is used up (429): {message}", todo
        case _:
            return None


def find_project(asked: str | None) -> str:
    """Return the project that was asked for, else that of GOOGLE_CLOUD_PROJECT or of the credentials; UsageError."""
    import google.auth  # noqa: PLC0415 - slow, and only needed without --project
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    if asked:
        return asked
    try:
        _, project = google.auth.default()  # which asks GOOGLE_CLOUD_PROJECT itself, and gcloud's settings
    except GoogleAuthError:
        project = None
    if not project:
        todo = "give --project, or set GOOGLE_CLOUD_PROJECT"
        raise UsageError("no project is known to build in", where="Cloud Build", todo=todo)
    return str(project)


class Log:
    """Reads what is new at each look; the last lines are kept for the error of a build that fails."""

    def __init__(self, client: Client, folder: tuple[str, str], identity: str) -> None:
        self._client, (self._bucket, prefix) = client, folder
        self._name = "/".join(filter(None, (prefix, f"log-{identity}.txt")))
        self._offset, self._rest = 0, b""
        self.last: deque[str] = deque(maxlen=40)
        self.forbidden = False
        """Whether the caller may not read it; then it is not asked for again."""

    @property
    def where(self) -> str:
        """The log's URI."""
        return f"gs://{self._bucket}/{self._name}"

    def lines(self, *, final: bool = False) -> Iterator[str]:
        """Yield the lines that were finished since the last look; at the end also one that is not."""
        while data := self._read():
            self._offset += len(data)
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[-_LONGEST:]
            yield from map(self._keep_line, lines)
        if final and self._rest:
            yield self._keep_line(self._rest)
            self._rest = b""

    def _keep_line(self, line: bytes) -> str:
        text = without_credentials(line[:_LONGEST].decode(errors="replace").rstrip("\r"))
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        self.last.append(text)
        return text

    def _read(self) -> bytes:
        """The next piece: none when there is nothing new, or nothing at all yet."""
        if self.forbidden:
            return b""
        blob: Any = self._client.bucket(self._bucket).blob(self._name)
        end = self._offset + _PIECE - 1
        with storage_errors(self.where, self._bucket, "storage.objects.get", BuildError):
            try:
                # Its sums are of the whole object, which is another one at each look.
                return bytes(blob.download_as_bytes(start=self._offset, end=end, checksum=None, **call_options()))
            except (NotFound, RequestRangeNotSatisfiable):
                return b""
            except Forbidden:
                self.forbidden = True
                return b""


def failure(build: Build, options: CloudBuild, last: Sequence[str], log: str) -> BuildError:
    """Explain a failed build: the step, what to do, and the last lines of its log."""
    step = next((step for step in build.steps if step.status in FAILED), None)
    lines = [_ended(build, options, step), *(f"  | {line}" for line in last)]
    where = f"build {build.id}, log {log}" + (f", {build.log_url}" if build.log_url else "")
    return BuildError("\n".join(lines), where=where, todo=_todo(build, options))


def _ended(build: Build, options: CloudBuild, step: BuildStep | None) -> str:
    at = f" at step {step.id or step.name}" if step else ""
    match build.status:
        case _BuildStatus.TIMEOUT:
            return f"the build was not done after {options.timeout} s{at}"
        case _BuildStatus.CANCELLED:
            return f"the build was cancelled{at}"
        case _BuildStatus.EXPIRED:
            return "the build waited too long for a machine"
        case _BuildStatus.INTERNAL_ERROR:
            return f"Cloud Build failed by itself{at}: {_detail(build)}"
        case _:
            code = f" (exit code {step.exit_code})" if step and step.exit_code else ""
            return f"the build failed{at}{code}: {_detail(build)}"


def _detail(build: Build) -> str:
    text = build.failure_info.detail or build.status_detail or "no reason given"
    return " ".join(text.split())[:500]


def _todo(build: Build, options: CloudBuild) -> str:
    match build.status:
        case _BuildStatus.TIMEOUT:
            return "give it longer with --cloudbuild-timeout, or a larger machine with --cloudbuild-machine"
        case _BuildStatus.CANCELLED:
            return "somebody cancelled it; run the command again"
        case _BuildStatus.EXPIRED | _BuildStatus.INTERNAL_ERROR:
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
