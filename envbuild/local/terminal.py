"""The terminal, the streams and the signals of this process, for a container that stands in for it."""

import os
import select
import signal
import socket as sockets
import struct
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import FrameType
from typing import Any

from envbuild.errors import BuildError

STDIN, STDOUT, STDERR = 0, 1, 2
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_CHUNK = 1 << 16
_HEADER = struct.Struct(">BxxxL")
"""The stream and the length of a frame (Docker Engine API, ContainerAttach, "Stream format")."""


class OutputClosed(Exception):  # noqa: N818 - for a reader like `head` it is no error
    """Nobody reads stdout or stderr any more, or it cannot be written; the argument is the system's word for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A connection to a container's streams, whatever carries it."""

    read: Callable[[int], bytes]
    """What has come, up to so many bytes; nothing at its end."""
    write: Callable[[bytes], object]
    end: Callable[[], object]
    """Say that nothing more is written; what is read goes on."""
    close: Callable[[], object]


def wire_of(attached: Any) -> Wire:
    """Take what docker-py's `attach_socket` gives: a socket with TLS, or one that is inside a file."""
    socket = getattr(attached, "_sock", attached)
    socket.settimeout(None)
    # what owns the connection is kept there by docker-py
    close = getattr(attached, "_response", attached).close
    return Wire(read=socket.recv, write=socket.sendall, end=lambda: _end(socket), close=close)


def _end(socket: sockets.socket) -> None:
    """Close one direction; on a copy, as a TLS socket would forget its keys, and what is read still needs them."""
    with sockets.fromfd(socket.fileno(), socket.family, socket.type) as copy, suppress(OSError):
        copy.shutdown(sockets.SHUT_WR)


def terminal_size() -> tuple[int, int] | None:
    """Rows and columns, if stdin and stdout are a terminal that this process may read."""
    with suppress(OSError):
        if os.isatty(STDIN) and os.isatty(STDOUT) and has_input():
            size = os.get_terminal_size(STDOUT)
            return size.lines, size.columns
    return None


def has_input() -> bool:
    """Whether stdin may be read: a job in the background would be stopped for reading the terminal."""
    if sys.stdin is None:
        return False
    with suppress(OSError):  # of a terminal that is not the one which could stop it
        return not os.isatty(STDIN) or os.tcgetpgrp(STDIN) == os.getpgrp()
    return True


@contextmanager
def raw_terminal(*, wanted: bool) -> Iterator[None]:
    """Hand every key through as it is, to the terminal in the container; in the end all is as it was."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSANOW)  # what was typed ahead is for the container
        yield
    finally:
        with suppress(termios.error):  # it may be gone
            termios.tcsetattr(STDIN, termios.TCSANOW, before)


def send_input(wire: Wire, stop: int) -> None:
    """Send stdin until it ends, or nobody takes it, or the other end of `stop` is closed, which is closed here then."""
    with suppress(OSError):  # of a stdin that is closed or hung up, and of a container that has ended
        while stop not in select.select([STDIN, stop], [], [])[0] and (data := os.read(STDIN, _CHUNK)):
            wire.write(data)
    os.close(stop)
    with suppress(OSError):
        wire.end()


def show_output(wire: Wire, *, terminal: bool) -> None:
    """Write what comes to stdout and stderr until it ends; OutputClosed when that cannot be written any more."""
    for stream, data in _whole(wire) if terminal else _frames(wire):
        if stream != STDERR:
            _write(STDOUT, data)
        elif sys.stderr is not None:
            _write(STDERR, data)


def drop_output(wire: Wire) -> None:
    """Read on until it ends: an engine ends no container while somebody has yet to take what that printed."""
    while _read(wire, _CHUNK):
        pass


def check_output() -> None:
    """BuildError where stdout was closed from the start: its number may since be a connection of this process."""
    if sys.stdout is None:
        todo = "leave it open, or send it somewhere: > FILE, > /dev/null"
        raise BuildError("standard output is closed, and what the command prints goes there", todo=todo)


def _whole(wire: Wire) -> Iterator[tuple[int, bytes]]:
    while data := _read(wire, _CHUNK):
        yield STDOUT, data


def _frames(wire: Wire) -> Iterator[tuple[int, bytes]]:
    while len(header := b"".join(_exactly(wire, _HEADER.size))) == _HEADER.size:
        stream, length = _HEADER.unpack(header)
        for data in _exactly(wire, length):
            yield stream, data


def _exactly(wire: Wire, length: int) -> Iterator[bytes]:
    """Parts of this length together, or of less where it ends before."""
    while length and (data := _read(wire, min(length, _CHUNK))):
        length -= len(data)
        yield data


def _read(wire: Wire, size: int) -> bytes:
    """What came; nothing when an engine is gone, which is told by who waits for the container."""
    try:
        return wire.read(size)
    except OSError:
        return b""


def _write(target: int, data: bytes) -> None:
    """Write all of it; what another program made non-blocking is waited for."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            select.select([], [target], [])
        except OSError as error:
            raise OutputClosed(error.strerror) from error


@dataclass(slots=True)
class Caught:
    """Signals that came for the container."""

    numbers: SimpleQueue[int] = field(default_factory=SimpleQueue)
    first: int | None = None
    """The first that would have ended it."""
    heeded: bool = False
    """Whether somebody passes them on by now."""

    def take(self, number: int, _frame: FrameType | None) -> None:
        if number in PASSED_ON:
            if self.first is not None and not self.heeded:  # an engine that does not answer is not waited for twice
                raise KeyboardInterrupt
            self.first = self.first or number
        self.numbers.put(number)


@contextmanager
def caught_signals() -> Iterator[Caught]:
    """Keep signals for the container until the block ends, but for those that nohup or a script's `&` had ignored."""
    caught = Caught()
    heard = threading.current_thread() is threading.main_thread()  # no other may say what signals do
    numbers = (*PASSED_ON, signal.SIGWINCH) if heard else ()
    before = {number: it for number in numbers if (it := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, caught.take)
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
