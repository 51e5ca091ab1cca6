"""Which paths of this machine hold more than data, so that a container sees them only if the person says so."""

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var")
_HOMES = (Path("/home"), Path("/Users"))
_DEPTH, _ENTRIES = 3, 10_000
"""How far a folder is searched for sockets: three levels of folders below it, and so many entries."""


def exposure(path: Path) -> str | None:
    """Why a path without links on its way needs `,unsafe`; None for plain data."""
    return reserved(path) or (f"it holds the socket {found}" if (found := socket_in(path)) else None)


def reserved(path: Path) -> str | None:
    """Why a path is not for containers: home folders, their dot folders, the system's folders, and what is above these.

    What lies in the caller's own home is judged by the rules for homes alone, wherever that home is: in /root, in /var.
    """
    homes = _homes(path)
    for home in homes:
        if home.is_relative_to(path):
            return f"it is the home folder {home}" if home == path else f"it holds the home folder {home}"
        if path.is_relative_to(home):
            first = path.relative_to(home).parts[0]
            return f"{home / first} is where programs keep settings and keys" if first[0] == "." else None
    if path in _HOMES:
        return "it holds home folders"
    for folder in (Path(it).resolve() for it in _SYSTEM):
        if path.is_relative_to(folder):
            return f"it lies in {folder}, which is the system's" if path != folder else "it is the system's"
        if folder.is_relative_to(path):
            return f"it holds {folder}, which is the system's"
    return None


def socket_in(path: Path) -> Path | None:
    """The path itself or the first file found in it that is a socket: whoever sees one can talk to its program."""
    if path.is_socket():
        return path
    return next((Path(it.path) for it in islice(_entries(path), _ENTRIES) if _is_socket(it)), None)


def _homes(path: Path) -> list[Path]:
    """The caller's home, and any other in which the path lies: with sudo the caller is root."""
    own = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - Path's own raises for a user without a home
    others = [Path(*path.parts[:3]) for it in _HOMES if path.is_relative_to(it) and path != it]
    return [it for it in (own, *others) if it != Path("/")]


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, near things first; what the caller may not read is passed over."""
    waiting = deque([(str(folder), 0)])
    while waiting:
        path, depth = waiting.popleft()
        with suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                yield entry
                if depth < _DEPTH and entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """Whether it is a socket; ordinary entries are told without a look at the disk."""
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
