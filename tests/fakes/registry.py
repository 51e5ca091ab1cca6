"""A registry on loopback that speaks the OCI distribution protocol, and fails where a test tells it to.

As strict as the strictest real one: uploads are POST and one PUT with a Content-Length, or one PATCH of unknown length
and an empty PUT (no chunks by Content-Range), digests are checked, and a manifest is only taken when its blobs are there.
"""

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.fakes.chunked import body_pieces, is_chunked
from tests.fakes.web import WebHandler, WebServer

_NAME = r"(?P<name>[a-z0-9._/-]+)"
_INDEX = "application/vnd.oci.image.index.v1+json"
_ROUTES = {
    r"/v2/": "ping",
    rf"/v2/{_NAME}/blobs/uploads/": "uploads",
    rf"/v2/{_NAME}/blobs/uploads/(?P<upload>[0-9a-f]+)": "upload",
    rf"/v2/{_NAME}/blobs/(?P<digest>sha256:[0-9a-f]{{64}})": "blob",
    rf"/v2/{_NAME}/manifests/(?P<target>[\w.:-]+)": "manifest",
    rf"/v2/{_NAME}/tags/list": "tags",
    rf"/v2/{_NAME}/referrers/(?P<digest>sha256:[0-9a-f]{{64}})": "referrers",
    r"/token": "token",
}


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong, for the next `times` requests that it fits."""

    method: str
    path: str = ""
    """A regular expression, searched in path and query."""
    kind: Literal["status", "reset", "lost", "stall", "digest", "body", "half"] = "status"
    """`status`: answer so instead; `reset`: cut in the middle of the request's body; `lost`: do it, then cut without a
    reply; `stall`: do not answer until the registry ends; `digest`: claim another Docker-Content-Digest; `body`: answer
    with `body` as if it were what was asked for; `half`: cut in the middle of the reply's body."""
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it came in."""

    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]
    """Names in lower case."""


@dataclass
class Repository:
    """What lies in one repository."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Media type and bytes by digest."""
    tags: dict[str, str] = field(default_factory=dict)


class FakeRegistry(WebServer):
    """`with FakeRegistry() as registry: registry.host` is `127.0.0.1:PORT`."""

    def __init__(
        self,
        *,
        login: Literal["", "basic", "bearer"] = "",
        user: str = "user",
        password: str = "letmein",
        identity_token: str = "",
        anonymous_pull: bool = False,
        referrers: bool = False,
    ) -> None:
        self.login, self.user, self.password = login, user, password
        self.identity_token, self.anonymous_pull = identity_token, anonymous_pull
        self.referrers = referrers
        """Whether it lists what refers to an image, two at a time; many registries do not."""
        self.lists_config_types = False
        """Whether the list has each config's media type as the artifact's, as go-containerregistry's registry."""
        self.subjects = 0
        """The status that answers artifacts with a subject, which are not stored then; 0 stores them, -1 never answers."""
        self.repositories: defaultdict[str, Repository] = defaultdict(Repository)
        self.uploads: dict[str, str] = {}
        """Repository by open upload."""
        self.patched: dict[str, bytes] = {}
        """What an open upload has got by its PATCH."""
        self.tokens: dict[str, list[str]] = {}
        """Scopes by token; clear it to let all tokens end."""
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.blob_host = ""
        """When set, `GET blob` redirects to this host, as registries with a blob store do."""
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.listen(_Handler, registry=self)

    def __exit__(self, *_: object) -> None:
        self.released.set()
        super().__exit__()

    def fail(self, method: str, path: str = "", **how: Any) -> None:
        """Add a fault: see Fault."""
        self.faults.append(Fault(method=method, path=path, **how))

    def put(self, name: str, data: bytes) -> str:
        """Store a blob; return its digest."""
        digest = digest_of(data)
        self.repositories[name].blobs[digest] = data
        return digest

    def put_manifest(self, name: str, tag: str, data: bytes, media_type: str) -> str:
        """Store a manifest under its digest and a tag; return its digest."""
        digest = digest_of(data)
        self.repositories[name].manifests[digest] = (media_type, data)
        self.repositories[name].tags[tag] = digest
        return digest

    @property
    def tags(self) -> dict[str, str]:
        """Digest by `repository:tag`, of all repositories."""
        return {
            f"{name}:{tag}": digest for name, repo in self.repositories.items() for tag, digest in repo.tags.items()
        }

    def seen(self, method: str, path: str = "") -> list[Request]:
        """The requests of this method whose path and query fit the regular expression, in order."""
        return [one for one in self.requests if one.method == method and re.search(path, one.path)]

    def fault(self, method: str, path: str) -> Fault | None:
        """Take the next fault that fits."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class _Cut(Exception):  # noqa: N818 - an event, not an error
    """The connection ends here."""


class _Handler(WebHandler):
    registry: FakeRegistry

    def do_GET(self) -> None:
        self._fault: Fault | None = None
        registry = self.registry
        request = Request(
            method=self.command, path=self.path, headers={key.lower(): value for key, value in self.headers.items()}
        )
        with registry.lock:
            registry.requests.append(request)
        try:
            self._fault = registry.fault(self.command, self.path)
            self._act()
        except (_Cut, OSError):
            self._cut()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _act(self) -> None:
        fault = self._fault
        if fault and fault.kind == "stall":
            self.registry.released.wait(60)
            raise _Cut
        if fault and fault.kind == "reset":
            self.rfile.read(1 if is_chunked(self.headers) else min(1000, int(self.headers.get("Content-Length") or 0)))
            raise _Cut
        self.body = b"".join(body_pieces(self.rfile, self.headers))
        if fault and fault.kind == "status":
            self._reply(fault.status, fault.body, **dict(fault.headers))
            return
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        for pattern, route in _ROUTES.items():
            match = re.fullmatch(pattern, url.path)
            if match:
                self._route(route, match.groupdict())
                return
        self._error(404, "UNSUPPORTED", "no such endpoint")

    def _route(self, route: str, parts: dict[str, str]) -> None:
        if route != "token" and not self._allowed(parts.get("name", "")):
            self._challenge(parts.get("name", ""))
            return
        action = getattr(self, f"_{route}_{self.command.lower()}", None) or getattr(self, f"_{route}", None)
        if action is None:
            self._error(405, "UNSUPPORTED", f"{self.command} is not supported")
        else:
            action(**parts)

    def _cut(self) -> None:
        """Close with a reset, as a crashed server or a broken line does."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        try:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        except OSError:
            pass
        self.wfile = self.rfile = _Nothing()  # type: ignore[assignment]

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        if self._fault and self._fault.kind == "lost":
            raise _Cut
        if self._fault and self._fault.kind == "digest":
            headers["Docker_Content_Digest"] = digest_of(b"something else")
        if self._fault and self._fault.kind == "body":
            body = self._fault.body
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self._fault and self._fault.kind == "half":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            # An orderly end: a reset could overtake the half that was sent.
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _error(self, status: int, code: str, message: str, **headers: str) -> None:
        body = json.dumps({"errors": [{"code": code, "message": message, "detail": None}]}).encode()
        self._reply(status, body, Content_Type="application/json", **headers)

    def _allowed(self, name: str) -> bool:
        registry = self.registry
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if registry.login == "basic":
            return kind == "Basic" and value == self._basic()
        if registry.login == "bearer":
            if kind != "Bearer" or value not in registry.tokens:
                return False
            right = "pull" if self.command in ("GET", "HEAD") else "push"
            granted = [scope.split(":") for scope in registry.tokens[value]]
            return not name or any(scope[1] == name and right in scope[2].split(",") for scope in granted)
        return True

    def _basic(self) -> str:
        return base64.b64encode(f"{self.registry.user}:{self.registry.password}".encode()).decode()

    def _challenge(self, name: str) -> None:
        if self.registry.login == "basic":
            header = 'Basic realm="fake"'
        else:
            header = f'Bearer realm="http://{self.registry.host}/token",service="fake registry"'
            header += f',scope="repository:{name}:pull,push"' if name else ""
        self._error(401, "UNAUTHORIZED", "authentication required", WWW_Authenticate=header)

    def _token_get(self) -> None:
        known = self.headers.get("Authorization", "") == f"Basic {self._basic()}"
        anonymous = self.registry.anonymous_pull and "Authorization" not in self.headers
        if not known and not anonymous:
            self._error(401, "UNAUTHORIZED", "who are you")
            return
        scopes = self.query.get("scope", [])
        self._grant(scopes if known else [scope.replace(",push", "") for scope in scopes])

    def _token_post(self) -> None:
        form = parse_qs(self.body.decode())
        if not self.registry.identity_token or form.get("refresh_token") != [self.registry.identity_token]:
            self._error(401, "UNAUTHORIZED", "no such token")
            return
        self._grant(form["scope"][0].split(" "))

    def _grant(self, scopes: list[str]) -> None:
        token = secrets.token_urlsafe(24)
        self.registry.tokens[token] = scopes
        self._reply(200, json.dumps({"token": token, "expires_in": 300}).encode(), Content_Type="application/json")

    def _ping_get(self) -> None:
        self._reply(200, b"{}", Content_Type="application/json")

    def _uploads_post(self, name: str) -> None:
        registry = self.registry
        digest, source = (self.query.get(key, [""])[0] for key in ("mount", "from"))
        if digest and digest in registry.repositories[source].blobs:
            registry.repositories[name].blobs[digest] = registry.repositories[source].blobs[digest]
            self._reply(201, Location=f"/v2/{name}/blobs/{digest}", Docker_Content_Digest=digest)
            return
        upload = secrets.token_hex(16)
        registry.uploads[upload] = name
        # Relative, and with a query of its own that must come back as it is.
        self._reply(202, Location=f"/v2/{name}/blobs/uploads/{upload}?_state=a%2Bb%3D%3D")

    def _upload_put(self, name: str, upload: str) -> None:
        registry, digest = self.registry, self.query.get("digest", [""])[0]
        if registry.uploads.get(upload) != name or "_state=a%2Bb%3D%3D" not in self.path:
            self._error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload")
        elif "Content-Length" not in self.headers:
            self._error(411, "SIZE_INVALID", "chunked uploads are not supported")
        elif digest_of(data := registry.patched.get(upload, b"") + self.body) != digest:
            self._error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        else:
            del registry.uploads[upload]
            registry.repositories[name].blobs[digest] = data
            self._reply(201, Location=f"/v2/{name}/blobs/{digest}", Docker_Content_Digest=digest)

    def _upload_patch(self, name: str, upload: str) -> None:
        registry = self.registry
        if registry.uploads.get(upload) != name or "_state=a%2Bb%3D%3D" not in self.path:
            self._error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload")
        elif "Content-Range" in self.headers or upload in registry.patched:
            self._error(405, "UNSUPPORTED", "chunked uploads are not supported")
        else:
            registry.patched[upload] = self.body
            place = f"/v2/{name}/blobs/uploads/{upload}?_state=a%2Bb%3D%3D&patched=yes"
            self._reply(202, Location=place, Range=f"0-{len(self.body) - 1}")

    def _upload_delete(self, name: str, upload: str) -> None:
        known = self.registry.uploads.pop(upload, None) == name
        self._reply(204) if known else self._error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload")

    def _blob_get(self, name: str, digest: str) -> None:
        data = self.registry.repositories[name].blobs.get(digest)
        if data is None:
            self._error(404, "BLOB_UNKNOWN", "blob unknown to registry")
        elif self.registry.blob_host:
            self._reply(307, Location=f"http://{self.registry.blob_host}/v2/{name}/blobs/{digest}?sig=hush")
        else:
            start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            offset = int(start[1]) if start else 0
            headers = {"Content_Range": f"bytes {offset}-{len(data) - 1}/{len(data)}"} if start else {}
            status = 206 if start else 200
            headers |= {"Docker_Content_Digest": digest, "Content_Type": "application/octet-stream"}
            self._reply(status, data[offset:], **headers)

    _blob_head = _blob_get

    def _manifest_get(self, name: str, target: str) -> None:
        repository = self.registry.repositories[name]
        digest = repository.tags.get(target, target)
        if digest not in repository.manifests:
            self._error(404, "MANIFEST_UNKNOWN", "manifest unknown")
            return
        media_type, data = repository.manifests[digest]
        self._reply(200, data, Docker_Content_Digest=digest, Content_Type=media_type)

    _manifest_head = _manifest_get

    def _manifest_put(self, name: str, target: str) -> None:
        repository, digest = self.registry.repositories[name], digest_of(self.body)
        value = json.loads(self.body)
        wanted = [
            one["digest"] for one in (*value.get("layers", []), value.get("config"), *value.get("manifests", [])) if one
        ]
        missing = [one for one in wanted if one not in repository.blobs and one not in repository.manifests]
        if "subject" in value and self.registry.subjects:
            if self.registry.subjects < 0:
                self.registry.released.wait(60)
                raise _Cut
            self._error(self.registry.subjects, "MANIFEST_INVALID", "no artifacts here")
        elif missing:
            self._error(400, "MANIFEST_BLOB_UNKNOWN", missing[0])
        elif value.get("mediaType", self.headers["Content-Type"]) != self.headers["Content-Type"]:
            self._error(400, "MANIFEST_INVALID", "the manifest's mediaType is not its Content-Type")
        elif ":" in target and target != digest:
            self._error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        else:
            repository.manifests[digest] = (self.headers["Content-Type"], self.body)
            if ":" not in target:
                repository.tags[target] = digest
            self._reply(201, Location=f"/v2/{name}/manifests/{digest}", Docker_Content_Digest=digest)

    def _referrers_get(self, name: str, digest: str) -> None:
        """Listing Referrers: those whose subject it is, with type and annotations, after `from`."""
        if not self.registry.referrers:
            self._error(404, "UNSUPPORTED", "no such endpoint")
            return
        entries = []
        for own, (media_type, data) in self.registry.repositories[name].manifests.items():
            value = json.loads(data)
            if (value.get("subject") or {}).get("digest") == digest:
                described = {"mediaType": media_type, "digest": own, "size": len(data)}
                more = {key: value[key] for key in ("artifactType", "annotations") if key in value}
                if self.registry.lists_config_types:
                    more["artifactType"] = value["config"]["mediaType"]
                entries.append(described | more)
        start = int(self.query.get("from", ["0"])[0])
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries[start : start + 2]}
        link = f'</v2/{name}/referrers/{digest}?from={start + 2}>; rel="next"'
        headers = {"Link": link} if entries[start + 2 :] else {}
        self._reply(200, json.dumps(index).encode(), Content_Type=_INDEX, **headers)

    def _tags_get(self, name: str) -> None:
        body = json.dumps({"name": name, "tags": sorted(self.registry.repositories[name].tags)}).encode()
        self._reply(200, body, Content_Type="application/json")


class _Nothing:
    """Stands for the streams of a connection that was cut."""

    closed = True

    def close(self) -> None: ...

    def flush(self) -> None: ...
