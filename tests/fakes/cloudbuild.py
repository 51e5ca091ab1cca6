"""Cloud Build's REST API (v1) on loopback, which checks builds as the real one does and really carries them out.

Paths with and without a region; enums as numbers, which is what Google's clients ask for.
"""

import base64
import json
import re
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from google.cloud.devtools.cloudbuild_v1 import Build

from tests.fakes.cloudbuild_rules import InvalidError, accepted
from tests.fakes.cloudbuild_runs import ENDED, Run, wait
from tests.fakes.gcs import FakeGcs, _refusal, _Reply
from tests.fakes.gcs import _Handler as _GcsHandler
from tests.fakes.web import WebHandler, WebServer

_BUILDS = re.compile(
    r"/v1/projects/(?P<project>[^/]+)(?:/locations/(?P<location>[^/]+))?/builds(?:/(?P<id>[^/:]+))?(?::(?P<verb>\w+))?"
)
_OPERATIONS = re.compile(r"/v1/(?:operations/build/[^/]+|projects/[^/]+/locations/[^/]+/operations)/(?P<id>[^/]+)")
_FILTER = re.compile(r'tags ?= ?"?([\w.-]+)"?')
_Status: Any = Build.Status
_TYPE = "type.googleapis.com/google.devtools.cloudbuild.v1."
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong, for the next `times` requests of a kind."""

    operation: Literal["create", "get", "list", "cancel", "operation"]
    kind: Literal["status", "drop", "lost"] = "status"
    """`status`: answer so instead; `drop`: close the connection, do nothing; `lost`: do it, then close."""
    times: int = 1
    status: int = 503
    message: str = "said by the fake"
    details: tuple[Mapping[str, Any], ...] = ()


class ProjectGcs(FakeGcs):
    """Cloud Storage that also says which buckets a project has."""

    def __init__(self) -> None:
        super().__init__(_ListingHandler)
        self.of_others: set[str] = set()
        """Buckets of other projects."""
        self.listing_forbidden = False


class _ListingHandler(_GcsHandler):
    gcs: ProjectGcs

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/storage/v1/b":
            self._handle()
        elif self.gcs.listing_forbidden:
            self._send(_refusal(403, "caller does not have storage.buckets.list access"))
        else:
            prefix = dict(parse_qsl(url.query)).get("prefix", "")
            names = sorted(name for name in self.gcs.buckets.keys() - self.gcs.of_others if name.startswith(prefix))
            self._send(_Reply(value={"kind": "storage#buckets", "items": [{"name": name} for name in names]}))


class FakeCloudBuild(WebServer):
    """`with FakeCloudBuild(gcs, docker=["docker"]) as api:`, and ENVBUILD_CLOUDBUILD_ENDPOINT set to `api.url`."""

    def __init__(
        self,
        gcs: FakeGcs,
        *,
        docker: Sequence[str] = ("docker",),
        environment: Mapping[str, str] | None = None,
        here: frozenset[str] = frozenset(),
    ) -> None:
        self.gcs, self.docker, self.environment, self.here = gcs, docker, environment or {}, here
        self.runs: dict[str, Run] = {}
        self.secrets: dict[str, str] = {}
        """Secret Manager: values by version name."""
        self.projects = {"proj-1"}
        self.ends_with: Any = None
        """How builds end at once, instead of being carried out."""
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        """Operation and path."""
        self.lock = threading.RLock()
        self.listen(_Handler, api=self)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for run in self.runs.values():
            run.end(_Status.CANCELLED)
            wait(run)

    @property
    def builds(self) -> list[Build]:
        """All builds, in the order in which they were created."""
        return [run.build for run in self.runs.values()]

    def fail(self, operation: Literal["create", "get", "list", "cancel", "operation"], **how: Any) -> None:
        """Add a fault: see Fault."""
        self.faults.append(Fault(operation=operation, **how))

    def seen(self, operation: str) -> int:
        """How many requests of a kind there were."""
        return sum(one == operation for one, _ in self.requests)

    def fault(self, operation: str) -> Fault | None:
        """Take the next fault that fits."""
        for fault in self.faults:
            if fault.operation == operation and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def create(self, parent: str, body: Mapping[str, Any]) -> dict[str, Any]:
        identity = str(uuid.uuid4())
        build = accepted(body, parent, identity)
        build.id, build.project_id, build.status = identity, parent.split("/")[1], _Status.QUEUED
        build.name = f"{parent}/builds/{identity}"
        build.log_url = f"https://console.example.com/builds/{identity}"
        run = Run(
            build=build, gcs=self.gcs, docker=self.docker, environment=self.environment, secrets=self.secrets,
            lock=self.lock, here=self.here,
        )  # fmt: skip
        self.runs[identity] = run
        answer = self.operation(identity)
        run.start() if self.ends_with is None else run.end(self.ends_with, "as the test wants")
        return answer

    def operation(self, identity: str) -> dict[str, Any]:
        """The long-running operation of a build."""
        build = self.runs[identity].build
        coded = base64.b64encode(identity.encode()).decode()
        answer: dict[str, Any] = {
            "name": f"operations/build/{build.project_id}/{coded}",
            "metadata": {"@type": f"{_TYPE}BuildOperationMetadata", "build": _json(build)},
        }
        if build.status == _Status.SUCCESS:
            answer |= {"done": True, "response": {"@type": f"{_TYPE}Build", **_json(build)}}
        elif build.status in ENDED:
            answer |= {"done": True, "error": {"code": 2, "message": f"Build failed; {build.status_detail}"}}
        return answer

    def listed(self, parent: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Newest first, a page at a time."""
        wanted = parameters.get("filter", "")
        match = _FILTER.fullmatch(wanted)
        if wanted and not match:
            raise InvalidError(f"invalid filter {wanted!r}")
        found = [one for one in reversed(self.builds) if one.name.startswith(f"{parent}/")]
        found = [one for one in found if match is None or match[1] in one.tags]
        size, begin = int(parameters.get("pageSize") or 50), int(parameters.get("pageToken") or 0)
        rest = {"nextPageToken": str(begin + size)} if len(found) > begin + size else {}
        return {"builds": [_json(one) for one in found[begin : begin + size]], **rest}


def _json(build: Build) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        Build.to_json(build, use_integers_for_enums=True, always_print_fields_with_no_presence=False)
    )
    return value


class _AnswerError(Exception):
    def __init__(self, status: int, message: str, details: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.status, self.details = status, details


class _Handler(WebHandler):
    api: FakeCloudBuild

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.api.lock:
            try:
                operation, call = self._wanted(body)
                self.api.requests.append((operation, self.path))
                fault = self._fault(operation)
                answer = None if fault and fault.kind == "drop" else call()
                self._hang_up() if fault else self._send(200, answer)
            except InvalidError as error:
                self._refuse(400, str(error))
            except _AnswerError as error:
                self._refuse(error.status, str(error), error.details)

    def _fault(self, operation: str) -> Fault | None:
        fault = self.api.fault(operation)
        if fault and fault.kind == "status":
            raise _AnswerError(fault.status, fault.message, fault.details)
        return fault

    def _wanted(self, body: bytes) -> tuple[str, Any]:
        url = urlsplit(self.path)
        path, parameters = unquote(url.path), dict(parse_qsl(url.query))
        if match := _OPERATIONS.fullmatch(path):
            identity = base64.b64decode(match["id"]).decode()
            return "operation", lambda: self.api.operation(self._known(identity).id)
        match = _BUILDS.fullmatch(path)
        if match is None:
            raise _AnswerError(404, "Not Found")
        parent = f"projects/{match['project']}/locations/{match['location'] or 'global'}"
        if match["project"] not in self.api.projects:
            raise _AnswerError(404, f"Requested entity was not found: {match['project']}")
        match self.command, match["id"], match["verb"]:
            case "POST", None, None:
                return "create", lambda: self.api.create(parent, json.loads(body))
            case "GET", None, None:
                return "list", lambda: self.api.listed(parent, parameters)
            case "GET", identity, None:
                return "get", lambda: _json(self._known(identity))
            case "POST", identity, "cancel":
                return "cancel", lambda: self._cancelled(identity)
            case _:
                raise _AnswerError(404, "Not Found")

    def _cancelled(self, identity: str) -> dict[str, Any]:
        build = self._known(identity)
        if build.status in ENDED:
            raise _AnswerError(400, "Cannot cancel a build that has ended.")
        self.api.runs[identity].end(_Status.CANCELLED)
        return _json(build)

    def _known(self, identity: str) -> Build:
        if identity not in self.api.runs:
            raise _AnswerError(404, "Requested entity was not found.")
        return self.api.runs[identity].build

    def _refuse(self, status: int, message: str, details: Sequence[Mapping[str, Any]] = ()) -> None:
        error = {"code": status, "status": _STATUSES.get(status, "UNKNOWN"), "message": message}
        self._send(status, {"error": error | ({"details": list(details)} if details else {})})

    def _send(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
