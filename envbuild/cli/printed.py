"""The two streams: stdout, whose loss is an error, and stderr, whose loss is not."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.errors import BuildError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def check_stdout(*, wanted: bool = True) -> None:
    """BuildError where stdout is closed and the result would be lost; ask before the work is done."""
    if wanted and sys.stdout is None:
        todo = "leave it open, or send the result to a file: > FILE"
        raise BuildError("standard output is closed, and the result goes there", todo=todo)


def is_stdout(path: Path) -> bool:
    """Whether a file is the one that stdout goes to."""
    try:
        return path.is_file() and os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def own_streams() -> None:
    """Give this process a stdout whose faults say that they are its own, and a stderr that has none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        was = sys.stdout
        sys.stdout = _text(
            _Result(was.fileno(), "w", closefd=False), was, lines=was.line_buffering or was.write_through
        )
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _text(_Remarks(sys.stderr.fileno(), "w", closefd=False), sys.stderr, lines=True)


def _text(raw: io.FileIO, was: io.TextIOWrapper, *, lines: bool) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), was.encoding, was.errors, line_buffering=lines)


class _Result(io.FileIO):
    """Raises OSError that names it, once: the interpreter tries to write again at its end, and would exit with 120."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            error.filename = "standard output"
            raise


class _Remarks(io.FileIO):
    """Takes everything and keeps what it can: a log on a full disk must not decide what comes of the work."""

    def write(self, data: "ReadableBuffer", /) -> int:
        whole = memoryview(data).nbytes
        try:
            return super().write(data) or whole  # None where it would block
        except OSError:
            return whole
