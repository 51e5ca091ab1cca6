"""A container engine on a socket: the requests of Docker's API that builds need, with answers that tests choose."""

import base64
import json
import socketserver
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import docker

HUB = "docker.io/library/"
"""What engines add to names, and leave out when they say them."""
VERSION = {
    "ApiVersion": "1.41",
    "Os": "linux",
    "Arch": "amd64",
    "Components": [{"Name": "Engine", "Version": "20.10.24"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked of a build or push."""

    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def decoded(self, header: str) -> Any:
        """A header of base64 and JSON."""
        return json.loads(base64.urlsafe_b64decode(self.headers[header]))


@dataclass(slots=True)
class FakeEngine:
    """The state of the engine; change it while it serves."""

    socket: Path
    names: dict[str, str] = field(default_factory=dict)
    """Ids of images by what they are called."""
    images: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    """What the next build or push says."""
    result: str | None = None
    """The id that the next build gives its tag, if it comes to that."""
    dead: bool = False
    """Whether it hangs up on everybody."""
    archive: bytes = b""
    """What is given of any image."""
    version: Mapping[str, Any] = field(default_factory=lambda: VERSION)
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What DOCKER_HOST would be."""
        return f"unix://{self.socket}"

    def identity(self, name: str) -> str | None:
        """The image that a name, an id or the beginning of one means."""
        name = name.removeprefix(HUB)
        whole = name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"
        if found := self.names.get(whole):
            return found
        return next((it for it in self.images if it == name or it.removeprefix("sha256:").startswith(name)), None)

    def tags(self, identity: str) -> list[str]:
        """All names of an image."""
        return [name for name, it in self.names.items() if it == identity]

    def remove(self, name: str) -> None:
        """Take a name away, and the image with its last name."""
        identity = self.identity(name)
        self.names.pop(name.removeprefix(HUB), None)
        if identity and not self.tags(identity):
            self.images.discard(identity)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: FakeEngine

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def address_string(self) -> str:
        return "socket"

    def do_GET(self) -> None:
        path, engine = self._path(), self.engine
        if engine.dead:
            self.close_connection = True
        elif path in ("/_ping", "/version", "/info"):
            self._json(dict(engine.version) if path == "/version" else {})
        elif path == "/images/json":
            self._json([{"Id": it, "RepoTags": engine.tags(it), "Created": 0} for it in sorted(engine.images)])
        elif path == "/containers/json":
            self._json([{"Id": it, "Names": [f"/{it}"]} for it in sorted(engine.containers)])
        elif path.endswith("/get"):
            self._send(200, engine.archive)
        else:
            identity = engine.identity(path.removeprefix("/images/").removesuffix("/json"))
            found: dict[str, Any] = {
                "Id": identity,
                "RepoTags": engine.tags(identity or ""),
                "RepoDigests": [],
                "Config": {},
                "Os": "linux",
                "Architecture": "amd64",
            }
            self._json(found if identity else {"message": "No such image"}, 200 if identity else 404)

    def do_POST(self) -> None:
        path, engine = self._path(), self.engine
        parameters = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        body = self._body()
        if path.endswith("/tag"):
            identity = engine.identity(path.removeprefix("/images/").removesuffix("/tag")) or ""
            engine.names[f"{parameters['repo'].removeprefix(HUB)}:{parameters['tag']}"] = identity
            self._send(201, b"")
            return
        engine.requests.append(Request(path=path, parameters=parameters, headers=dict(self.headers), body=body))
        if path == "/build" and engine.result:
            engine.images.add(engine.result)
            engine.names[parameters["t"]] = engine.result
        with suppress(ConnectionError):  # an engine goes on, whoever hung up
            self._stream(engine.events)

    def do_DELETE(self) -> None:
        kind, _, name = self._path().lstrip("/").partition("/")
        if kind == "containers":
            self.engine.containers.discard(name)
        else:
            self.engine.remove(name)
        self._json([])

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        return "/" + path.split("/", 2)[2] if path.startswith("/v1.") else path

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[Mapping[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            line = json.dumps(event).encode() + b"\r\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")


COMMAND = """#!{python}
import shutil, sys
from pathlib import Path
import docker
folder, arguments = Path({folder!r}), sys.argv[1:]
if arguments[0] == "--version":
    print("Docker version 20.10.24+dfsg1, build 2")
elif arguments[0] == "buildx":
    sys.exit(1)
else:
    (folder / "arguments").write_text("\\n".join(arguments))
    shutil.copytree(arguments[-1], folder / "context")
    print((folder / "said").read_text(), end="")
    if code := int((folder / "code").read_text()):
        sys.exit(code)
    api = docker.APIClient(base_url={url!r})
    api.post(api._url("/build"), params={{"t": arguments[arguments.index("--tag") + 1]}})
"""


def building_command(folder: Path, engine: FakeEngine) -> Path:
    """A docker command in a folder, whose builds give the engine's `result`.

    The folder then has its `arguments` and the `context`; its file `said` is what it prints, `code` its exit code.
    """
    folder.mkdir(exist_ok=True)
    (folder / "docker").write_text(COMMAND.format(python=sys.executable, folder=str(folder), url=engine.url))
    (folder / "docker").chmod(0o755)
    (folder / "said").touch()
    (folder / "code").write_text("0")
    return folder


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up is what some tests are about."""


@contextmanager
def serving_engine() -> Iterator[FakeEngine]:
    """Serve until the block ends."""
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        engine = FakeEngine(Path(folder, "docker.sock"))
        server = _Server(str(engine.socket), type("Handler", (_Handler,), {"engine": engine}))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)


@contextmanager
def client_of(engine: FakeEngine) -> Iterator[docker.DockerClient]:
    """Docker's own library, connected to the engine."""
    client = docker.DockerClient(base_url=engine.url, timeout=10)
    try:
        yield client
    finally:
        client.close()
