"""Cloud Storage's JSON API on loopback: generations, preconditions and permissions as the real one has them.

It behaves as Google's storage-testbench does, and refuses what only the real one refuses: more than 8 KiB of custom
metadata, other content for what is held or retained, who does not pay for a bucket whose requesters have to, changes of
one object that come too fast, access lists where access is uniform.
"""

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import google_crc32c

from tests.fakes.gcs_bucket import Bucket, RefusedError, Stored
from tests.fakes.web import WebHandler, WebServer

MAX_METADATA = 8 * 1024
_PATH = re.compile(
    r"(?:/~(?P<client>\w+))?/(?:(?P<kind>upload|download)/)?storage/v1/b/(?P<bucket>[^/]+)"
    r"(?:/o(?:/(?P<name>[^/]+)(?:/copyTo/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+))?)?)?/?\Z"
)
_WRITABLE = frozenset({
    "metadata", "contentType", "contentEncoding", "cacheControl", "contentDisposition", "contentLanguage", "customTime",
    "storageClass", "temporaryHold", "eventBasedHold", "retention", "contexts",
})  # fmt: skip
_PROTECTIONS = frozenset({"temporaryHold", "eventBasedHold", "retention"})
"""What a copy begins without."""
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


Kind = Literal["status", "drop", "reset", "lost", "late", "half", "stall", "call"]


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong, for the next `times` requests that it fits."""

    operation: str
    """bucket, list, get, media, insert, resume, patch, update, delete or copy."""
    name: str = ""
    """A regular expression, searched in the object's name."""
    kind: Kind = "status"
    """`status`: answer so instead; `drop`: close the connection, do nothing; `reset`: the same, rudely; `lost`: do it,
    then close without a reply; `late`: close, and do it in `apply_late`; `half`: close in the middle of the reply's
    body; `stall`: do not answer; `call`: run `call`, then go on."""
    times: int = 1
    client: str = ""
    """Only requests of this client; of all where it is empty."""
    after: int = 0
    """How many requests that it fits pass first."""
    status: int = 503
    message: str = ""
    """What a `status` says besides."""
    call: Callable[[], object] | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it came in."""

    operation: str
    bucket: str
    name: str
    client: str = ""
    """From an address with `/~NAME` at its end, for which see `url_of`."""
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class FakeGcs(WebServer):
    """`with FakeGcs() as gcs:`, and STORAGE_EMULATOR_HOST set to `gcs.url`."""

    def __init__(self, handler: type[WebHandler] | None = None) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, tuple[Request, dict[str, Any], bytearray]] = {}
        """Resumable uploads: how they began, the object's properties, what came so far."""
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.met: list[Fault] = []
        """Which faults came about, one for each time."""
        self.late: list[Request] = []
        """Requests that are still under way though nobody waits for the answer any more."""
        self.gate: Callable[[Request], bool] = lambda request: True
        """Called as each request comes in, and may keep it waiting; one for which it is false is hung up on."""
        self.lock = threading.RLock()
        self.released = threading.Event()
        self.listen(handler or _Handler, gcs=self)

    def __exit__(self, *_: object) -> None:
        self.released.set()
        super().__exit__()

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; it is made when there is none."""
        return self.buckets.setdefault(name, Bucket())

    create_bucket = bucket

    def url_of(self, client: str) -> str:
        """Return the address that tells one client's requests from another's."""
        return f"{self.url}/~{client}" if client else self.url

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

    def apply_late(self) -> None:
        """Do what came `late`; the conditions of a request are checked now, and nobody gets an answer."""
        with self.lock:
            late, self.late = self.late, []
            for request in late:
                with suppress(RefusedError):
                    _Service(self, request).answer()

    def seen(self, operation: str, name: str = "") -> list[Request]:
        """The requests of one kind whose object's name fits the regular expression, in order."""
        return [one for one in self.requests if one.operation == operation and re.search(name, one.name)]

    def fault(self, request: Request) -> Fault | None:
        """Take the next fault that fits."""
        with self.lock:
            for fault in self.faults:
                if not _fits(fault, request):
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                self.met.append(fault)
                return fault
        return None


def _fits(fault: Fault, request: Request) -> bool:
    wanted = fault.client in {"", request.client} and fault.operation == request.operation
    return wanted and fault.times > 0 and re.search(fault.name, request.name) is not None


@dataclass(frozen=True, kw_only=True)
class _Reply:
    status: int = 200
    value: Any = None
    """Sent as JSON, unless there is a `body`."""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class _Handler(WebHandler):
    gcs: FakeGcs

    def _handle(self) -> None:
        fault: Fault | None = None
        try:
            request = self._request()
            if not self.gcs.gate(request):
                return self._hang_up()
            self.gcs.requests.append(request)
            fault = self.gcs.fault(request)
            if fault and self._stopped(fault, request):
                return None
            with self.gcs.lock:
                reply = _Service(self.gcs, request).answer()
        except RefusedError as refused:
            reply = _refusal(refused.status, str(refused), refused.reason)
        if fault and fault.kind == "lost":
            return self._hang_up()
        return self._send(reply, half=bool(fault and fault.kind == "half"))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _request(self) -> Request:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match = _PATH.match(url.path)
        if match is None:
            raise RefusedError(404, "Not Found")
        parameters = dict(parse_qsl(url.query, keep_blank_values=True))
        name = unquote(match["name"] or "")
        if match["to_name"]:
            parameters |= {"to_bucket": unquote(match["to_bucket"]), "to_name": unquote(match["to_name"])}
        return Request(
            operation=_operation(self.command, match, parameters),
            bucket=unquote(match["bucket"]),
            name=name or parameters.get("name", "") or _begun_name(self.gcs, parameters),
            client=match["client"] or "",
            parameters=parameters,
            headers={key.lower(): value for key, value in self.headers.items()},
            body=body,
        )

    def _stopped(self, fault: Fault, request: Request) -> bool:
        """Do what a fault wants before the request is looked at; True when that was all."""
        match fault.kind:
            case "status":
                self._send(_refusal(fault.status, fault.message))
            case "drop":
                self._hang_up()
            case "reset":
                self._reset()
            case "late":
                self.gcs.late.append(request)
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
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _reset(self) -> None:
        """Close with a reset instead of an end, which is what a socket without linger does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())

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
            raise RefusedError(404, "The specified bucket does not exist.", "notFound")
        bucket.check_payer(
            self.request.parameters.get("userProject") or self.request.headers.get("x-goog-user-project")
        )
        bucket.check_permission(_PERMISSIONS[self.request.operation])
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
            raise RefusedError(416, "Requested range not satisfiable")
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
                here = self.gcs.url_of(self.request.client)
                where = f"{here}/upload/storage/v1/b/{self.request.bucket}/o?{query}"
                return _Reply(body=b"", headers={"Location": where})
            case _:
                properties = {"contentType": self.request.headers.get("content-type", "")}
                return self._store(bucket, self._named(properties), properties, self.request.body)

    def resume(self, bucket: Bucket) -> _Reply:
        begun = self.gcs.uploads.get(self.request.parameters["upload_id"])
        wanted = re.match(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.request.headers.get("content-range", ""))
        if begun is None or wanted is None:
            raise RefusedError(404, "No such upload")
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
        stored = self._existing(bucket)
        self._check(stored, reading=False)
        bucket.check_removable(f"{self.request.bucket}/{self.request.name}", stored)
        bucket.check_rate(f"{self.request.bucket}/{self.request.name}")
        if "generation" in self.request.parameters:
            bucket.remove_generation(self.request.name, stored.generation)
        else:
            bucket.remove(self.request.name)
        return _Reply(status=204, body=b"")

    def copy(self, bucket: Bucket) -> _Reply:
        stored, parameters = self._existing(bucket), self.request.parameters
        target = self.gcs.buckets.get(parameters["to_bucket"])
        if target is None:
            raise RefusedError(404, "The specified bucket does not exist.")
        target.check_permission("storage.objects.create")
        there = target.objects.get(parameters["to_name"])
        self._check(there, reading=False)
        target.check_removable(f"{parameters['to_bucket']}/{parameters['to_name']}", there)
        kept = {key: value for key, value in stored.properties.items() if key not in _PROTECTIONS}
        made = target.put(parameters["to_name"], stored.data, **{**kept, **_writable(self._json())})
        return _Reply(value=self._resource(parameters["to_name"], made, parameters["to_bucket"]))

    def _existing(self, bucket: Bucket) -> Stored:
        parameters = self.request.parameters
        deleted = parameters.get("softDeleted", "").lower() == "true"
        stored = bucket.find(self.request.name, parameters.get("generation"), deleted=deleted)
        if stored is None:
            # Who may not list is not told either whether there is such an object.
            bucket.check_permission("storage.objects.list")
            raise RefusedError(404, f"No such object: {self.request.bucket}/{self.request.name}")
        return stored

    def _check(self, stored: Stored | None, *, reading: bool) -> None:
        """Check the preconditions; an object that is not there has generation 0."""
        parameters = {key.lower(): value for key, value in self.request.parameters.items()}
        for field_name in ("generation", "metageneration"):
            value = str(getattr(stored, field_name) if stored else 0)
            if parameters.get(f"if{field_name}match", value) != value:
                raise RefusedError(412, "At least one of the pre-conditions you specified did not hold.")
            if parameters.get(f"if{field_name}notmatch") == value:
                raise RefusedError(304 if reading else 412, "Not Modified")

    def _json(self) -> dict[str, Any]:
        value = json.loads(self.request.body or b"{}")
        assert isinstance(value, dict)
        return value

    def _named(self, properties: Mapping[str, Any]) -> str:
        name = self.request.parameters.get("name") or properties.get("name")
        if not name or len(name.encode()) > 1024:
            raise RefusedError(400, "Required object name")
        return str(name)

    def _store(self, bucket: Bucket, name: str, properties: Mapping[str, Any], data: bytes) -> _Reply:
        old = bucket.objects.get(name)
        if old:
            bucket.check_permission("storage.objects.delete")
        self._check(old, reading=False)
        bucket.check_removable(f"{self.request.bucket}/{name}", old)
        for key, value in _sums(data).items():
            if properties.get(key, value) != value:
                raise RefusedError(400, f"Provided {key} does not match the calculated one")
        _check_metadata(properties)
        bucket.check_access({**properties, **self.request.parameters})
        bucket.check_rate(f"{self.request.bucket}/{name}")
        return _Reply(value=self._resource(name, bucket.put(name, data, **_writable(properties))))

    def _change(self, bucket: Bucket, old: Stored, properties: Mapping[str, Any]) -> _Reply:
        self._check(old, reading=False)
        _check_metadata(properties)
        bucket.check_access({**self._json(), **self.request.parameters})
        bucket.check_rate(f"{self.request.bucket}/{self.request.name}")
        new = replace(old, metageneration=old.metageneration + 1, properties=properties)
        bucket.change(self.request.name, new)
        return _Reply(value=self._resource(self.request.name, new))

    def _resource(self, name: str, stored: Stored, bucket: str | None = None) -> dict[str, Any]:
        """The object's resource (JSON API, "Objects")."""
        bucket, client = bucket or self.request.bucket, self.request.client
        here = self.gcs.url_of(client)
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
            "selfLink": f"{here}/storage/v1/{path}",
            "mediaLink": f"{here}/download/storage/v1/{path}?generation={stored.generation}&alt=media",
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
            raise RefusedError(404, "Not Found")


def _begun_name(gcs: FakeGcs, parameters: Mapping[str, str]) -> str:
    begun = gcs.uploads.get(parameters.get("upload_id", ""))
    return begun[0].parameters.get("name", "") or str(begun[1].get("name", "")) if begun else ""


def _entries(bucket: Bucket, parameters: Mapping[str, str]) -> Iterator[tuple[str, Stored | None]]:
    """List objects by name, and None for each common prefix that a delimiter makes."""
    prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
    versions, deleted = (parameters.get(key, "").lower() == "true" for key in ("versions", "softDeleted"))
    held = bucket.held(versions=versions, deleted=deleted)
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
        raise RefusedError(400, "No boundary")
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
        raise RefusedError(400, "The metadata for this object exceeds 8 KiB.")


def _refusal(status: int, message: str, reason: str = "") -> _Reply:
    if status == 304:
        return _Reply(status=304, body=b"")
    one = {"message": message, "domain": "global"} | ({"reason": reason} if reason else {})
    error = {"code": status, "message": message, "errors": [one]}
    return _Reply(status=status, value={"error": error})
