"""Compiling with the base's own interpreter, on all cores, and the store of what was compiled.

A compiler runs no code of what it compiles, but a hostile source could take all time and memory. So the interpreters
have limits that no honest source comes near: a source that meets one gets no bytecode, and is named.
"""

import os
import queue
import re
import resource
import select
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import BuildError
from envbuild.files import settle, written_aside
from envbuild.image.bytecode import child
from envbuild.image.layers.maker import OpenWheels
from envbuild.image.layers.writer import check_library, run_in_order
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.report import SILENT, Reporter

FORMAT = 5
"""Raised whenever the same interpreter and sources would give other bytecode; layers of it have `LAYER_FORMAT` too."""
CORES: int = os.cpu_count() or 1
LARGEST = 16 << 20
"""Bytes of source: larger ones are given up, as the limits below would not do for them."""
PROGRAM = Path(child.__file__)
_ASK = """\
import sys
for value in (sys.version, sys.implementation.cache_tag, '%08x' % sys.hexversion,
              sys.modules['_frozen_importlib_external'].MAGIC_NUMBER.hex()):
    print(value.replace('\\n', ' '))
"""
_TAG, _MAGIC = re.compile(r"[a-z]+-[0-9]+[a-z]*"), re.compile(r"[0-9a-f]{8}")
# Nothing of the user's: no user site, no site-packages, no locale. Warnings concern the author of a source.
_OPTIONS = ("-s", "-S", "-B", "-X", "utf8", "-W", "ignore")
_START_SECONDS = 30
_LIMITS = {
    resource.RLIMIT_AS: 3 << 30,
    resource.RLIMIT_CPU: 120,  # seconds, for the files of one fork
    resource.RLIMIT_STACK: 8 << 20,  # decides how deep a source may nest
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
}
_SILENCE = 900.0
"""Seconds on the clock, after which a process is not only slow."""
_MOST_FORKS = 10_000
"""Of one process: its own processor time counts, too."""
_MOST_FILES, _MOST_BYTES = 64, 1 << 20
"""Sources that are compiled together. A fork for each file costs more than compiling it; this decides bytes."""
_AHEAD = 2
"""Groups of sources, for each process, that are compiled while the one before them is still in work."""
_LONGEST_NAME, _LONGEST_PATH = 255, 3500
"""Bytes that file systems take; the path of a bytecode file is longer than that of its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The identity of a build of CPython."""

    version: str
    """`sys.version`, with the time of the build and the compiler."""
    cache_tag: str
    """`cpython-311`, as in the names of bytecode files."""
    magic: str
    """The first four bytes of a bytecode file, in hexadecimal."""
    hexversion: str

    def to_dict(self) -> dict[str, str]:
        """Return the build for keys and files."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read a build; KeyError or TypeError if it is malformed."""
        return cls(**{name: str(value[name]) for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter that runs on this machine."""

    command: tuple[str, ...]
    """The program and the words before an interpreter's own options."""
    home: Path
    """The value for `sys.prefix`: the standard library lies below it."""
    build: Build
    lacking: tuple[str, ...]
    """Sources of the standard library for which the base has no bytecode that imports would use: paths below `home`,
    and below `sys.prefix` in the image."""

    def start(self, text: str) -> list[str]:
        """Return the command that runs a program's text."""
        return [*self.command, *_OPTIONS, "-c", text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """No interpreter may compile for an image here."""

    why: str
    """Half a sentence, to follow `no bytecode:`."""


def environment(home: Path) -> dict[str, str]:
    """Return the whole environment of an interpreter; the hash seed decides bytes up to Python 3.10."""
    return {"PYTHONHASHSEED": "0", "PYTHONHOME": str(home), "LC_ALL": "C", "LD_BIND_NOW": "1"}


def ask_build(command: tuple[str, ...], home: Path) -> Build | Unavailable:
    """Start an interpreter and ask for its build."""
    try:
        done = subprocess.run(
            [*command, *_OPTIONS, "-c", _ASK],
            env=environment(home),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_SECONDS,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unavailable(why=f"the base's interpreter does not run here: {error}")
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        return Unavailable(why=f"the base's interpreter does not run here: {output[-1][:200]}")
    lines = done.stdout.decode(errors="replace").splitlines()
    if len(lines) != 4 or not _TAG.fullmatch(lines[1]) or not _MAGIC.fullmatch(lines[3]):
        return Unavailable(why="the base's interpreter does not print its version")
    return Build(version=lines[0], cache_tag=lines[1], hexversion=lines[2], magic=lines[3])


def compiled_by(identity: str) -> str:
    """Return the recipe's entry for bytecode: the interpreter and the format decide its bytes."""
    return f"{FORMAT}:{identity}"


class Failure(Enum):
    """Why a source has no bytecode."""

    REFUSED = "does not compile"
    """Importing it would fail, too: Python 2, templates, test data."""
    GAVE_UP = "meets a limit on time or memory"


_FAILURES = {child.REFUSED: Failure.REFUSED, child.DIED: Failure.GAVE_UP}


class Compiler:
    """Processes that compile, each for one thread at a time; they start when they are needed."""

    def __init__(self, interpreter: Interpreter, processes: int = CORES) -> None:
        self._interpreter = interpreter
        self._idle = queue.LifoQueue[_Process | None]()
        for _ in range(processes):
            self._idle.put(None)
        self.cache_tag = interpreter.build.cache_tag

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while not self._idle.empty():
            process = self._idle.get()
            if process:
                process.close()

    def compile(self, sources: Iterable[tuple[str, bytes]]) -> list[bytes | Failure]:
        """Compile sources, given with the paths where they will lie, together; return their bytecode files.

        From any thread. The bytes of one depend on those before it. BuildError if the interpreter does not work.
        """
        process, path, results, usable = self._idle.get(), "", list[bytes | Failure](), False
        try:
            for path, source in sources:
                process = process or _Process(self._interpreter)
                mark, data = process.ask(path.encode(), source)
                results.append(data if mark == child.COMPILED else _FAILURES[mark])
                if mark == child.DIED:  # it may have left a part of the source unread
                    process.close()
                    process = None
            usable = process is None or process.end_fork()
        except OSError as error:
            todo = "build with --no-bytecode"
            raise BuildError(f"the base's interpreter failed: {error}", where=path, todo=todo) from error
        finally:
            if process and not usable:
                process.close()
            self._idle.put(process if usable else None)
        return results


class _Process:
    def __init__(self, interpreter: Interpreter) -> None:
        self._started, self._forks = False, 0
        self._process = subprocess.Popen(
            interpreter.start(PROGRAM.read_text()),
            env=environment(interpreter.home),
            cwd="/",
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._in, self._out = _unblock(self._process.stdin), _unblock(self._process.stdout)
        for limit, most in _LIMITS.items():
            with suppress(ProcessLookupError):  # it has ended; `ask` will fail
                _, hard = resource.prlimit(self._process.pid, limit)
                lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(self._process.pid, limit, (lowest, lowest))

    def ask(self, path: bytes, source: bytes) -> tuple[bytes, bytes]:
        """Send a source, and return a mark and the bytecode; OSError if the process does not answer."""
        self._send(path, source)
        head = self._receive(5)
        return head[:1], self._receive(int.from_bytes(head[1:], "little"))

    def end_fork(self) -> bool:
        """Let what follows be compiled in a new fork; whether the process may go on."""
        self._forks += 1
        self._send(b"", b"")
        return self._forks < _MOST_FORKS

    def _send(self, path: bytes, source: bytes) -> None:
        lengths = len(path).to_bytes(4, "little") + len(source).to_bytes(4, "little")
        data = memoryview((b"" if self._started else b"\0") + lengths + path + source)
        self._started = True
        while data:
            _wait(self._in, select.POLLOUT)
            data = data[os.write(self._in, data) :]

    def _receive(self, size: int) -> bytes:
        pieces = []
        while size:
            _wait(self._out, select.POLLIN)
            piece = os.read(self._out, size)
            if not piece:
                raise ConnectionError("the process ended")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """End the process and its forks."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipes, and waits
            pass


def _unblock(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _wait(pipe: int, event: int) -> None:
    """Wait until a pipe can be used, or its other end is closed."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(_SILENCE * 1000):
        raise TimeoutError(f"the process did not answer for {_SILENCE:.0f} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many sources have bytecode, and how many have not."""

    compiled: int = 0
    refused: int = 0
    """Sources that do not compile."""
    gave_up: tuple[str, ...] = ()
    """Paths of sources that met a limit."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            compiled=self.compiled + other.compiled,
            refused=self.refused + other.refused,
            gave_up=tuple(sorted({*self.gave_up, *other.gave_up})),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the tally for a note."""
        return {"compiled": self.compiled, "refused": self.refused, "gave_up": list(self.gave_up)}

    @classmethod
    def from_dict(cls, value: Any) -> "Tally":
        """Read a tally; ValueError if it is malformed."""
        try:
            compiled, refused, paths = (value[name] for name in ("compiled", "refused", "gave_up"))
        except (KeyError, TypeError) as error:
            raise ValueError("a tally of bytecode lacks a count") from error
        if not all(type(it) is int and it >= 0 for it in (compiled, refused)):
            raise ValueError(f"numbers of modules cannot be {compiled!r} and {refused!r}")
        if not isinstance(paths, list) or not all(isinstance(it, str) and it.isprintable() for it in paths):
            raise ValueError("paths without bytecode have to be a list of text")
        return cls(compiled=compiled, refused=refused, gave_up=tuple(paths))


@dataclass(frozen=True, slots=True)
class Compiled:
    """An archive of bytecode files, named by their paths below the prefix."""

    path: Path
    tally: Tally


class Store:
    """The folder of archives: one for each wheel, interpreter and prefix, checked at each use."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "bytecode"

    def get(self, key: Digest) -> Compiled | None:
        """Return the archive for a key if it is there and undamaged."""
        found = read_entry(self._folder, f"{key.hex[:2]}/{key.hex}.json", _decode_entry)
        path = self._path(key)
        if found is None or not path.is_file():
            return None
        archive, tally = found
        with path.open("rb") as file:
            digest, _ = Digest.of_file(file)
        return Compiled(path, tally) if digest == archive else None

    def make(self, key: Digest, write: Callable[[BinaryIO], Tally]) -> Compiled:
        """Make and keep the archive for a key."""
        path = self._path(key)
        with written_aside(path.parent) as (file, temporary):
            tally = write(file)
            file.flush()
            with temporary.open("rb") as written:
                digest, _ = Digest.of_file(written)
            if path.is_dir():
                remove(path)
            settle(file, temporary, path)
        entry = {"archive": str(digest), "tally": tally.to_dict()}
        write_entry(self._folder, f"{key.hex[:2]}/{key.hex}.json", entry)
        return Compiled(path, tally)

    def _path(self, key: Digest) -> Path:
        return self._folder / key.hex[:2] / f"{key.hex}.zip"


def _decode_entry(value: Any) -> tuple[Digest, Tally]:
    return Digest.parse(value["archive"]), Tally.from_dict(value["tally"])


@dataclass(frozen=True, slots=True)
class Source:
    """One source file."""

    path: str
    """Below the prefix: `lib/python3.11/site-packages/six.py`."""
    size: int
    """Bytes."""
    read: Callable[[], bytes]


def bytecode_path(path: str, cache_tag: str) -> str | None:
    """Return where imports look for the bytecode of a source (PEP 3147); None if no file can have that name."""
    folder, slash, name = path.rpartition("/")
    name = f"{name.removesuffix('.py')}.{cache_tag}.pyc"
    target = f"{folder}{slash}__pycache__/{name}"
    return target if len(name.encode()) <= _LONGEST_NAME and len(target.encode()) <= _LONGEST_PATH else None


@dataclass(frozen=True, slots=True)
class Parcel:
    """Sources whose bytecode is kept together."""

    key: Digest
    prefix: str
    """Absolute; with a source's path it is the file name in tracebacks."""
    sources: Callable[[OpenWheels], Sequence[Source]]
    """Lists the sources; called only if they have to be compiled."""
    wheel: LockedWheel | None = None
    """The wheel that has the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """The interpreter that compiles sources, and the store for bytecode."""

    identity: str
    """The identity of the base's interpreter: `Base.interpreter`."""
    find: Callable[[], Interpreter]
    """Gets the interpreter when something has to be compiled; BuildError if it cannot run."""
    store: Store
    reporter: Reporter = SILENT
    processes: int = CORES

    def compile(self, parcels: Sequence[Parcel], wheels: OpenWheels) -> list[Compiled]:
        """Compile what the store does not have; BuildError as `Compiler.compile`, WheelError for a damaged wheel."""
        stored = {parcel.key: self.store.get(parcel.key) for parcel in parcels}
        work = [(parcel, parcel.sources(wheels)) for parcel in parcels if stored[parcel.key] is None]
        if work:
            check_library()  # before the long work
            count = sum(len(sources) for _, sources in work)
            self.reporter.note(f"compiling {count} modules with the base's own Python")
            with Compiler(self.find(), self.processes) as compiler, ThreadPoolExecutor(self.processes) as pool:
                jobs = (
                    partial(_compile, compiler, it.prefix, group) for it, sources in work for group in _groups(sources)
                )
                results = chain.from_iterable(run_in_order(pool, jobs, _AHEAD * self.processes))
                try:
                    for parcel, sources in work:
                        stored[parcel.key] = self.store.make(parcel.key, partial(_write, results, len(sources)))
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        return [compiled for parcel in parcels if (compiled := stored[parcel.key])]


def _groups(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Cut sources into those that are compiled together."""
    group: list[Source] = []
    for source in sources:
        if len(group) == _MOST_FILES or (group and sum(it.size for it in (*group, source)) > _MOST_BYTES):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _compile(compiler: Compiler, prefix: str, group: Sequence[Source]) -> list[tuple[str, bytes | Failure]]:
    """Compile sources together; return the path of each bytecode file, or that of the source without one."""
    fit = {it.path: it for it in group if it.size <= LARGEST and bytecode_path(it.path, compiler.cache_tag)}
    codes = compiler.compile([(f"{prefix}/{path}", source.read()) for path, source in fit.items()])
    found, results = dict(zip(fit, codes, strict=True)), list[tuple[str, bytes | Failure]]()
    for it in group:
        path = bytecode_path(it.path, compiler.cache_tag)
        code = found.get(it.path, Failure.GAVE_UP) if path else Failure.REFUSED
        results.append((it.path if isinstance(code, Failure) else str(path), code))
    return results


def _write(results: Iterator[tuple[str, bytes | Failure]], count: int, sink: BinaryIO) -> Tally:
    failures, compiled = list[tuple[str, Failure]](), 0
    with zipfile.ZipFile(sink, "w") as archive:
        for path, result in islice(results, count):
            if isinstance(result, Failure):
                failures.append((path, result))
            else:
                archive.writestr(zipfile.ZipInfo(path), result)
                compiled += 1
    return Tally(
        compiled=compiled,
        refused=sum(why is Failure.REFUSED for _, why in failures),
        gave_up=tuple(path for path, why in failures if why is Failure.GAVE_UP),
    )
