"""Artifact Registry's REST API (v1) on loopback: repositories, long-running operations, tags, images, cleanup policies.

Names come percent-encoded and enums as numbers, which is what Google's clients ask for.
"""

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.web import WebHandler, WebServer

_PARENT = r"projects/[^/]+/locations/[^/]+"
_REPOSITORY = rf"{_PARENT}/repositories/[^/]+"
_ROUTES = (
    ("GET", rf"(?P<name>{_REPOSITORY})", "repository"),
    ("POST", rf"(?P<parent>{_PARENT})/repositories", "create"),
    ("GET", rf"(?P<name>{_PARENT}/operations/[^/]+)", "operation"),
    ("GET", rf"(?P<name>{_REPOSITORY}/packages/[^/]+/tags/[^/]+)", "tag"),
    ("GET", rf"(?P<parent>{_REPOSITORY}/packages/[^/]+)/versions", "versions"),
    ("GET", rf"(?P<name>{_REPOSITORY}/dockerImages/[^/]+)", "image"),
)
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_CODES = {403: 7, 404: 5, 409: 6, 500: 13}
"""google.rpc.Code by HTTP status."""
_FORMATS = {"DOCKER": 1, "PYTHON": 8}
_MODES = {"STANDARD_REPOSITORY": 1, "VIRTUAL_REPOSITORY": 2, "REMOTE_REPOSITORY": 3}

Kind = Literal["repository", "create", "operation", "tag", "versions", "image"]


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong, for the next `times` requests of a kind."""

    kind: Kind
    status: int
    times: int = 1
    message: str = "said by the fake"
    done: bool = False
    """Whether it is done all the same, so that only the answer says otherwise."""


@dataclass(kw_only=True)
class _Operation:
    name: str
    polls: int
    """How often it is asked for before it is done."""
    repository: dict[str, Any]
    error: int = 0
    """The HTTP status that stands for how it ends; 0 for well."""


@dataclass
class FakeArtifactRegistry(WebServer):
    """`with FakeArtifactRegistry() as api: api.url`; fill it by `add` and `push`."""

    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By full name."""
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    """DockerImages by full name, whose slashes in the image are %2F."""
    forbidden: set[str] = field(default_factory=set)
    """Names that are refused with 403, as for an account without permission."""
    requests: list[str] = field(default_factory=list)
    """Names, as they were asked for."""
    faults: list[Fault] = field(default_factory=list)
    polls: int = 1
    """How often a new repository's operation is asked for before it is done."""
    ends: int = 0
    """The HTTP status that stands for how operations end; 0 for well."""
    operations: dict[str, _Operation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.listen(_Handler, api=self)

    def add(
        self, name: str, *, format_: str = "DOCKER", mode: str = "STANDARD_REPOSITORY", **more: Any
    ) -> dict[str, Any]:
        """Create the repository `projects/P/locations/L/repositories/R`; `more` is as the API writes it."""
        self.repositories[name] = {"name": name, "format": _FORMATS[format_], "mode": _MODES[mode], **more}
        return self.repositories[name]

    def push(self, repository: str, image: str, digest: str, *tags: str, uploaded: datetime | None = None) -> None:
        """Put an image into a repository; its tags leave the images that had them."""
        escaped = image.replace("/", "%2F")
        for other in self._of(repository, escaped):
            other["tags"] = [tag for tag in other["tags"] if tag not in tags]
        when = (uploaded or datetime.now(UTC)).astimezone(UTC).isoformat().replace("+00:00", "Z")
        name = f"{repository}/dockerImages/{escaped}@{digest}"
        self.images[name] = {"name": name, "tags": list(tags), "uploadTime": when}

    def fail(self, kind: Kind, status: int, **how: Any) -> None:
        """Add a fault: see Fault."""
        self.faults.append(Fault(kind=kind, status=status, **how))

    def fault(self, kind: str) -> Fault | None:
        """Take the next fault of a kind."""
        for fault in self.faults:
            if fault.times > 0 and fault.kind == kind:
                fault.times -= 1
                return fault
        return None

    def _of(self, repository: str, escaped: str) -> list[dict[str, Any]]:
        return [it for name, it in self.images.items() if name.startswith(f"{repository}/dockerImages/{escaped}@")]

    def answer(self, kind: str, names: Mapping[str, str], query: Mapping[str, list[str]], body: bytes) -> Any:
        """What the API says: a value, or an HTTP status."""
        return getattr(self, f"_{kind}")(**names, query=query, body=body)

    def _repository(self, name: str, **_more: Any) -> Any:
        return self.repositories.get(name, 404)

    def _create(self, parent: str, query: Mapping[str, list[str]], body: bytes) -> Any:
        value, name = json.loads(body), f"{parent}/repositories/{query['repositoryId'][0]}"
        if name in self.repositories or any(it.repository["name"] == name for it in self.operations.values()):
            return 409
        if not isinstance(value.get("format"), int):
            return 400
        operation = _Operation(
            name=f"{parent}/operations/op-{len(self.operations)}",
            polls=self.polls,
            repository=value | {"name": name},
            error=self.ends,
        )
        self.operations[operation.name] = operation
        return {"name": operation.name, "done": False}

    def _operation(self, name: str, **_more: Any) -> Any:
        found = self.operations.get(name)
        if found is None:
            return 404
        if found.polls > 0:
            found.polls -= 1
            return {"name": name, "done": False}
        if found.error:
            return {"name": name, "done": True, "error": {"code": _CODES[found.error], "message": "it ended so"}}
        kind = "type.googleapis.com/google.devtools.artifactregistry.v1.Repository"
        self.repositories[found.repository["name"]] = found.repository
        return {"name": name, "done": True, "response": {"@type": kind, **found.repository}}

    def _tag(self, name: str, **_more: Any) -> Any:
        package, _, tag = name.rpartition("/tags/")
        repository, _, image = package.rpartition("/packages/")
        for found in self._of(repository, image):
            if tag in found["tags"]:
                return {"name": name, "version": f"{package}/versions/{found['name'].rpartition('@')[2]}"}
        return 404

    def _versions(self, parent: str, query: Mapping[str, list[str]], **_more: Any) -> Any:
        repository, _, image = parent.rpartition("/packages/")
        found = [
            {"name": f"{parent}/versions/{it['name'].rpartition('@')[2]}", "createTime": it.get("uploadTime")}
            for it in self._of(repository, image)
        ]
        # Pages of two, so that who asks for all has to turn them.
        start = int(query.get("pageToken", ["0"])[0])
        more = {"nextPageToken": str(start + 2)} if len(found) > start + 2 else {}
        return {"versions": found[start : start + 2], **more}

    def _image(self, name: str, **_more: Any) -> Any:
        return self.images.get(name, 404)


class _Handler(WebHandler):
    api: FakeArtifactRegistry

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        name = unquote(url.path).removeprefix("/v1/")
        with self.api.lock:
            self.api.requests.append(name)
            found = self._found(name, parse_qs(url.query), body)
        if isinstance(found, tuple):
            self._error(*found)
        else:
            self._reply(200, found)

    do_POST = do_GET

    def _found(self, name: str, query: Mapping[str, list[str]], body: bytes) -> Any:
        for method, pattern, kind in _ROUTES:
            match = re.fullmatch(pattern, name)
            # The client of operations, which all services share, has no enums to ask for.
            if match and kind != "operation" and "enum-encoding=int" not in query.get("$alt", [""])[0]:
                return 400, "enums are numbers here"
            if match and method == self.command:
                return self._allowed(kind, name, match.groupdict(), query, body)
        return 404, "no such method"

    def _allowed(
        self, kind: str, name: str, names: Mapping[str, str], query: Mapping[str, list[str]], body: bytes
    ) -> Any:
        if name in self.api.forbidden:
            return 403, f"Permission 'artifactregistry.{kind}' denied on resource (or it may not exist)."
        fault = self.api.fault(kind)
        found = self.api.answer(kind, names, query, body) if fault is None or fault.done else None
        if fault:
            return fault.status, fault.message
        return (found, "Requested entity was not found.") if isinstance(found, int) else found

    def _error(self, code: int, message: str) -> None:
        self._reply(code, {"error": {"code": code, "status": _STATUSES[code], "message": message}})

    def _reply(self, code: int, value: Mapping[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
