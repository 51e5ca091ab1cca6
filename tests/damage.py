"""Ways in which a file of the cache can be wrong."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]
DEEP = b"[" * 100_000
IMPOSSIBLE: tuple[Any, ...] = (None, True, -1, 1e30, float("nan"), "", "\ud800", [], [[]], {}, {"unknown": 1})


def damages(path: Path) -> Iterator[tuple[str, Damage]]:
    """Everything that can be wrong with one file; each may be done once, to the file as it is now."""
    data = path.read_bytes()
    yield "bit at 0", _writes(_flipped(data, 0))
    yield "bit in the middle", _writes(_flipped(data, len(data) // 2))
    yield "bit at the end", _writes(_flipped(data, len(data) - 1))
    yield "empty", _writes(b"")
    yield "cut", _writes(data[: len(data) // 2])
    yield "deep", _writes(DEEP)
    yield "folder", _becomes_folder
    yield "dangling link", _becomes_link
    yield "unreadable", lambda path: path.chmod(0)
    if value := _json(data):
        for number, changed in enumerate(_impossible(value)):
            yield f"impossible {number}", _writes(json.dumps(changed).encode())
        for number, place in enumerate(_values(data)):
            yield f"bit in value {number}", _writes(_flipped(data, place))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _values(data: bytes) -> Iterator[int]:
    """A place in the value of each key that has one in plain sight."""
    for found in re.finditer(rb'": ?["\[{]*([^"\[{])', data):
        yield found.start(1)


def _impossible(value: Any) -> Iterator[Any]:
    """The value, and each part of its first two levels, replaced by what cannot be there."""
    yield from IMPOSSIBLE
    if isinstance(value, dict):
        for key, part in value.items():
            for other in _impossible(part) if isinstance(part, dict) and len(part) < 9 else IMPOSSIBLE:
                yield value | {key: other}


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _writes(data: bytes) -> Damage:
    def write(path: Path) -> None:
        state = path.stat()
        path.chmod(0o644)
        path.write_bytes(data)
        path.chmod(state.st_mode)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    return write


def _becomes_folder(path: Path) -> None:
    path.unlink()
    (path / "in it").mkdir(parents=True)


def _becomes_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def fresh_copy(source: Path, target: Path) -> None:
    """A copy of a folder with times and links, in place of whatever is there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
