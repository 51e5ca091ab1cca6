"""What all fakes have that speak HTTP: a port of this machine, a thread for each connection, and no output."""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_ADDRESS = "127.0.0.1"
_POLL = 0.02
"""Seconds until a server that is to stop notices."""


class WebHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, which stays open."""

    protocol_version = "HTTP/1.1"
    # A reply goes out in one piece: two small ones would wait for the client's delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""

    def handle(self) -> None:
        """Clients may hang up whenever they want."""
        with suppress(ConnectionError):
            super().handle()


class WebServer:
    """Answers within its `with` block; its address is known from when it listens."""

    def listen(self, handler: type[WebHandler], **attributes: Any) -> None:
        """Take a free port; each handler gets these attributes."""
        self._server = ThreadingHTTPServer((_ADDRESS, 0), type("Handler", (handler,), attributes))
        self._server.daemon_threads = True
        self.host = f"{_ADDRESS}:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(_POLL,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
