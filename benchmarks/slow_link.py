"""A proxy to a port of this machine that passes on so many bytes a second each way; it prints its own port.

python -m benchmarks.slow_link PORT BYTES_PER_SECOND
"""

import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.e2e import services

_PIECE = 1 << 16
_BURST = 0.01
"""Seconds of bytes that a link may make up for, as sleeping takes longer than it should."""


class Direction:
    """One direction of a link, shared by all connections."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        """Return when so many bytes have passed."""
        with self._lock:
            self._free = max(self._free, time.monotonic() - _BURST) + size / self._rate
            until = self._free
        time.sleep(max(0, until - time.monotonic()))


def pump(source: socket.socket, target: socket.socket, direction: Direction) -> None:
    """Pass on until the source ends; a connection that breaks ends both."""
    with suppress(OSError):
        while data := source.recv(_PIECE):
            direction.wait(len(data))
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def main() -> None:
    port, rate = int(sys.argv[1]), float(sys.argv[2])
    up, down = Direction(rate), Direction(rate)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        print(f"listening on 127.0.0.1:{server.getsockname()[1]}", flush=True)
        while True:
            client, _ = server.accept()
            registry = socket.create_connection(("127.0.0.1", port))
            for arguments in ((client, registry, up), (registry, client, down)):
                threading.Thread(target=pump, args=arguments, daemon=True).start()


@contextmanager
def slow_link(host: str, rate: float) -> Iterator[str]:
    """Run one to `127.0.0.1:PORT`; yield its own."""
    with tempfile.TemporaryDirectory(prefix="envbuild-link-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "benchmarks.slow_link", host.partition(":")[2], str(rate)]
        with services.running(command, log, lambda: re.search(r"listening on (\S+)\n", log.read_text())) as found:
            yield found[1]


if __name__ == "__main__":
    main()
