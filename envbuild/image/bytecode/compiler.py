"""Compiling on all cores, in processes of the base's own interpreter.

A compiler runs no code of what it compiles, but a source may be made to take all time and memory there is. So the
interpreters have limits, which no honest source comes near: what meets one has no bytecode, and is named.
"""

import os
import queue
import resource
import select
import signal
import subprocess
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from envbuild.errors import BuildError
from envbuild.image.bytecode import child
from envbuild.image.bytecode.interpreter import Interpreter, environment

CORES = os.cpu_count() or 1
LARGEST = 16 << 20
"""Bytes of source: larger ones are given up, as the limits below would not do for them."""
_SECONDS = 120
"""Of a processor's time, for one source."""
_LIMITS = {
    resource.RLIMIT_AS: 3 << 30,
    resource.RLIMIT_CPU: _SECONDS,
    resource.RLIMIT_STACK: 8 << 20,  # how deep a source may nest depends on it
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
}
_SILENCE = 900.0
"""Seconds on the clock, after which a process is not only slow."""
_MOST = 10_000
"""Files that one process forks for: its own time counts, too."""
PROGRAM = Path(child.__file__)


class Failure(Enum):
    """Why a source has no bytecode."""

    REFUSED = "does not compile"
    """As importing it would say, too: Python 2, templates, test data."""
    GAVE_UP = "meets a limit on time or memory"


class Compiler:
    """Processes that compile, each for one thread at a time; they start when they are needed."""

    def __init__(self, interpreter: Interpreter, processes: int = CORES) -> None:
        self._interpreter = interpreter
        self._idle = queue.LifoQueue[_Process | None]()
        for _ in range(processes):
            self._idle.put(None)
        self.processes = processes
        self.cache_tag = interpreter.build.cache_tag

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while not self._idle.empty():
            process = self._idle.get()
            if process:
                process.close()

    def compile(self, path: str, source: bytes) -> bytes | Failure:
        """Return the bytecode file for a source that will lie at `path`; from any thread.

        BuildError when the interpreter does not work.
        """
        process = self._idle.get()
        usable = False
        try:
            process = process or _Process(self._interpreter)
            mark, data = process.ask(path.encode(), source)
            usable = mark != child.DIED and process.asked < _MOST
        except OSError as error:
            todo = "build with --no-bytecode"
            raise BuildError(f"the base's interpreter failed: {error}", where=path, todo=todo) from error
        finally:
            if process is not None and not usable:
                process.close()
            self._idle.put(process if usable else None)
        return data if mark == child.COMPILED else _FAILURES.get(mark, Failure.GAVE_UP)


_FAILURES = {child.REFUSED: Failure.REFUSED, child.DIED: Failure.GAVE_UP}


class _Process:
    def __init__(self, interpreter: Interpreter) -> None:
        self.asked = 0
        self._process = subprocess.Popen(
            interpreter.start(PROGRAM.read_text()),
            env=environment(interpreter.home),
            cwd="/",
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._in, self._out = _unblocked(self._process.stdin), _unblocked(self._process.stdout)
        for limit, most in _LIMITS.items():
            with suppress(ProcessLookupError):  # it has ended; asking it will say so
                self._lower(limit, most)

    def _lower(self, limit: int, most: int) -> None:
        _, hard = resource.prlimit(self._process.pid, limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(self._process.pid, limit, (most, most))

    def ask(self, path: bytes, source: bytes) -> tuple[bytes, bytes]:
        """Send a source, and return a mark and the bytecode; OSError when the process does not answer."""
        started = b"" if self.asked else b"\0"
        self.asked += 1
        lengths = len(path).to_bytes(4, "little") + len(source).to_bytes(4, "little")
        self._send(started + lengths + path + source)
        head = self._receive(5)
        return head[:1], self._receive(int.from_bytes(head[1:], "little"))

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._in, select.POLLOUT)
            rest = rest[os.write(self._in, rest) :]

    def _receive(self, size: int) -> bytes:
        pieces = []
        while size:
            _wait(self._out, select.POLLIN)
            piece = os.read(self._out, size)
            if not piece:
                raise ConnectionError("it ended")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """End the process and what it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipes, and waits
            pass


def _unblocked(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _wait(pipe: int, event: int) -> None:
    """Wait until a pipe can be used, or has no other end any more."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(_SILENCE * 1000):
        raise TimeoutError(f"it is silent for {_SILENCE:.0f} seconds")
