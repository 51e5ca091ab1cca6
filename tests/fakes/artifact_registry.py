"""The part of Artifact Registry's REST API that says what a repository is, on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class FakeArtifactRegistry:
    """`with FakeArtifactRegistry() as api: api.url`; fill `api.repositories` by full name."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Any]] = {}
        self.forbidden: set[str] = set()
        """Names that are refused with 403, as for an account without permission."""
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, *, format_: str = "DOCKER", mode: str = "STANDARD_REPOSITORY") -> None:
        """Create the repository `projects/P/locations/L/repositories/R`."""
        self.repositories[name] = {"name": name, "format": format_, "mode": mode}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    api: FakeArtifactRegistry

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""

    def do_GET(self) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix("/v1/")
        self.api.requests.append(name)
        if name in self.api.forbidden:
            self._error(403, "PERMISSION_DENIED", "Permission 'artifactregistry.repositories.get' denied")
        elif name in self.api.repositories:
            self._reply(200, self.api.repositories[name])
        else:
            self._error(404, "NOT_FOUND", "Requested entity was not found.")

    def _error(self, code: int, status: str, message: str) -> None:
        self._reply(code, {"error": {"code": code, "status": status, "message": message}})

    def _reply(self, code: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
