"""Cloud Build's API through Google's own client (REST), a build's log, and what the service refuses, in our words."""

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
from google.cloud.storage.retry import DEFAULT_RETRY
from google.protobuf.json_format import ParseDict, ParseError

from envbuild import google_api
from envbuild.build.cloud_plan import CloudBuild
from envbuild.errors import BuildError, UsageError
from envbuild.google_api import connect, no_credentials, retry_for, timeout_of, translated_errors
from envbuild.lock.settings import without_credentials
from envbuild.stamp.gcs import storage_errors

TIMEOUT = "ENVBUILD_CLOUDBUILD_TIMEOUT"
"""The variable with the seconds that one call may be tried again, 60 without it; all waiting shrinks with it."""
ENDPOINT = "ENVBUILD_CLOUDBUILD_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
_ONE_ANSWER = 60.0
_PIECE = 1 << 20
_LONGEST = 10_000
"""Bytes of one line at most, so that a build without line ends does not fill the memory."""
_Status = Build.Status
_Kind = Build.FailureInfo.FailureType
FAILED = frozenset({_Status.FAILURE, _Status.INTERNAL_ERROR, _Status.TIMEOUT, _Status.CANCELLED, _Status.EXPIRED})
ENDED = FAILED | {_Status.SUCCESS}
"""A state that is not known yet is none of these: such a build is waited for."""


@dataclass(frozen=True, slots=True)
class Service:
    """The builds of one project in one region.

    No request has the older fields `project_id` and `id`: with them the client takes paths without a region.
    """

    client: CloudBuildClient
    parent: str
    """`projects/P/locations/L`."""

    def check(self) -> None:
        """Ask for one build, which needs the API to be on and the caller to be known; BuildError otherwise."""
        request = {"parent": self.parent, "page_size": 1}
        with self._errors():
            next(iter(self.client.list_builds(request=request, retry=_retry(), timeout=_ONE_ANSWER)), None)

    def create(self, described: Mapping[str, Any], mark: str) -> Build:
        """Start a build, once: where an answer was lost, it is looked for by its tag `mark` before another try.

        The API has no request id (CreateBuildRequest), so this is the only way to know. UsageError for a value that
        Google's client does not know, such as a machine type of no machine.
        """
        build, unsure = Build(), False
        try:
            ParseDict(dict(described), Build.pb(build))
        except ParseError as error:
            todo = "see the names in Cloud Build's reference, Build"
            raise UsageError(f"Cloud Build has no such value: {error}", where="Cloud Build", todo=todo) from error
        request = {"parent": self.parent, "build": build}

        def attempt() -> Build:
            nonlocal unsure
            if unsure and (found := self._marked(mark)):
                return found[0]
            unsure = True
            try:
                operation = self.client.create_build(request=request, retry=None, timeout=_ONE_ANSWER)
            except TooManyRequests:
                unsure = False
                raise
            started: Build = operation.metadata.build
            return started

        with self._errors():
            try:
                return _retry()(attempt)()
            except RetryError:
                if unsure and (found := self._marked(mark)):
                    return found[0]
                raise

    def get(self, identity: str) -> Build:
        """Return a build as it is now."""
        request = {"name": f"{self.parent}/builds/{identity}"}
        with self._errors():
            return self.client.get_build(request=request, retry=_retry(), timeout=_ONE_ANSWER)

    def cancel(self, known: str, mark: str) -> list[str]:
        """End the build with this id, or, where none is known, what runs with this tag; return the ids."""
        with self._errors():
            found = [known] if known else [it.id for it in self._marked(mark) if it.status not in ENDED]
            for identity in found:
                request = {"name": f"{self.parent}/builds/{identity}"}
                self.client.cancel_build(request=request, retry=_retry(), timeout=_ONE_ANSWER)
        return found

    def _marked(self, mark: str) -> list[Build]:
        """The builds with a tag; each is checked again, as a filter that the service ignores would return others'."""
        request = {"parent": self.parent, "filter": f'tags="{mark}"'}
        found = self.client.list_builds(request=request, retry=_retry(), timeout=_ONE_ANSWER)
        return [build for _, build in zip(range(100), found, strict=False) if mark in build.tags]

    def _errors(self) -> AbstractContextManager[None]:
        explain = partial(_explain, self.parent.split("/")[1])
        return translated_errors("Cloud Build", f"Cloud Build, {self.parent}", BuildError, explain)


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


def call_options() -> dict[str, Any]:
    """How long one call to Cloud Storage may try; between two bytes of a large context may lie ten minutes."""
    seconds = timeout_of(TIMEOUT)
    return {"retry": retry_for(seconds, DEFAULT_RETRY), "timeout": (min(seconds, 60.0), 600.0)}


def _retry() -> Retry:
    return retry_for(timeout_of(TIMEOUT))


def _explain(project: str, code: int, message: str) -> tuple[str, str] | None:
    if code == 403 and ("SERVICE_DISABLED" in message or "has not been used" in message):
        todo = f"gcloud services enable cloudbuild.googleapis.com --project={project}"
        return "the Cloud Build API is off in this project (403)", todo
    account = "roles/iam.serviceAccountUser on the build's service account"
    reasons = {
        400: ("does not take this build", "print the build with --dry-run, and correct the option that made it"),
        403: ("forbids it (403)", f"grant the caller roles/cloudbuild.builds.editor, and {account}"),
        404: ("does not find it (404)", "check project, region, pool and account of --cloudbuild"),
        429: ("has no quota left (429)", f"run the command again later, or raise project {project}'s quota of builds"),
    }
    if code not in reasons:
        return None
    what, todo = reasons[code]
    return f"Cloud Build {what}: {message}", todo


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


def explain_failure(build: Build, options: CloudBuild, last: Sequence[str], log: str) -> BuildError:
    """Explain a failed build: the step, what to do, and the last lines of its log."""
    step = next((step for step in build.steps if step.status in FAILED), None)
    what, todo = _ending(build, options, step)
    where = f"build {build.id}, log {log}" + (f", {build.log_url}" if build.log_url else "")
    return BuildError("\n".join((what, *(f"  | {line}" for line in last))), where=where, todo=todo)


def _ending(build: Build, options: CloudBuild, step: BuildStep | None) -> tuple[str, str]:
    """How a build ended, and what to do."""
    at = f" at step {step.id or step.name}" if step else ""
    detail = " ".join((build.failure_info.detail or build.status_detail or "no reason given").split())[:500]
    again = "run the command again; if it stays so, see Cloud Build's history and quotas"
    match build.status:
        case _Status.TIMEOUT:
            todo = "give it longer (--cloudbuild timeout=SECONDS), or a larger machine (--cloudbuild machine=TYPE)"
            return f"the build was not done after {options.timeout} s{at}", todo
        case _Status.CANCELLED:
            return f"the build was cancelled{at}", "somebody cancelled it; run the command again"
        case _Status.EXPIRED:
            return "the build waited too long for a machine", again
        case _Status.INTERNAL_ERROR:
            return f"Cloud Build failed by itself{at}: {detail}", again
        case _:
            pass
    account = options.service_account or "the project's default service account"
    match build.failure_info.type_:
        case _Kind.PUSH_NOT_AUTHORIZED | _Kind.PUSH_FAILED | _Kind.PUSH_IMAGE_NOT_FOUND:
            todo = f"see that the repository is there, and grant {account} roles/artifactregistry.writer on it"
        case _Kind.FETCH_SOURCE_FAILED:
            todo = f"grant {account} roles/storage.objectViewer on gs://{options.contexts[0]}"
        case _:
            todo = "the lines above say what failed; the log has all of them"
    code = f" (exit code {step.exit_code})" if step and step.exit_code else ""
    return f"the build failed{at}{code}: {detail}", todo
