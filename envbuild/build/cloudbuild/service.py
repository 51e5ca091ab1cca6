"""Cloud Build's API through Google's own client (REST), and what it refuses, in our words."""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
from google.api_core.exceptions import (
    BadGateway,
    Forbidden,
    GatewayTimeout,
    GoogleAPICallError,
    InternalServerError,
    NotFound,
    RequestRangeNotSatisfiable,
    RetryError,
    ServiceUnavailable,
    TooManyRequests,
)
from google.api_core.retry import Retry, if_exception_type
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.cloud.devtools.cloudbuild_v1 import Build, BuildStep, CloudBuildClient
from google.cloud.storage import Client
from google.protobuf.json_format import ParseDict, ParseError

from envbuild.build.cloudbuild.plan import CloudBuild, patience, seconds
from envbuild.errors import BuildError, UsageError
from envbuild.lock.settings import without_credentials
from envbuild.registry.transport import is_loopback
from envbuild.stamp.gcs import told

ENDPOINT = "ENVBUILD_CLOUDBUILD_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
_ONE_ANSWER = 60.0
_UNSURE = (
    BadGateway,
    GatewayTimeout,
    InternalServerError,
    ServiceUnavailable,
    TransportError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
"""After these nobody knows whether the request was carried out."""
_LOGIN = "log in with `gcloud auth application-default login`, or run with a service account"
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
        with self._translated_errors():
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

        with self._translated_errors():
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
        with self._translated_errors():
            return self.client.get_build(
                request={"name": f"{self.parent}/builds/{identity}"}, retry=_retry(), timeout=_ONE_ANSWER
            )

    def cancel(self, known: str, mark: str) -> list[str]:
        """End the build with this id, or, where none is known, what runs with this tag; return the ids."""
        with self._translated_errors():
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

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        where = f"Cloud Build, {self.parent}"
        try:
            yield
        except GoogleAPICallError as error:
            raise _refused(error, where, self.project) from error
        except RetryError as error:
            raise _given_up(error, where, self.project) from error
        except GoogleAuthError as error:
            raise BuildError("Google wants other credentials", where=where, todo=_LOGIN) from error
        except requests.RequestException as error:
            raise BuildError("Cloud Build could not be reached", where=where, todo=_NETWORK) from error


_Status = Build.Status
FAILED = frozenset({_Status.FAILURE, _Status.INTERNAL_ERROR, _Status.TIMEOUT, _Status.CANCELLED, _Status.EXPIRED})
ENDED = FAILED | {_Status.SUCCESS}
"""A state that is not known yet is none of these: such a build is waited for."""


@contextmanager
def connected(parent: str) -> Iterator[Service]:
    """Yield the service with the environment's credentials; BuildError when there are none."""
    endpoint = os.environ.get(ENDPOINT, "")
    options: dict[str, Any] = {"client_options": {"api_endpoint": endpoint}} if endpoint else {}
    # Without credentials on loopback only: a token must not go to whatever answers there.
    if is_local():
        options["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        client = CloudBuildClient(transport="rest", **options)
    except DefaultCredentialsError as error:
        raise BuildError("there are no Google credentials here", where="Cloud Build", todo=_LOGIN) from error
    except GoogleAuthError as error:
        what = f"the Google credentials cannot be used: {error}"
        raise BuildError(what, where="Cloud Build", todo=_LOGIN) from error
    with client:
        yield Service(client, parent)


def is_local() -> bool:
    """Whether what builds is on this machine: a test's stand-in."""
    return is_loopback(urlsplit(os.environ.get(ENDPOINT, "")).hostname or "")


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
    patience = seconds()
    transient = if_exception_type(TooManyRequests, *_UNSURE)
    return Retry(predicate=transient, initial=min(1.0, patience / 60), maximum=10.0, timeout=patience)


def _refused(error: GoogleAPICallError, where: str, project: str) -> BuildError:
    said = _message_of(error)
    match error.code:
        case 401:
            return BuildError("Cloud Build wants other credentials (401)", where=where, todo=_LOGIN)
        case 403 if "SERVICE_DISABLED" in str(error.details) or "has not been used" in said:
            todo = f"gcloud services enable cloudbuild.googleapis.com --project={project}"
            return BuildError("the Cloud Build API is off in this project (403)", where=where, todo=todo)
        case 403:
            return BuildError(f"Cloud Build forbids it (403): {said}", where=where, todo=_ROLES)
        case 404:
            todo = "check --project and --region, and the names of worker pool and service account"
            return BuildError(f"Cloud Build does not find it (404): {said}", where=where, todo=todo)
        case 400:
            todo = "print the build with --dry-run, and correct the option that made it"
            return BuildError(f"Cloud Build does not take this build: {said}", where=where, todo=todo)
        case _:
            return BuildError(f"Cloud Build refused with {error.code}: {said}", where=where, todo=_AGAIN)


_ROLES = (
    "grant the caller roles/cloudbuild.builds.editor, and roles/iam.serviceAccountUser on the build's service account"
)
_AGAIN = "run the command again later"
_NETWORK = "check the network, then run the command again"


def _given_up(error: RetryError, where: str, project: str) -> BuildError:
    cause = error.cause
    if isinstance(cause, TooManyRequests):
        todo = f"run the command again later, or raise the quota of builds of project {project}"
        return BuildError(f"Cloud Build's quota is used up (429): {_message_of(cause)}", where=where, todo=todo)
    if isinstance(cause, GoogleAPICallError):
        return BuildError(f"Cloud Build kept answering {cause.code}: {_message_of(cause)}", where=where, todo=_AGAIN)
    return BuildError("Cloud Build could not be reached", where=where, todo=_NETWORK)


def _message_of(error: GoogleAPICallError) -> str:
    """One line of what Cloud Build itself said."""
    return " ".join("".join(x if x.isprintable() else " " for x in str(error.message or "")).split())[:500]


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
        with told(self.where, self._bucket, "storage.objects.get", BuildError):
            try:
                # Its sums are of the whole object, which is another one at each look.
                return bytes(blob.download_as_bytes(start=self._offset, end=end, checksum=None, **patience()))
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
