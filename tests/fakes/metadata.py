"""Google Cloud's metadata server on loopback, as the real one and as what else may listen at its address."""

import socket
import threading
from collections.abc import Mapping
from typing import Literal, Self

VALUES = {
    "instance/machine-type": "projects/123456789012/machineTypes/a2-highgpu-1g",
    "instance/zone": "projects/123456789012/zones/europe-west4-a",
    "project/project-id": "example-project",
    "instance/image": "projects/deeplearning-platform-release/global/images/common-cu128-v20261101",
}
Manner = Literal["answers", "closes", "silent", "drips", "redirects", "foreign", "endless", "cuts"]


class MetadataServer:
    """Answers by HTTP and records what it is asked; with other manners it keeps its client waiting or misleads it."""

    def __init__(self, values: Mapping[str, str] = VALUES, manner: Manner = "answers") -> None:
        self.values, self.manner = dict(values), manner
        self.requests: list[str] = []
        """The head of each request."""
        self.left_alone = threading.Event()
        """Set when a client that was kept waiting has gone."""
        self.gave_up = threading.Event()
        """Set when a client has waited for PATIENCE seconds."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.port}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    PATIENCE = 30.0

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def paths(self) -> list[str]:
        return [request.split(" ")[1] for request in self.requests]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone leaves a blocked `accept` behind, which begins again on whatever socket gets the number next.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join(timeout=5)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            try:
                while head := self._read_head(file):
                    self.requests.append(head)
                    if not getattr(self, "_" + self.manner)(connection, head):
                        return
            except OSError:
                self.left_alone.set()

    def _read_head(self, file) -> str:
        lines = []
        while (line := file.readline()) not in (b"", b"\r\n"):
            lines.append(line.decode("latin-1"))
        return "".join(lines)

    def _reply(self, connection: socket.socket, status: str, body: str, *headers: str) -> bool:
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {len(body.encode())}",
            "Server: Metadata Server for VM",
            *headers,
        ]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        return True

    def _answers(self, connection: socket.socket, head: str, *headers: str) -> bool:
        if "\r\nmetadata-flavor: google\r\n" not in head.lower():
            return self._reply(connection, "403 Forbidden", "Missing Metadata-Flavor:Google header.")
        value = self.values.get(head.split(" ")[1].removeprefix("/computeMetadata/v1/"))
        status = "404 Not Found" if value is None else "200 OK"
        return self._reply(
            connection, status, "not found" if value is None else value, "Metadata-Flavor: Google", *headers
        )

    def _closes(self, connection: socket.socket, head: str) -> bool:
        self._answers(connection, head, "Connection: close")
        return False

    def _cuts(self, connection: socket.socket, head: str) -> bool:
        """Close in the middle of a body."""
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 40\r\n\r\nprojects/1/zones/euro"
        )
        return False

    def _foreign(self, connection: socket.socket, head: str) -> bool:
        return self._reply(connection, "200 OK", self.values["project/project-id"])

    def _redirects(self, connection: socket.socket, head: str) -> bool:
        location = f"Location: http://{self.address}/computeMetadata/v1/elsewhere"
        return self._reply(connection, "302 Found", "", "Metadata-Flavor: Google", location)

    def _silent(self, connection: socket.socket, head: str) -> bool:
        connection.settimeout(self.PATIENCE)
        try:
            if not connection.recv(1):
                self.left_alone.set()
        except TimeoutError:
            self.gave_up.set()
        return False

    def _drips(self, connection: socket.socket, head: str) -> bool:
        """Send a head that is valid as far as it goes, a byte at a time."""
        connection.sendall(b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nX-Padding: ")
        return self._pad(connection, b"x")

    def _endless(self, connection: socket.socket, head: str) -> bool:
        """Send a body without an end, a byte at a time."""
        connection.sendall(b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 4000\r\n\r\n")
        return self._pad(connection, b"x")

    def _pad(self, connection: socket.socket, byte: bytes) -> bool:
        pause, gone = 0.02, threading.Event()
        for _ in range(int(self.PATIENCE / pause)):
            connection.sendall(byte)
            gone.wait(pause)
        self.gave_up.set()
        return False
