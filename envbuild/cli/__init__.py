"""The command line: one file per command.

A command's file imports at its top only what `--help` needs; the stages, and their clients, are imported inside `run`.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""The exit code of what a signal ended."""


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened."""
    # Ctrl-C while commands are imported has nothing to clean up, and must show no traceback.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell started this with `&`
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    from envbuild.cli.commands import run
    from envbuild.cli.console import replace_streams
    from envbuild.retry import raise_again, tune_interpreter

    replace_streams()
    tune_interpreter()
    sys.unraisablehook = raise_again
    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup sees to
            signal.signal(signal.SIGHUP, _interrupt)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` had begun, or after it
        code = INTERRUPTED
    sys.exit(code)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """End at once: an exception could be lost inside an import."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind as Ctrl-C does, so that temporary files vanish."""
    raise KeyboardInterrupt
