"""An interpreter that compiles for an image, and how it is started."""

import os
import queue
import re
import resource
import select
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Protocol, Self

from envbuild.cache import read_entry, remove, write_entry
from envbuild.errors import BuildError
from envbuild.files import settle, written_aside
from envbuild.image.bytecode import child
from envbuild.image.layers.writer import check_library, in_order
from envbuild.oci.digest import Digest

FORMAT = 3
"""Raised whenever the same interpreter and sources would give other bytecode; layers of it have `LAYER_FORMAT` too."""
_ASK = """\
import sys
for value in (sys.version, sys.implementation.cache_tag, '%08x' % sys.hexversion,
              sys.modules['_frozen_importlib_external'].MAGIC_NUMBER.hex()):
    print(value.replace('\\n', ' '))
"""
_START_SECONDS = 30
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
            timeout=_START_SECONDS,
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


CORES: int = os.cpu_count() or 1
LARGEST = 16 << 20
"""Bytes of source: larger ones are given up, as the limits below would not do for them."""
_SECONDS = 120
"""Of a processor's time, for one source."""
_LIMITS = {
    resource.RLIMIT_AS: 3 << 30,
    resource.RLIMIT_CPU: _SECONDS,
    resource.RLIMIT_STACK: 8 << 20,  # how deep a source may nest depends on it
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
}
_SILENCE = 900.0
"""Seconds on the clock, after which a process is not only slow."""
_MOST = 10_000
"""Files that one process forks for: its own time counts, too."""
PROGRAM = Path(child.__file__)


class Failure(Enum):
    """Why a source has no bytecode."""

    REFUSED = "does not compile"
    """As importing it would say, too: Python 2, templates, test data."""
    GAVE_UP = "meets a limit on time or memory"


class Compiler:
    """Processes that compile, each for one thread at a time; they start when they are needed."""

    def __init__(self, interpreter: Interpreter, processes: int = CORES) -> None:
        self._interpreter = interpreter
        self._idle = queue.LifoQueue[_Process | None]()
        for _ in range(processes):
            self._idle.put(None)
        self.processes = processes
        self.cache_tag = interpreter.build.cache_tag

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while not self._idle.empty():
            process = self._idle.get()
            if process:
                process.close()

    def compile(self, path: str, source: bytes) -> bytes | Failure:
        """Return the bytecode file for a source that will lie at `path`; from any thread.

        BuildError when the interpreter does not work.
        """
        process = self._idle.get()
        usable = False
        try:
            process = process or _Process(self._interpreter)
            mark, data = process.ask(path.encode(), source)
            usable = mark != child.DIED and process.asked < _MOST
        except OSError as error:
            todo = "build with --no-bytecode"
            raise BuildError(f"the base's interpreter failed: {error}", where=path, todo=todo) from error
        finally:
            if process is not None and not usable:
                process.close()
            self._idle.put(process if usable else None)
        return data if mark == child.COMPILED else _FAILURES.get(mark, Failure.GAVE_UP)


_FAILURES = {child.REFUSED: Failure.REFUSED, child.DIED: Failure.GAVE_UP}


class _Process:
    def __init__(self, interpreter: Interpreter) -> None:
        self.asked = 0
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
        self._in, self._out = _unblocked(self._process.stdin), _unblocked(self._process.stdout)
        for limit, most in _LIMITS.items():
            with suppress(ProcessLookupError):  # it has ended; asking it will say so
                self._lower(limit, most)

    def _lower(self, limit: int, most: int) -> None:
        _, hard = resource.prlimit(self._process.pid, limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(self._process.pid, limit, (most, most))

    def ask(self, path: bytes, source: bytes) -> tuple[bytes, bytes]:
        """Send a source, and return a mark and the bytecode; OSError when the process does not answer."""
        started = b"" if self.asked else b"\0"
        self.asked += 1
        lengths = len(path).to_bytes(4, "little") + len(source).to_bytes(4, "little")
        self._send(started + lengths + path + source)
        head = self._receive(5)
        return head[:1], self._receive(int.from_bytes(head[1:], "little"))

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._in, select.POLLOUT)
            rest = rest[os.write(self._in, rest) :]

    def _receive(self, size: int) -> bytes:
        pieces = []
        while size:
            _wait(self._out, select.POLLIN)
            piece = os.read(self._out, size)
            if not piece:
                raise ConnectionError("it ended")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """End the process and what it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipes, and waits
            pass


def _unblocked(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _wait(pipe: int, event: int) -> None:
    """Wait until a pipe can be used, or has no other end any more."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(_SILENCE * 1000):
        raise TimeoutError(f"it is silent for {_SILENCE:.0f} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many sources have bytecode, and how many have not."""

    compiled: int = 0
    refused: int = 0
    """Those that do not compile."""
    gave_up: tuple[str, ...] = ()
    """Paths of those that met a limit."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            compiled=self.compiled + other.compiled,
            refused=self.refused + other.refused,
            gave_up=tuple(sorted({*self.gave_up, *other.gave_up})),
        )

    def to_dict(self) -> dict[str, Any]:
        """The tally as it is noted."""
        return {"compiled": self.compiled, "refused": self.refused, "gave_up": list(self.gave_up)}

    @classmethod
    def from_dict(cls, value: Any) -> "Tally":
        """Read a tally; ValueError when it is none."""
        try:
            compiled, refused, paths = (value[name] for name in ("compiled", "refused", "gave_up"))
        except (KeyError, TypeError) as error:
            raise ValueError("it is no tally of bytecode") from error
        if not all(type(it) is int and it >= 0 for it in (compiled, refused)):
            raise ValueError(f"numbers of modules cannot be {compiled!r} and {refused!r}")
        if not isinstance(paths, list) or not all(isinstance(it, str) and it.isprintable() for it in paths):
            raise ValueError("paths without bytecode have to be a list of text")
        return cls(compiled=compiled, refused=refused, gave_up=tuple(paths))


@dataclass(frozen=True, slots=True)
class Compiled:
    """An archive of bytecode files, named by where they go below the prefix."""

    path: Path
    tally: Tally


class Store:
    """The folder of archives; what lies in it is checked when it is read, and made again when it is damaged."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "bytecode"

    def get(self, key: Digest) -> Compiled | None:
        """Return what was compiled for a key, if it is there as it was written."""
        found = read_entry(self._folder, self._name(key), _decode)
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
        write_entry(self._folder, self._name(key), {"archive": str(digest), "tally": tally.to_dict()})
        return Compiled(path, tally)

    def _path(self, key: Digest) -> Path:
        return self._folder / key.hex[:2] / f"{key.hex}.zip"

    def _name(self, key: Digest) -> str:
        return f"{key.hex[:2]}/{key.hex}.json"


def _decode(value: Any) -> tuple[Digest, Tally]:
    return Digest.parse(value["archive"]), Tally.from_dict(value["tally"])


_AHEAD = 64
"""Files that are compiled while one before them takes its time; most have some kilobytes."""


_LONGEST_NAME, _LONGEST_PATH = 255, 3500
"""Bytes that file systems take; the path of a bytecode file is longer than that of its source."""


class Source(Protocol):
    """One source file."""

    @property
    def path(self) -> str:
        """Below the prefix: `lib/python3.11/site-packages/six.py`."""

    def read(self) -> bytes:
        """Its content."""


def bytecode_path(path: str, cache_tag: str) -> str | None:
    """Where imports look for the bytecode of a source; None where that can be no file's name."""
    name = f"{path.removeprefix(_folder(path)).removesuffix('.py')}.{cache_tag}.pyc"
    found = f"{_folder(path)}__pycache__/{name}"
    return found if len(name.encode()) <= _LONGEST_NAME and len(found.encode()) <= _LONGEST_PATH else None


def _folder(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}"


@dataclass(frozen=True, slots=True)
class Parcel:
    """Sources whose bytecode is kept together."""

    key: Digest
    prefix: str
    """Absolute; with a source's path it is what tracebacks name."""
    sources: Callable[[], Sequence[Source]]
    """Reads which there are; not asked where the bytecode is known."""


_Result = tuple[str, bytes | Failure]
Told = Callable[[int], object]
"""Told how many sources are about to be compiled."""


def compile_parcels(
    parcels: Sequence[Parcel], compiler: Callable[[], Compiler], store: Store, told: Told = lambda _count: None
) -> list[Compiled]:
    """Compile what the store does not have; BuildError when the interpreter does not work."""
    found = [store.get(parcel.key) for parcel in parcels]
    lacking = [parcel for parcel, kept in zip(parcels, found, strict=True) if kept is None]
    made = iter(_made(lacking, compiler, store, told) if lacking else ())
    return [kept or next(made) for kept in found]


def _made(parcels: Sequence[Parcel], compiler: Callable[[], Compiler], store: Store, told: Told) -> list[Compiled]:
    check_library()  # before anything takes its time
    work = [(parcel, parcel.sources()) for parcel in parcels]
    told(sum(len(sources) for _, sources in work))
    with compiler() as running, ThreadPoolExecutor(running.processes, thread_name_prefix="compile") as pool:
        jobs = (partial(_compiled, running, parcel.prefix, source) for parcel, sources in work for source in sources)
        results = in_order(pool, jobs, _AHEAD)
        try:
            return [store.make(parcel.key, partial(_written, results, len(sources))) for parcel, sources in work]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _compiled(compiler: Compiler, prefix: str, source: Source) -> _Result:
    path = bytecode_path(source.path, compiler.cache_tag)
    if path is None:
        return source.path, Failure.REFUSED
    content = source.read()
    if len(content) > LARGEST:
        return source.path, Failure.GAVE_UP
    code = compiler.compile(f"{prefix}/{source.path}", content)
    return (source.path if isinstance(code, Failure) else path), code


def _written(results: Iterator[_Result], count: int, sink: BinaryIO) -> Tally:
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
