"""Cloud Storage's JSON API on loopback: generations, preconditions and permissions as the real one has them.

It behaves as Google's storage-testbench does, and refuses more than 8 KiB of custom metadata as only the real one does.
"""

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import google_crc32c

MAX_METADATA = 8 * 1024
_PATH = re.compile(
    r"/(?:(?P<kind>upload|download)/)?storage/v1/b/(?P<bucket>[^/]+)"
    r"(?:/o(?:/(?P<name>[^/]+)(?:/copyTo/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+))?)?)?/?\Z"
)
_WRITABLE = frozenset({
    "metadata", "contentType", "contentEncoding", "cacheControl", "contentDisposition", "contentLanguage", "customTime",
    "storageClass", "temporaryHold", "eventBasedHold", "contexts",
})  # fmt: skip
_PERMISSIONS = {
    "bucket": "storage.buckets.get",
    "list": "storage.objects.list",
    "get": "storage.objects.get",
    "media": "storage.objects.get",
    "insert": "storage.objects.create",
    "resume": "storage.objects.create",
    "patch": "storage.objects.update",
    "update": "storage.objects.update",
    "delete": "storage.objects.delete",
    "copy": "storage.objects.get",
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One content of an object, with its metadata."""

    data: bytes
    generation: int
    metageneration: int = 1
    properties: Mapping[str, Any] = field(default_factory=dict)
    """What a client may set: metadata, contentType, holds, contexts."""


@dataclass(kw_only=True)
class Bucket:
    """What lies in one bucket."""

    objects: dict[str, Stored] = field(default_factory=dict)
    archived: list[tuple[str, Stored]] = field(default_factory=list)
    """Older contents, kept when `versioning` is on."""
    versioning: bool = False
    denied: set[str] = field(default_factory=set)
    _newest: int = 0

    def put(self, name: str, data: bytes, metadata: Mapping[str, str] | None = None, **properties: Any) -> Stored:
        """Store a new content under a name; it begins with metageneration 1 and no metadata of the one before."""
        self.remove(name)
        # Real generations are microseconds since 1970 too.
        self._newest = max(self._newest + 1, time.time_ns() // 1000)
        properties |= {"metadata": dict(metadata)} if metadata else {}
        self.objects[name] = Stored(data=data, generation=self._newest, properties=properties)
        return self.objects[name]

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        old = self.objects.pop(name, None)
        if old and self.versioning:
            self.archived.append((name, old))

    def find(self, name: str, generation: str | None) -> Stored | None:
        """Return an object, or the content of one generation of it."""
        current = self.objects.get(name)
        if generation is None or (current and current.generation == int(generation)):
            return current
        return next((old for key, old in self.archived if key == name and old.generation == int(generation)), None)


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong, for the next `times` requests that it fits."""

    operation: str
    """bucket, list, get, media, insert, resume, patch, update, delete or copy."""
    name: str = ""
    """A regular expression, searched in the object's name."""
    kind: Literal["status", "drop", "lost", "half", "stall", "call"] = "status"
    """`status`: answer so instead; `drop`: close the connection, do nothing; `lost`: do it, then close without a reply;
    `half`: close in the middle of the reply's body; `stall`: do not answer; `call`: run `call`, then go on."""
    times: int = 1
    status: int = 503
    call: Callable[[], object] | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it came in."""

    operation: str
    bucket: str
    name: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class FakeGcs:
    """`with FakeGcs() as gcs:`, and STORAGE_EMULATOR_HOST set to `gcs.url`."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, tuple[Request, dict[str, Any], bytearray]] = {}
        """Resumable uploads: how they began, the object's properties, what came so far."""
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gcs": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; it is made when there is none."""
        return self.buckets.setdefault(name, Bucket())

    create_bucket = bucket

    def put(self, bucket: str, name: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Store an object, as another client would."""
        with self.lock:
            self.bucket(bucket).put(name, data, metadata)

    def data(self, bucket: str, name: str) -> bytes:
        """An object's content; KeyError when there is none."""
        return self.buckets[bucket].objects[name].data

    def metadata(self, bucket: str, name: str) -> dict[str, str]:
        """An object's custom metadata; KeyError when there is no object."""
        return dict(self.buckets[bucket].objects[name].properties.get("metadata") or {})

    def names(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        return sorted(self.buckets[bucket].objects)

    def deny(self, permission: str, bucket: str) -> None:
        """Answer 403 to what needs this permission on a bucket."""
        self.bucket(bucket).denied.add(permission)

    def fail(self, operation: str, name: str = "", **how: Any) -> None:
        """Add a fault: see Fault."""
        self.faults.append(Fault(operation=operation, name=name, **how))

    def apply_then_drop(self, operation: str, *, times: int = 1) -> None:
        """Do what is asked, and lose the reply."""
        self.fail(operation, kind="lost", times=times)

    def before(self, operation: str, call: Callable[[], object], *, times: int = 1) -> None:
        """Run `call` before the next requests of this kind are looked at: what happens in between."""
        self.fail(operation, kind="call", call=call, times=times)

    def seen(self, operation: str, name: str = "") -> list[Request]:
        """The requests of one kind whose object's name fits the regular expression, in order."""
        return [one for one in self.requests if one.operation == operation and re.search(name, one.name)]

    def fault(self, operation: str, name: str) -> Fault | None:
        """Take the next fault that fits."""
        with self.lock:
            for fault in self.faults:
                if fault.operation == operation and fault.times > 0 and re.search(fault.name, name):
                    fault.times -= 1
                    return fault
        return None


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class _Reply:
    status: int = 200
    value: Any = None
    """Sent as JSON, unless there is a `body`."""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    gcs: FakeGcs

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""

    def handle(self) -> None:
        """Clients may hang up whenever they want."""
        with suppress(ConnectionError):
            super().handle()

    def _handle(self) -> None:
        try:
            request = self._request()
            self.gcs.requests.append(request)
            fault = self.gcs.fault(request.operation, request.name)
            if fault and self._stopped(fault):
                return
            with self.gcs.lock:
                reply = _Service(self.gcs, request).answer()
        except _RefusedError as refused:
            fault, reply = None, _refusal(refused.status, str(refused))
        if fault and fault.kind == "lost":
            self._hang_up()
        else:
            self._send(reply, half=bool(fault and fault.kind == "half"))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - http.server's names

    def _request(self) -> Request:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match = _PATH.match(url.path)
        if match is None:
            raise _RefusedError(404, "Not Found")
        parameters = dict(parse_qsl(url.query, keep_blank_values=True))
        name = unquote(match["name"] or "")
        if match["to_name"]:
            parameters |= {"to_bucket": unquote(match["to_bucket"]), "to_name": unquote(match["to_name"])}
        return Request(
            operation=_operation(self.command, match, parameters),
            bucket=unquote(match["bucket"]),
            name=name or parameters.get("name", "") or _begun_name(self.gcs, parameters),
            parameters=parameters,
            headers={key.lower(): value for key, value in self.headers.items()},
            body=body,
        )

    def _stopped(self, fault: Fault) -> bool:
        """Do what a fault wants before the request is looked at; True when that was all."""
        match fault.kind:
            case "status":
                self._send(_refusal(fault.status, "scripted"))
            case "drop":
                self._hang_up()
            case "stall":
                self.gcs.released.wait()
                self.close_connection = True
            case "call":
                assert fault.call is not None
                fault.call()
                return False
            case _:
                return False
        return True

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, reply: _Reply, *, half: bool = False) -> None:
        body = reply.body if reply.body is not None else b""
        if reply.value is not None:
            body = json.dumps(reply.value).encode()
        self.send_response(reply.status)
        for key, value in ({"Content-Type": "application/json"} | dict(reply.headers)).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self.wfile.flush()
            self._hang_up()


@dataclass(frozen=True)
class _Service:
    """Answers one request; the caller holds the lock, so each is atomic."""

    gcs: FakeGcs
    request: Request

    def answer(self) -> _Reply:
        bucket = self.gcs.buckets.get(self.request.bucket)
        if bucket is None:
            raise _RefusedError(404, "The specified bucket does not exist.")
        self._permit(bucket, _PERMISSIONS[self.request.operation])
        handler: Callable[[Bucket], _Reply] = getattr(self, self.request.operation)
        return handler(bucket)

    def bucket(self, bucket: Bucket) -> _Reply:
        return _Reply(value={"kind": "storage#bucket", "name": self.request.bucket, "id": self.request.bucket})

    def list(self, bucket: Bucket) -> _Reply:
        parameters = self.request.parameters
        entries = [*_entries(bucket, parameters)]
        after, most = parameters.get("pageToken", ""), int(parameters.get("maxResults", 1000))
        entries = [entry for entry in entries if entry[0] > after]
        page, rest = entries[:most], entries[most:]
        items = [self._resource(name, stored) for name, stored in page if stored]
        value = {"kind": "storage#objects", "items": items, "prefixes": [name for name, stored in page if not stored]}
        return _Reply(value=value | ({"nextPageToken": page[-1][0]} if rest and page else {}))

    def get(self, bucket: Bucket) -> _Reply:
        stored = self._existing(bucket)
        self._check(stored, reading=True)
        return _Reply(value=self._resource(self.request.name, stored))

    def media(self, bucket: Bucket) -> _Reply:
        stored = self._existing(bucket)
        self._check(stored, reading=True)
        headers = _media_headers(stored)
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.request.headers.get("range", ""))
        if wanted is None:
            return _Reply(body=stored.data, headers=headers)
        start, size = int(wanted[1]), len(stored.data)
        if start >= size:
            raise _RefusedError(416, "Requested range not satisfiable")
        end = min(int(wanted[2] or size - 1), size - 1)
        headers |= {"Content-Range": f"bytes {start}-{end}/{size}"}
        return _Reply(status=206, body=stored.data[start : end + 1], headers=headers)

    def insert(self, bucket: Bucket) -> _Reply:
        match self.request.parameters.get("uploadType"):
            case "multipart":
                properties, data = _multipart(self.request)
                return self._store(bucket, self._named(properties), properties, data)
            case "resumable":
                properties = json.loads(self.request.body or b"{}")
                self._check(bucket.objects.get(self._named(properties)), reading=False)
                upload = secrets.token_hex(8)
                self.gcs.uploads[upload] = (self.request, properties, bytearray())
                query = f"uploadType=resumable&upload_id={upload}"
                where = f"{self.gcs.url}/upload/storage/v1/b/{self.request.bucket}/o?{query}"
                return _Reply(body=b"", headers={"Location": where})
            case _:
                properties = {"contentType": self.request.headers.get("content-type", "")}
                return self._store(bucket, self._named(properties), properties, self.request.body)

    def resume(self, bucket: Bucket) -> _Reply:
        begun = self.gcs.uploads.get(self.request.parameters["upload_id"])
        wanted = re.match(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.request.headers.get("content-range", ""))
        if begun is None or wanted is None:
            raise _RefusedError(404, "No such upload")
        request, properties, data = begun
        if wanted[1] is not None and int(wanted[1]) <= len(data):
            data[int(wanted[1]) :] = self.request.body
        if wanted[3] == "*" or len(data) < int(wanted[3]):
            return _Reply(status=308, body=b"", headers={"Range": f"bytes=0-{len(data) - 1}"} if data else {})
        service = _Service(self.gcs, request)
        return service._store(bucket, service._named(properties), properties, bytes(data))

    def patch(self, bucket: Bucket) -> _Reply:
        old = self._existing(bucket)
        return self._change(bucket, old, _merged(old.properties, _writable(self._json())))

    def update(self, bucket: Bucket) -> _Reply:
        return self._change(bucket, self._existing(bucket), _writable(self._json()))

    def delete(self, bucket: Bucket) -> _Reply:
        self._check(self._existing(bucket), reading=False)
        bucket.remove(self.request.name)
        return _Reply(status=204, body=b"")

    def copy(self, bucket: Bucket) -> _Reply:
        stored, parameters = self._existing(bucket), self.request.parameters
        target = self.gcs.buckets.get(parameters["to_bucket"])
        if target is None:
            raise _RefusedError(404, "The specified bucket does not exist.")
        self._permit(target, "storage.objects.create")
        self._check(target.objects.get(parameters["to_name"]), reading=False)
        made = target.put(parameters["to_name"], stored.data, **{**stored.properties, **_writable(self._json())})
        return _Reply(value=self._resource(parameters["to_name"], made, parameters["to_bucket"]))

    def _permit(self, bucket: Bucket, permission: str) -> None:
        if permission in bucket.denied:
            what = f"caller does not have {permission} access to the Google Cloud Storage object."
            raise _RefusedError(403, f"{what} Permission '{permission}' denied on resource (or it may not exist).")

    def _existing(self, bucket: Bucket) -> Stored:
        stored = bucket.find(self.request.name, self.request.parameters.get("generation"))
        if stored is None:
            # Who may not list is not told either whether there is such an object.
            self._permit(bucket, "storage.objects.list")
            raise _RefusedError(404, f"No such object: {self.request.bucket}/{self.request.name}")
        return stored

    def _check(self, stored: Stored | None, *, reading: bool) -> None:
        """Check the preconditions; an object that is not there has generation 0."""
        parameters = {key.lower(): value for key, value in self.request.parameters.items()}
        for field_name in ("generation", "metageneration"):
            value = str(getattr(stored, field_name) if stored else 0)
            if parameters.get(f"if{field_name}match", value) != value:
                raise _RefusedError(412, "At least one of the pre-conditions you specified did not hold.")
            if parameters.get(f"if{field_name}notmatch") == value:
                raise _RefusedError(304 if reading else 412, "Not Modified")

    def _json(self) -> dict[str, Any]:
        value = json.loads(self.request.body or b"{}")
        assert isinstance(value, dict)
        return value

    def _named(self, properties: Mapping[str, Any]) -> str:
        name = self.request.parameters.get("name") or properties.get("name")
        if not name or len(name.encode()) > 1024:
            raise _RefusedError(400, "Required object name")
        return str(name)

    def _store(self, bucket: Bucket, name: str, properties: Mapping[str, Any], data: bytes) -> _Reply:
        self._check(bucket.objects.get(name), reading=False)
        for key, value in _sums(data).items():
            if properties.get(key, value) != value:
                raise _RefusedError(400, f"Provided {key} does not match the calculated one")
        _check_metadata(properties)
        return _Reply(value=self._resource(name, bucket.put(name, data, **_writable(properties))))

    def _change(self, bucket: Bucket, old: Stored, properties: Mapping[str, Any]) -> _Reply:
        self._check(old, reading=False)
        _check_metadata(properties)
        new = replace(old, metageneration=old.metageneration + 1, properties=properties)
        bucket.objects[self.request.name] = new
        return _Reply(value=self._resource(self.request.name, new))

    def _resource(self, name: str, stored: Stored, bucket: str | None = None) -> dict[str, Any]:
        """The object's resource (JSON API, "Objects")."""
        bucket = bucket or self.request.bucket
        path = f"b/{bucket}/o/{name.replace('%', '%25').replace('/', '%2F').replace('?', '%3F').replace('#', '%23')}"
        moment = datetime.fromtimestamp(stored.generation / 1e6, UTC).isoformat().replace("+00:00", "Z")
        return {
            **{key: value for key, value in stored.properties.items() if value is not None},
            **_sums(stored.data),
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{stored.generation}",
            "name": name,
            "bucket": bucket,
            "generation": str(stored.generation),
            "metageneration": str(stored.metageneration),
            "size": str(len(stored.data)),
            "etag": base64.b64encode(f"{stored.generation}/{stored.metageneration}".encode()).decode(),
            "timeCreated": moment,
            "updated": moment,
            "selfLink": f"{self.gcs.url}/storage/v1/{path}",
            "mediaLink": f"{self.gcs.url}/download/storage/v1/{path}?generation={stored.generation}&alt=media",
        }


def _operation(method: str, match: re.Match[str], parameters: Mapping[str, str]) -> str:
    """Name what is asked for."""
    match method:
        case "POST" if match["to_name"]:
            return "copy"
        case "POST" | "PUT" if match["kind"] == "upload":
            return "resume" if "upload_id" in parameters else "insert"
        case "PATCH" | "PUT" | "DELETE" if match["name"]:
            return {"PATCH": "patch", "PUT": "update", "DELETE": "delete"}[method]
        case "GET" if match["name"]:
            return "media" if match["kind"] == "download" or parameters.get("alt") == "media" else "get"
        case "GET":
            return "list" if match.string.rstrip("/").endswith("/o") else "bucket"
        case _:
            raise _RefusedError(404, "Not Found")


def _begun_name(gcs: FakeGcs, parameters: Mapping[str, str]) -> str:
    begun = gcs.uploads.get(parameters.get("upload_id", ""))
    return begun[0].parameters.get("name", "") or str(begun[1].get("name", "")) if begun else ""


def _entries(bucket: Bucket, parameters: Mapping[str, str]) -> Iterator[tuple[str, Stored | None]]:
    """List objects by name, and None for each common prefix that a delimiter makes."""
    prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
    held = [*bucket.objects.items(), *(bucket.archived if parameters.get("versions", "").lower() == "true" else [])]
    told = set()
    for name, stored in sorted(held, key=lambda one: (one[0].encode(), one[1].generation)):
        if not name.startswith(prefix):
            continue
        head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        if not found:
            yield name, stored
        elif (folder := prefix + head + delimiter) not in told:
            told.add(folder)
            yield folder, None


def _multipart(request: Request) -> tuple[dict[str, Any], bytes]:
    """Split multipart/related (RFC 2387): the object's properties, then its content."""
    wanted = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
    if wanted is None:
        raise _RefusedError(400, "No boundary")
    _, first, second, _ = request.body.split(b"--" + wanted[1].encode(), 3)
    described, _, properties = first.partition(b"\r\n\r\n")
    described, _, data = second.partition(b"\r\n\r\n")
    kind = re.search(rb"(?i)content-type: *([^\r\n]+)", described)
    default = {"contentType": kind[1].decode()} if kind else {}
    return default | json.loads(properties), data.removesuffix(b"\r\n")


def _media_headers(stored: Stored) -> dict[str, str]:
    sums, encoding = _sums(stored.data), stored.properties.get("contentEncoding", "identity")
    headers = {
        "Content-Type": stored.properties.get("contentType") or "application/octet-stream",
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": f"crc32c={sums['crc32c']},md5={sums['md5Hash']}",
        "X-Goog-Stored-Content-Length": str(len(stored.data)),
        "X-Goog-Stored-Content-Encoding": encoding,
    }
    return headers | ({"Content-Encoding": encoding} if encoding != "identity" else {})


def _sums(data: bytes) -> dict[str, str]:
    crc32c = google_crc32c.value(data).to_bytes(4, "big")
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    return {"crc32c": base64.b64encode(crc32c).decode(), "md5Hash": base64.b64encode(md5).decode()}


def _writable(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if key in _WRITABLE}


def _merged(old: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """JSON merge patch (RFC 7396)."""
    new = dict(old)
    for key, value in change.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            before = new.get(key)
            new[key] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            new[key] = value
    return new


def _check_metadata(properties: Mapping[str, Any]) -> None:
    metadata = properties.get("metadata") or {}
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in metadata.items()) > MAX_METADATA:
        raise _RefusedError(400, "The metadata for this object exceeds 8 KiB.")


def _refusal(status: int, message: str) -> _Reply:
    if status == 304:
        return _Reply(status=304, body=b"")
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global"}]}
    return _Reply(status=status, value={"error": error})
