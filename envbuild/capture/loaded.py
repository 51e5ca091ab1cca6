"""The shared libraries in this process, and what they say of themselves."""

from __future__ import annotations

import os
import re
from typing import Any

from envbuild.capture.reading import decoded, read_bytes

DELETED = " (deleted)"
"""What the kernel adds to a path where another file, or none, lies by now."""
_MAPPED = re.compile(r"/.*\.so(?:\.[\w.]+)?(?: \(deleted\))?")


def mapped_libraries(maps: str = "/proc/self/maps") -> list[str]:
    """List the shared objects that a process has mapped, sorted by path; `maps` is as proc(5) has it."""
    fields = (line.split(None, 5) for line in (read_bytes(maps) or b"").split(b"\n") if b".so" in line)
    paths = {os.fsdecode(field[5]) for field in fields if len(field) == 6}
    return sorted(path for path in paths if _MAPPED.fullmatch(path))


def loaded_library(path: str) -> Any:
    """Return a handle to a library that is loaded already; None if it is not, as nothing is ever loaded to ask it."""
    try:
        # Some interpreters were built without it.
        import ctypes

        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    except (ImportError, AttributeError, OSError):
        return None


def number_from(library: Any, function: str) -> int | None:
    """Call `int function(void)`; None where there is no such function."""
    return int(getattr(library, function)()) if hasattr(library, function) else None


def text_from(library: Any, function: str, *arguments: int) -> str | None:
    """Call `char *function(int...)`; None where there is no such function, or for NULL."""
    import ctypes

    if not hasattr(library, function):
        return None
    asked = getattr(library, function)
    asked.restype = ctypes.c_char_p
    answer = asked(*arguments)
    return decoded(answer) if answer is not None else None


def numbers_from(library: Any, function: str, *arguments: int, count: int = 1) -> list[int] | None:
    """Call `int function(int..., int *...)` with `count` pointers; None where it is absent or fails (is not 0)."""
    import ctypes

    values = [ctypes.c_int() for _ in range(count)]
    if not hasattr(library, function) or getattr(library, function)(*arguments, *map(ctypes.byref, values)):
        return None
    return [value.value for value in values]
