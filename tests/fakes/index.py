"""A package index on a loopback port: simple pages in HTML, in JSON where files have a date, and wheel files with ranges, and the faults that real ones have."""

import base64
import html
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from packaging.utils import canonicalize_name

from tests.fakes.wheels import FakeWheel

_STALL_SECONDS = 60.0
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one answer."""

    status: int | None = None
    """Answer this and no content."""
    headers: tuple[tuple[str, str], ...] = ()
    cut: int | None = None
    """Close the connection after so many bytes of content."""
    stall: bool = False
    """Send the head and half of the content, then nothing until the server stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass(slots=True)
class FakeIndex:
    """The state of the index; change it while it serves."""

    pages: dict[str, list[str]] = field(default_factory=dict)
    """The anchors of each project's page."""
    dated: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """The files of each project that say when they were uploaded, which only JSON has (PEP 700)."""
    files: dict[str, bytes] = field(default_factory=dict)
    shown: dict[str, bytes] = field(default_factory=dict)
    """What ranges of a file are cut from, where the index lies about it."""
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    """For each path, what goes wrong with the next answers, in this order."""
    requests: list[Request] = field(default_factory=list)
    credentials: tuple[str, str] | None = None
    """User and password that every request must bring."""
    query: str = ""
    """The query that every request must bring."""
    head: bool = True
    """False: HEAD is refused with 405."""
    ranges: bool = True
    """False: ranges are ignored."""
    stopping: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    host: str = "127.0.0.1"
    scheme: str = "http"

    @property
    def root(self) -> str:
        """The server's address, without credentials."""
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address that pip and uv are given, with credentials where they are needed."""
        userinfo = "{}:{}@".format(*self.credentials) if self.credentials else ""
        return f"{self.scheme}://{userinfo}{self.host}:{self.port}/simple"

    def file_url(self, filename: str) -> str:
        """Where a file lies, without credentials."""
        return f"{self.root}/files/{filename}"

    def add(
        self,
        *wheels: FakeWheel,
        requires_python: str | None = None,
        hashed: bool = True,
        yanked: str | None = None,
        uploaded: str | None = None,
    ) -> None:
        """Serve wheels (or sdists: any file name) under the project that their name begins with."""
        for wheel in wheels:
            project = canonicalize_name(wheel.filename.removesuffix(".tar.gz").split("-")[0])
            fragment = f"#sha256={wheel.sha256}" if hashed else ""
            needs = f' data-requires-python="{html.escape(requires_python)}"' if requires_python else ""
            needs += f' data-yanked="{html.escape(yanked)}"' if yanked is not None else ""
            anchor = f'<a href="../../files/{wheel.filename}{fragment}"{needs}>{wheel.filename}</a>'
            self.pages.setdefault(project, []).append(anchor)
            self.files[wheel.filename] = wheel.data
            if uploaded:
                url, hashes = f"../../files/{wheel.filename}", {"sha256": wheel.sha256}
                entry: dict[str, object] = {
                    "filename": wheel.filename,
                    "url": url,
                    "hashes": hashes,
                    "upload-time": uploaded,
                }
                self.dated.setdefault(project, []).append(entry)

    def fail(self, path: str, *faults: Fault) -> None:
        """Let the next answers for `path` go wrong."""
        self.faults.setdefault(path, deque()).extend(faults)

    def content(self, path: str, *, part: bool = False, accept: str = "") -> tuple[str, bytes] | None:
        """The media type and bytes that lie at a path; of a file, those that a part is cut from."""
        folder, _, name = path.strip("/").partition("/")
        if folder == "files" and name in self.files:
            return "application/octet-stream", self.shown.get(name, self.files[name]) if part else self.files[name]
        if folder == "simple" and name in self.dated and _JSON in accept:
            page = {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": self.dated[name]}
            return _JSON, json.dumps(page).encode()
        if folder == "simple" and name in self.pages:
            body = "<br>\n".join(self.pages[name])
            return "text/html", f"<!DOCTYPE html><html><body>\n{body}\n</body></html>".encode()
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: FakeIndex

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def do_HEAD(self) -> None:
        if self.index.head:
            self._answer(body=False)
        else:
            self._refuse(405)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        headers = self.headers
        self.index.requests.append(
            Request(method=self.command, path=path, range=headers["Range"], authorization=headers["Authorization"])
        )
        waiting = self.index.faults.get(path)
        fault = waiting.popleft() if waiting else Fault()
        found = self.index.content(path, part="Range" in headers, accept=headers["Accept"] or "")
        if not self._admitted():
            self._refuse(401, (("WWW-Authenticate", 'Basic realm="index"'),))
        elif fault.status is not None:
            self._refuse(fault.status, fault.headers)
        elif found is None:
            self._refuse(404)
        else:
            self._send(*found, fault, body=body)

    def _admitted(self) -> bool:
        if self.index.query and self.path.partition("?")[2] != self.index.query:
            return False
        if self.index.credentials is None:
            return True
        wanted = base64.b64encode(":".join(self.index.credentials).encode()).decode()
        return self.headers["Authorization"] == f"Basic {wanted}"

    def _refuse(self, status: int, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def _send(self, media_type: str, data: bytes, fault: Fault, *, body: bool) -> None:
        first, last = self._range(len(data))
        part = data[first : last + 1]
        self.send_response(206 if len(part) < len(data) else 200)
        if len(part) < len(data):
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self._write(part, fault)

    def _range(self, size: int) -> tuple[int, int]:
        """The first and last byte that are asked for; one range of each sort is understood, as real servers do."""
        asked = (self.headers["Range"] or "").removeprefix("bytes=")
        first, _, last = asked.partition("-")
        if self.index.ranges and not first and last.isdigit():
            return max(0, size - int(last)), size - 1
        if not self.index.ranges or not first.isdigit() or int(first) >= size:
            return 0, size - 1
        return int(first), min(int(last), size - 1) if last else size - 1

    def _write(self, part: bytes, fault: Fault) -> None:
        if fault.stall:
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            self.index.stopping.wait(_STALL_SECONDS)
        else:
            self.wfile.write(part if fault.cut is None else part[: fault.cut])
        if fault.stall or fault.cut is not None:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up is what some tests are about."""


@contextmanager
def serving(*wheels: FakeWheel, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[FakeIndex]:
    """Serve these wheels until the block ends; on another address containers reach it too."""
    index = FakeIndex(host=host, scheme="https" if tls else "http")
    index.add(*wheels)
    server = _Server((host, 0), type("Handler", (_Handler,), {"index": index}))
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    index.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def closed_port() -> int:
    """A port of this machine that refuses connections."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_port


def wait_until(true: object, seconds: float = 5.0) -> None:
    """Wait until a condition (a function of nothing) holds; AssertionError when it does not in time."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
