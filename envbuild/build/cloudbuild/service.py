"""Cloud Build's API through Google's own client (REST), and what it refuses, in our words."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.api_core.exceptions import RetryError, TooManyRequests
from google.api_core.retry import Retry
from google.cloud.devtools.cloudbuild_v1 import Build, CloudBuildClient
from google.protobuf.json_format import ParseDict, ParseError

from envbuild import google_api
from envbuild.errors import BuildError, UsageError
from envbuild.google_api import connect, no_credentials, retry_for, timeout_of, translated_errors

ENDPOINT = "ENVBUILD_CLOUDBUILD_ENDPOINT"
"""The variable that names another API endpoint; one on loopback is used without credentials."""
_ONE_ANSWER = 60.0
TIMEOUT = "ENVBUILD_CLOUDBUILD_TIMEOUT"
"""The variable with the seconds that one call may be tried, 60 without it; all waiting shrinks with it."""


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
