"""Import modules one after the other, and write what came of each: `program.py --out FILE`, beside `modules.json`.

One file that any environment's Python from 3.7 on runs alone. Each module gets a line of JSON before it is imported and
one after, so that of a process that ended it is known where. A FILE of `-` is stdout, which the modules do not get.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slower to load, and enough is
LONGEST = 500
CAUSES = 20


def main() -> None:
    """Import what is asked for, whatever each of them raises."""
    with open(os.path.join(HERE, "modules.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        modules = json.load(file)
    sys.path[:] = [path for path in sys.path if path != HERE]
    os.environ["HOME"] = "/tmp"  # noqa: S108 - what is written at the first import has to go somewhere
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    out = sys.argv[sys.argv.index("--out") + 1]
    descriptor = os.dup(1) if out == "-" else os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(2, 1)
    for module in modules:
        write(descriptor, {"begins": module})
        write(descriptor, {"module": module, "error": error_of(module)})
    os._exit(0)  # what modules do at the end of a process is no part of importing them


def write(descriptor: int, value: Any) -> None:
    """Write a line."""
    os.write(descriptor, json.dumps(value).encode() + b"\n")


def error_of(module: str) -> dict[str, Any] | None:
    """Import a module; what it raised, or None."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - modules fail in any way
        return described(error)
    return None


def described(error: BaseException) -> dict[str, Any]:
    """The packages that were being imported, outermost first, the root cause, and what all errors say."""
    causes: list[BaseException] = [error]
    while len(causes) < CAUSES:
        last = causes[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in causes:
            break
        causes.append(cause)
    packages: list[str] = []
    for cause in causes:
        trace = cause.__traceback__
        while trace:
            name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
            if name not in ("", "__main__", "importlib", "_frozen_importlib", *packages):
                packages.append(name)
            trace = trace.tb_next
    root = causes[-1]
    return {
        "packages": packages,
        "root": "{}: {}".format(type(root).__name__, " ".join(str(root).split())[:LONGEST]),
        "says": [str(cause)[:LONGEST] for cause in causes],
        "outside": any(outside(cause) for cause in causes),
    }


def outside(error: BaseException) -> bool:
    """Whether it is about a file, a network or a user that is not there, and not about what is installed."""
    ended = isinstance(error, (SystemExit, KeyboardInterrupt))
    return ended or (isinstance(error, OSError) and error.errno is not None)


if __name__ == "__main__":
    main()
