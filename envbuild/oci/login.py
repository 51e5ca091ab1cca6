"""Logins in the names of images, which belong nowhere that is shown or kept."""

import re
from pathlib import Path

from envbuild.errors import UsageError

_DIGEST = re.compile(r"@[a-z0-9]+:[0-9a-fA-F]*\Z")
_ALMOST = re.compile(r"@sha(?:256|384|512):\w*\Z")
"""What a digest was meant to be; nothing of it is shown, as it could be a host and what follows it."""
_HERE = ("oci:", "oci-archive:", "docker-archive:")
"""How the paths begin that may hold an @."""


def refuse_login(text: str, where: str) -> None:
    """Refuse what has a user or a password before a host, without showing it; `where` is the argument that says so.

    UsageError. What lies on this machine may be called as it likes.
    """
    name = _DIGEST.sub("", text)
    if _ALMOST.search(name) and "@" not in name.rpartition("@")[0] and not name.startswith(_HERE) and not exists(name):
        todo = "write the digest in full: sha256: and 64 hexadecimal digits"
        raise UsageError("what follows the @ is not a digest", where=where, todo=todo)
    if "@" in name and not name.startswith(_HERE) and not exists(name):
        todo = "leave out what stands before the @, and use `docker login`"
        raise UsageError("a reference holds no user or password", where=where, todo=todo)


def exists(path: str) -> bool:
    """Whether anything lies there; what cannot be a path lies nowhere."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a file's name, or a NUL in it
        return False
