"""Files, programs and the manifest's text: what every module of capture uses."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Optional, Tuple

Facts = Dict[str, Any]
TIMEOUT = 5.0
"""Seconds that a program has for an answer."""
NO_PROGRAM = (OSError, RuntimeError, ValueError, subprocess.SubprocessError)
"""Why a program gives no answer: Python 3.12 and later start none at exit, and no argument may hold a NUL."""
SETTLED = 1.0
"""Seconds without a change after which a file's times identify its content, on any file system."""
_DIGESTS: Dict[Tuple[int, ...], str] = {}


def output_of(*command: str, environment: dict[str, str] | None = None, seconds: float = TIMEOUT) -> str | None:
    """Return what a program prints; None if it is absent, fails, or takes longer than `seconds`."""
    variables = dict(os.environ if environment is None else environment, LC_ALL="C", GIT_OPTIONAL_LOCKS="0")
    null = subprocess.DEVNULL
    try:
        output = subprocess.check_output(command, stdin=null, stderr=null, timeout=seconds, env=variables)
    except NO_PROGRAM:
        return None
    return decoded(output).strip()


def normal_name(name: str) -> str:
    """Normalise a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def decoded(value: str | bytes) -> str:
    """Decode UTF-8; invalid bytes become U+FFFD."""
    return value.decode("utf-8", "replace").replace("\r\n", "\n") if isinstance(value, bytes) else value


def read_bytes(path: str | Path, limit: int = -1) -> bytes | None:
    """Read a regular file, or its first `limit` bytes; None if that is not possible."""
    try:
        # Opening a pipe would wait for its writer.
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


def file_sha256(file: BinaryIO, end: float = math.inf) -> Optional[str]:
    """Hash an open file, once unless it changes; None if it takes until `end` of the monotonic clock. OSError."""
    key = _file_state(file)
    if key in _DIGESTS:
        return _DIGESTS[key]
    start, digest = time.time(), hashlib.sha256()
    while time.monotonic() < end:
        data = file.read(1 << 20)
        if not data:
            break
        digest.update(data)
    else:
        return None
    if _file_state(file) == key and max(key[-2:]) < (start - SETTLED) * 1e9:
        _DIGESTS[key] = digest.hexdigest()
    return digest.hexdigest()


def _file_state(file: BinaryIO) -> Tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def present(value: Any) -> Any:
    """Drop absent values, and escape characters that UTF-8 cannot hold."""
    if isinstance(value, dict):
        return {key: present(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [present(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def manifest_text(manifest: Facts) -> str:
    """Serialise a manifest."""
    return json.dumps(manifest, indent=2, sort_keys=True) + "\n"


def write_whole(out: str, text: str) -> None:
    """Write a file atomically; OSError if `out` is not a regular file or cannot be written."""
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


def say(text: str) -> None:
    """Write lines to stderr, if there is one, without control characters and commands to CI systems.

    A model's files can hold any text. GitHub Actions runs lines that begin with `::`, and `##[...]` anywhere.
    """
    if sys.stderr is None:
        return
    for line in text.split("\n"):
        plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        plain = re.sub(r"#(?=#\w*\[)", r"\\x23", re.sub(r"^( *):(?=:)", r"\1\\x3a", plain))
        sys.stderr.write(plain + "\n")
