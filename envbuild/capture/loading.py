"""Importing what the run imported, so that its shared libraries are there to be recorded."""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import contextmanager
from typing import Iterable, Iterator

from envbuild.capture.output import say
from envbuild.capture.redact import scrub

MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_modules(names: Iterable[str]) -> list[str]:
    """Import modules; return a sentence for each that failed, told on stderr too. ValueError for what is no name."""
    wanted = list(names)
    for name in wanted:
        if not MODULE.fullmatch(name):
            raise ValueError("load: %r is no name of a module" % name)
    failed = [sentence for sentence in map(_load, wanted) if sentence]
    for sentence in failed:
        say("warning: %s" % sentence)
    return failed


def _load(name: str) -> str | None:
    try:
        with _folder_kept(), _stdout_aside():
            importlib.import_module(name)
    except (Exception, SystemExit) as error:
        reason = " ".join(scrub("%s: %s" % (type(error).__name__, error)).split())
        return "%s could not be loaded: %s" % (name, reason)
    return None


@contextmanager
def _folder_kept() -> Iterator[None]:
    """Come back to the working folder, which the paths of all options are relative to."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    try:
        yield
    finally:
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)


@contextmanager
def _stdout_aside() -> Iterator[None]:
    """Send to stderr what imports print, from C as well: stdout is the manifest's."""
    stdout = _moved(1, 2)
    try:
        yield
    finally:
        if stdout is not None:
            sys.stdout.flush()
            os.dup2(stdout, 1)
            os.close(stdout)


def _moved(number: int, target: int) -> int | None:
    """Make a descriptor the same as another; return a copy of what it was, None where either is closed."""
    try:
        sys.stdout.flush()
        copy = os.dup(number)
        os.dup2(target, number)
    except (OSError, AttributeError, ValueError):
        return None
    return copy
