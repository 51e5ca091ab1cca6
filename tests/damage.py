"""Ways in which a file of the cache can be wrong, and a command that can be run many times in little time."""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]
DEEP = b"[" * 100_000
IMPOSSIBLE: tuple[Any, ...] = (None, True, -1, 1e30, float("nan"), "", "\ud800", [], [[]], {}, {"unknown": 1})


def damages(path: Path) -> Iterator[tuple[str, Damage]]:
    """Everything that can be wrong with one file; each may be done once, to the file as it is now."""
    data = path.read_bytes()
    places = {0, len(data) // 2, len(data) - 1} if data else set()
    if value := _json(data):
        places |= {start + 1 + data[start:].index(b":") for start in _keys(data)}
        for number, changed in enumerate(_impossible(value)):
            yield f"impossible {number}", _writes(json.dumps(changed).encode())
    for place in sorted(place for place in places if place < len(data)):
        yield f"bit at {place}", _writes(_flipped(data, place))
    yield "empty", _writes(b"")
    yield "cut", _writes(data[: len(data) // 2])
    yield "deep", _writes(DEEP)
    yield "folder", _becomes_folder
    yield "dangling link", _becomes_link
    yield "unreadable", lambda path: path.chmod(0)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _keys(data: bytes) -> Iterator[int]:
    """Where the keys of an object begin that have a value in plain sight."""
    at = data.find(b'"')
    while at >= 0:
        end = data.find(b'"', at + 1)
        if end > 0 and data[end + 1 : end + 2] == b":" and end + 2 < len(data):
            yield end
        at = data.find(b'"', end + 1) if end > 0 else -1


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


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


def run_here(arguments: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> Ran:
    """Run the command in a copy of this process, which has imported everything; modules' memories end with it."""
    from envbuild.cli.commands import run

    out, err = folder / "stdout", folder / "stderr"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.chdir(folder)
            os.environ.update(env)
            code = run([str(it) for it in arguments])
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return Ran(os.waitstatus_to_exitcode(status), out.read_text("utf-8", "replace"), err.read_text("utf-8", "replace"))


def fresh_copy(source: Path, target: Path) -> None:
    """A copy of a folder with times and links, in place of whatever is there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
