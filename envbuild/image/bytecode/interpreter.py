"""An interpreter that compiles for an image, and how it is started."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

FORMAT = 3
"""Raised whenever the same interpreter and sources would give other bytecode; layers of it have `LAYER_FORMAT` too."""
_ASK = """\
import sys
for value in (sys.version, sys.implementation.cache_tag, '%08x' % sys.hexversion,
              sys.modules['_frozen_importlib_external'].MAGIC_NUMBER.hex()):
    print(value.replace('\\n', ' '))
"""
_SECONDS = 30
_TAG, _MAGIC = re.compile(r"[a-z]+-[0-9]+[a-z]*"), re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What tells one build of CPython from another."""

    version: str
    """`sys.version`, with the time of the build and the compiler."""
    cache_tag: str
    """`cpython-311`, as it stands in the names of bytecode files."""
    magic: str
    """The first four bytes of a bytecode file, in hexadecimal."""
    hexversion: str

    def to_dict(self) -> dict[str, str]:
        """The build as it stands in keys and files."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read a build; KeyError or TypeError when it is none."""
        return cls(**{name: str(value[name]) for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter that runs on this machine."""

    command: tuple[str, ...]
    """The program and what comes before an interpreter's own options."""
    home: Path
    """What `sys.prefix` is to be: the standard library lies below it."""
    build: Build
    lacking: tuple[str, ...]
    """Sources of the standard library, below `home` and below `sys.prefix` in the image, for which the base has no
    bytecode, or only such as imports would not use."""

    def start(self, text: str) -> list[str]:
        """The command that runs a program's text."""
        return [*self.command, *_OPTIONS, "-c", text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """There is no interpreter that may compile for an image."""

    why: str
    """Half a sentence, to follow `no bytecode:`."""


# Nothing of the user's: no user site, no site-packages, no locale; a warning is for who wrote the source.
_OPTIONS = ("-s", "-S", "-B", "-X", "utf8", "-W", "ignore")


def environment(home: Path) -> dict[str, str]:
    """The whole environment of an interpreter; the hash seed decides bytes up to Python 3.10."""
    return {"PYTHONHASHSEED": "0", "PYTHONHOME": str(home), "LC_ALL": "C", "LD_BIND_NOW": "1"}


def ask_build(command: tuple[str, ...], home: Path) -> Build | Unavailable:
    """Start an interpreter and let it say what it is."""
    try:
        done = subprocess.run(
            [*command, *_OPTIONS, "-c", _ASK],
            env=environment(home),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unavailable(why=f"the base's interpreter does not run here: {error}")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        return Unavailable(why=f"the base's interpreter does not run here: {said[-1][:200]}")
    lines = done.stdout.decode(errors="replace").splitlines()
    if len(lines) != 4 or not _TAG.fullmatch(lines[1]) or not _MAGIC.fullmatch(lines[3]):
        return Unavailable(why="the base's interpreter does not say what it is")
    return Build(version=lines[0], cache_tag=lines[1], hexversion=lines[2], magic=lines[3])


def compiled_by(identity: str) -> str:
    """What a recipe says of its bytecode: the interpreter decides its bytes, and the format of what is written."""
    return f"{FORMAT}:{identity}"
