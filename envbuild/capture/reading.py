"""Reading files and programs, and writing a manifest whole: what every part of capture uses."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict

Facts = Dict[str, Any]
TIMEOUT = 5.0
"""Seconds that a program has for an answer."""
NO_PROGRAM = (OSError, RuntimeError, ValueError, subprocess.SubprocessError)
"""Why a program gives no answer: from 3.12 on an interpreter that ends starts none, and no name may hold a NUL."""


def output_of(*command: str, environment: dict[str, str] | None = None, seconds: float = TIMEOUT) -> str | None:
    """Return what a program prints; None if it is absent, fails, or takes longer than `seconds`."""
    variables = dict(os.environ if environment is None else environment, LC_ALL="C", GIT_OPTIONAL_LOCKS="0")
    null = subprocess.DEVNULL
    try:
        done = subprocess.check_output(command, stdin=null, stderr=null, timeout=seconds, env=variables)
    except NO_PROGRAM:
        return None
    return decoded(done).strip()


def normal_name(name: str) -> str:
    """Normalise a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def decoded(value: str | bytes) -> str:
    """Decode UTF-8; what is none becomes U+FFFD."""
    return value.decode("utf-8", "replace").replace("\r\n", "\n") if isinstance(value, bytes) else value


def read_bytes(path: str | Path) -> bytes | None:
    """Read a file; None if that is not possible."""
    return read_head(path, -1)


def read_head(path: str | Path, limit: int) -> bytes | None:
    """Read at most `limit` bytes of a file; None if that is not possible."""
    try:
        # Opening a pipe would wait for whoever writes into it.
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(limit)
    except (OSError, ValueError):
        return None


def read_text(path: str | Path) -> str | None:
    """Read a text file; None if that is not possible."""
    data = read_bytes(path)
    return decoded(data) if data is not None else None


def present(value: Any) -> Any:
    """Drop what is absent, and spell out what UTF-8 cannot hold."""
    if isinstance(value, dict):
        return {key: present(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [present(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def manifest_text(manifest: Facts) -> str:
    """Serialise a manifest."""
    return json.dumps(manifest, indent=2, sort_keys=True) + "\n"


def write_whole(out: str, text: str) -> None:
    """Write a file whole or not at all; OSError if `out` is not a regular file or cannot be written."""
    mode = stat.S_IMODE(os.stat(out).st_mode) if os.path.exists(out) else 0o644
    # Renaming over a device such as /dev/null would replace it.
    if os.path.exists(out) and not os.path.isfile(out):
        raise OSError("%s is not a regular file" % out)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(out))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, out)
    except BaseException:
        os.unlink(temporary)
        raise
