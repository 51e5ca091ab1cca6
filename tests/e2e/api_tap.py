"""A tap on an engine's socket: all that clients send is passed on, and kept to be read."""

import json
import socket as sockets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


@dataclass(slots=True)
class Tap:
    """What clients sent, by connection, and what a test does with it."""

    socket: Path
    """Anybody may connect to it."""
    engine: Path
    before: dict[bytes, Callable[[], object]] = field(default_factory=dict)
    """What is done before a request is passed on whose first line has these bytes."""
    _sent: list[bytearray] = field(default_factory=list)
    _open: list[sockets.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _gone: bool = False

    def created(self) -> list[dict[str, Any]]:
        """What containers were to be like, in the order in which they were asked for."""
        found = []
        for sent in self._sent:
            for request in bytes(sent).split(b"POST ")[1:]:
                head, _, body = request.partition(b"\r\n\r\n")
                if b"/containers/create" in head.split(b"\r\n")[0]:
                    found.append(json.JSONDecoder().raw_decode(body.decode())[0])
        return found

    def cut(self) -> None:
        """Take the engine away: whatever is open ends, and nobody answers any more."""
        self.socket.unlink()
        with self._lock:
            self._gone = True
            for it in self._open:
                with suppress(OSError):
                    it.shutdown(sockets.SHUT_RDWR)

    def serve(self, listening: sockets.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                engine = sockets.socket(sockets.AF_UNIX)
                engine.connect(str(self.engine))
                sent = bytearray()
                with self._lock:
                    self._sent.append(sent)
                    self._open += [client, engine]
                    gone = self._gone
                if gone:  # it had asked to be let in before the socket's name was removed
                    client.close()
                    engine.close()
                    continue
                threading.Thread(target=self._copy, args=(client, engine, sent), daemon=True).start()
                threading.Thread(target=self._copy, args=(engine, client, None), daemon=True).start()

    def _copy(self, source: sockets.socket, target: sockets.socket, sent: bytearray | None) -> None:
        try:
            while data := source.recv(_CHUNK):
                if sent is not None:
                    sent += data
                    self._act(data.split(b"\r\n")[0])
                target.sendall(data)
        except OSError:  # the receiver is gone, so that the sender must not wait for it
            with suppress(OSError):
                source.shutdown(sockets.SHUT_RDWR)
        with suppress(OSError):
            target.shutdown(sockets.SHUT_WR)

    def _act(self, line: bytes) -> None:
        for part in [it for it in self.before if it in line]:
            self.before.pop(part)()

    def close(self) -> None:
        with self._lock:
            for it in self._open:
                it.close()


@contextmanager
def tapped(engine: Path, folder: Path) -> Iterator[Tap]:
    """Listen in a folder, which gets open to all, for an engine's clients."""
    folder.chmod(0o755)
    tap = Tap(folder / "engine.sock", engine)
    with sockets.socket(sockets.AF_UNIX) as listening:
        listening.bind(str(tap.socket))
        tap.socket.chmod(0o666)
        listening.listen()
        thread = threading.Thread(target=tap.serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield tap
        finally:
            listening.shutdown(sockets.SHUT_RDWR)
            thread.join()
            tap.close()
