"""Child processes that end with the code that waits for them."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

_GRACE = 20.0
"""Seconds for a program to clean up."""


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a process group of its own, which ends with the block.

    The group does not receive a terminal's Ctrl-C, so that only this process stops the program, once.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd="/",
        umask=0o022,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                if stream:
                    stream.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
