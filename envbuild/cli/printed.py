"""What goes to stdout, which may be closed."""

import sys

from envbuild.errors import BuildError


def check_stdout(*, wanted: bool = True) -> None:
    """BuildError where stdout is closed and the result would be lost; ask before the work is done."""
    if wanted and sys.stdout is None:
        todo = "leave it open, or send the result to a file: > FILE"
        raise BuildError("standard output is closed, and the result goes there", todo=todo)
