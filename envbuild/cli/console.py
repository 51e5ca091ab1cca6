"""The two streams: stdout for the next program, and stderr with progress and messages for people."""

import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.filesize import decimal

from envbuild.report import announcing

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


PLAIN_INTERVAL = 2.0
"""Seconds between two lines of progress off a terminal."""
_MEASURABLE = 0.05
"""Seconds: a shorter transfer has no meaningful rate."""


class PlainConsole:
    """A console off a terminal: the real one takes 40 ms to import."""

    is_terminal = False

    def print(self, text: str, *, style: str | None = None, end: str = "\n") -> None:  # noqa: ARG002 - as a console's
        """Write to stderr, if there is one, at once, so that threads do not mix their lines."""
        if sys.stderr is not None:
            sys.stderr.write(text + end)
            sys.stderr.flush()


def err() -> "Console | PlainConsole":
    """Return a console on stderr: no colour under NO_COLOR or off a terminal, no folding, no text read as markup."""
    # By these variables rich takes stderr for a terminal.
    forced = os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE")
    if not forced and not (sys.stderr and sys.stderr.isatty()):
        return PlainConsole()
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Escape what would drive a terminal, except line ends, or the CI system that reads the log: names are anyone's.

    GitHub Actions runs what begins a line with `::`, and `##[...]` anywhere in it (ActionCommand.cs of actions/runner);
    Azure Pipelines and TeamCity run `##vso[...]` and `##teamcity[...]`.
    """
    plain = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    return re.sub(r"#(?=#\w*\[)", r"\\x23", re.sub(r"(?m)^( *):(?=:)", r"\1\\x3a", plain))


def print_message(text: str) -> None:
    """Print a message on stderr, beside the output of a command that runs."""
    err().print(printable(text))


def one_line(text: str) -> str:
    """Escape what would drive a terminal, and line ends."""
    return printable(text).replace("\n", "\\n")


class Progress:
    """Shows progress, from any thread: bars with bytes and rate on a terminal, else a line now and then.

    Use it as a context manager, so that the terminal is whole again when an error is printed.
    """

    def __init__(
        self, console: "Console | PlainConsole | None" = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or err()
        self._clock = clock
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}
        self._shown: frozenset[str] = frozenset()
        self._last_line = -PLAIN_INTERVAL
        self._over = False

    def __enter__(self) -> Self:
        self._announcing = announcing(self.note)
        self._announcing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._announcing.__exit__(None, None, None)
        with self._lock:
            if self._bars:
                self._bars.stop()
            self._over = True  # a thread that is still at work must not start new bars

    def step(self, text: str) -> None:
        """Print the name of a stage."""
        self._print(text, "bold")

    def note(self, text: str) -> None:
        """Print a decision or a detail of the stage."""
        self._print(f"  {text}", None)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._print(f"warning: {text}", "yellow")

    def progress(self, label: str, done: int, total: int | None) -> None:
        """Show `done` of `total` bytes under `label`; the total may be unknown."""
        with self._lock:
            if self._over:
                return
            if isinstance(self._console, PlainConsole) or not self._console.is_terminal:
                self._line(printable(label), done, total)
            else:
                self._bar(self._console, printable(label), done, total)

    def _print(self, text: str, style: str | None) -> None:
        self._console.print(printable(text), style=style)

    def _bar(self, console: "Console", label: str, done: int, total: int | None) -> None:
        if self._bars is None:
            self._bars = _started_bars(console)
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)
        if total is not None and done >= total:
            self._bars.remove_task(self._tasks.pop(label))

    def _line(self, label: str, done: int, total: int | None) -> None:
        now = self._clock()
        began = self._began.setdefault(label, now)
        ended = total is not None and done >= total
        if ended:
            del self._began[label]
        if now - self._last_line < PLAIN_INTERVAL and not (ended and label in self._shown):
            return
        self._last_line = now
        self._shown = self._shown - {label} if ended else self._shown | {label}
        of = f" of {decimal(total)}" if total is not None else ""
        rate = f", {decimal(int(done / (now - began)))}/s" if now - began >= _MEASURABLE else ""
        self._console.print(f"  {label}: {decimal(done)}{of}{rate}")


def _started_bars(console: "Console") -> "Bars":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    text = TextColumn("  {task.description}", markup=False)
    bars = Progress(text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console, transient=True)
    bars.start()
    return bars


def replace_streams() -> None:
    """Give this process a stdout whose errors name it, and a stderr that has none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        lines = sys.stdout.line_buffering or sys.stdout.write_through
        sys.stdout = _text_stream(_Stdout(sys.stdout.fileno(), "w", closefd=False), sys.stdout, lines=lines)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _text_stream(_Stderr(sys.stderr.fileno(), "w", closefd=False), sys.stderr, lines=True)


def _text_stream(raw: io.FileIO, like: io.TextIOWrapper, *, lines: bool) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=lines)


class _Stdout(io.FileIO):
    """Raises OSError that names it, once: the interpreter tries to write again at its end, and would exit with 120."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            error.filename = "standard output"
            raise


class _Stderr(io.FileIO):
    """Ignores errors: a log on a full disk must not decide the result."""

    def write(self, data: "ReadableBuffer", /) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size  # None where it would block
        except OSError:
            return size
