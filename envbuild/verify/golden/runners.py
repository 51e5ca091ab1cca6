"""Where a file can be run: in a container of an image, under bubblewrap, or by an interpreter of this machine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from platform import machine
from resource import RLIM_INFINITY, RLIMIT_DATA, RLIMIT_NPROC, getrlimit
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol

import docker

from envbuild.base.interpreter import runs_here
from envbuild.cache import workplace
from envbuild.capture.redact import RANDOM, hides_secret, scrub
from envbuild.diff.images import check_name, open_image
from envbuild.engine.buildkit import loaded_base
from envbuild.engine.client import LocalImage, connected, find_image
from envbuild.engine.container import MAX_PROCESSES, MAX_RESULT, WRITABLE, parents, run_file
from envbuild.errors import BuildError, MissingComponentError, UsageError
from envbuild.files import staged_folder
from envbuild.image.config import DEFAULT_PATH, variables_of
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import lies_here
from envbuild.oci.rootfs import read_tree, resolve, unpack
from envbuild.process import running
from envbuild.report import Reporter

INSTEAD = (
    "install bubblewrap (bwrap), which runs the image too; else `envbuild local MODEL --venv DIR --golden` runs the "
    "sample in a virtual environment of the same wheels"
)
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
"""What an interpreter of this machine needs of it."""
_MOUNTED = ("dev", "proc", *(place[1:] for place in WRITABLE))
_LINES = 12
_LONGEST = 500
_ENGINE = "docker-daemon:"
_REGISTRY = "docker://"
_OWN = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables that tell envbuild's interpreter what it is, and would tell another the same."""
_TELLING = 6
"""Characters of a secret at least by which it is known within another value."""
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a run."""

    answer: bytes | None
    """What the program wrote; None where it did not come to that."""
    code: int
    """Its exit code: 128 and the signal's number where one ended it."""
    lines: tuple[str, ...] = ()
    """The last that it printed."""
    late: bool = False
    """Whether it was ended as its time was up."""


class Runner(Protocol):
    """An environment that can run a file."""

    @property
    def name(self) -> str:
        """As it was given: an image, or the path of an interpreter."""
        ...

    def run(self, program: str, beside: Mapping[str, bytes | Path], *, seconds: float) -> Ran:
        """Run a file with others beside it; UsageError where there is no Python that starts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InImage:
    """Containers of an image that the engine has."""

    name: str
    client: docker.DockerClient
    image: LocalImage

    def run(self, program: str, beside: Mapping[str, bytes | Path], *, seconds: float) -> Ran:
        """Run in a new container: as the image's user, without a network, with copies of the files."""
        lines = _LastLines()
        done = run_file(
            self.client, self.image, program, (), python=None, on_line=lines.add, files=beside, seconds=seconds
        )
        return Ran(answer=done.result, code=done.code, lines=lines.lines, late=done.late)


@contextmanager
def in_image(text: str, *, machine: str, cache: Path, report: Reporter) -> Iterator[Runner]:
    """Yield a runner for an image: in a container of the engine, which pulls or loads it; without one, in bubblewrap.

    What was loaded or unpacked is gone when the block ends. MissingComponentError without both, RegistryError for what
    cannot be pulled, UsageError for what names no image.
    """
    check_name(text)
    with ExitStack() as stack:
        try:
            client = stack.enter_context(connected(INSTEAD))
        except MissingComponentError as error:
            if text.startswith(_ENGINE):
                raise
            if why := why_no_bubblewrap(machine, cache):
                raise MissingComponentError(f"{error.what}, and {why}", where=error.where, todo=error.todo) from error
            image = stack.enter_context(open_image(text, machine=machine, cache=cache, report=report))
            report.note(f"{error.what}: unpacking the image for bubblewrap")
            yield stack.enter_context(in_bubblewrap(image, text, cache))
            return
        name = text.removeprefix(_ENGINE).removeprefix(_REGISTRY)
        if lies_here(text):
            image = stack.enter_context(open_image(text, machine=machine, cache=cache, report=report))
            name = stack.enter_context(loaded_base(client, image, report))
        yield InImage(name=text, client=client, image=find_image(client, name, report))


@dataclass(frozen=True, slots=True, kw_only=True)
class InBubblewrap:
    """Processes that see some folders only, such as an unpacked image, and no network."""

    name: str
    root: Path | None
    """What it sees as `/`; None for folders of this machine alone."""
    variables: Mapping[str, str]
    """The image's own, and no others."""
    python: str
    """Its path in there; empty if there is none."""
    cache: Path
    folders: tuple[str, ...] = ()
    """The folders and files of this machine that it sees."""

    def run(self, program: str, beside: Mapping[str, bytes | Path], *, seconds: float) -> Ran:
        """Run in new namespaces; nothing but folders in memory can be written. The program's FILE is its stdout."""
        if not self.python:
            todo = "give an image that a model is trained or served in"
            raise UsageError("the image has no Python on its PATH", where=self.name, todo=todo)
        with workplace(self.cache) as folder:
            _write_files(folder, {"program.py": program.encode(), **beside}, copy=True)
            folder.chmod(0o755)
            lines, answer = _LastLines(), bytearray()
            program_words = [self.python, "/run/envbuild/program.py", "--out", "-"]
            code = _run([*self.command(folder), *program_words], os.environ, lines, seconds, answer)
            late = code is None
            return Ran(answer=bytes(answer), code=137 if code is None else code, lines=lines.lines, late=late)

    def command(self, folder: Path) -> list[str]:
        """Return the words before a program; `folder` is its /run/envbuild."""
        limits, size = _limits()
        command = [*limits, "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        command += ["--clearenv"]
        command += [word for item in self.variables.items() for word in ("--setenv", *item)]
        command += ["--ro-bind", str(self.root), "/"] if self.root else []
        command += ["--dev", "/dev", "--proc", "/proc"]
        command += [word for place in WRITABLE for word in (*size, "--tmpfs", place)]
        command += [word for it in self.folders for word in ("--ro-bind", it, it)]
        command += ["--ro-bind", str(folder), "/run/envbuild", "--chdir", "/"]
        return command if self.root else [*command, "--remount-ro", "/"]


def isolated(python: str, variables: Mapping[str, str], cache: Path) -> InBubblewrap | None:
    """Return a runner for an interpreter of this machine that sees it, its packages and the system's libraries alone.

    The user's own packages, and those elsewhere, are missing. None if bubblewrap cannot start it so.
    """
    path = shutil.which(python)
    if path is None or why_no_bubblewrap(machine(), cache):
        return None
    path = str(Path(path).absolute())
    query = "import sys; print(sys.prefix, sys.base_prefix, sep=chr(10))"
    done = subprocess.run([path, "-Ic", query], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    prefixes = done.stdout.splitlines()
    own = [it for it in prefixes if not it.startswith("/usr")]
    if any(Path(os.path.expanduser("~")).is_relative_to(it) for it in own):  # noqa: PTH111 - raises nothing
        return None
    folders = tuple(it for it in (*_SYSTEM, *own) if Path(it).exists())
    venv = {"VIRTUAL_ENV": prefixes[0]} if len(set(prefixes)) == 2 else {}
    variables = {"PATH": DEFAULT_PATH, **venv, **variables}
    found = InBubblewrap(name=python, root=None, variables=variables, python=path, cache=cache, folders=folders)
    with workplace(cache) as folder:
        command = [*found.command(folder), path, "-c", "import ctypes, ssl"]
        starts = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return None if starts.returncode else found


@contextmanager
def in_bubblewrap(image: Image, name: str, cache: Path) -> Iterator[InBubblewrap]:
    """Yield a runner for an image that lies unpacked on the cache's disk meanwhile; BuildError if it cannot."""
    with workplace(cache) as root:
        tree = read_tree(image, name)
        for path in sorted({*_MOUNTED, *parents(_MOUNTED)}):
            node = tree.get(path)
            if node is not None and node.kind != "directory":
                todo = "start a container engine, or give an image with folders there"
                raise BuildError(f"/{path} in the image is a {node.kind} and no folder", where=name, todo=todo)
        try:
            unpack(image, root, name)
            for path in _MOUNTED:
                (root / path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            todo = "free space there, set ENVBUILD_CACHE to a folder on another disk, or start a container engine"
            raise BuildError(
                f"the image cannot be unpacked in {cache}: {error.strerror}", where=name, todo=todo
            ) from error
        config = json.loads(image.config).get("config")
        variables = {"PATH": DEFAULT_PATH} | variables_of(config if isinstance(config, dict) else {})
        paths = (f"{folder}/python" for folder in variables["PATH"].split(":") if folder.startswith("/"))
        python = next((path for path in paths if resolve(tree, path)), "")
        yield InBubblewrap(name=name, root=root, variables=variables, python=python, cache=cache)


def _limits() -> tuple[list[str], list[str]]:
    """Words before bwrap, and before each folder in memory, that bound what all of it takes, as `confinement` does.

    It is the memory that a process can write (not its addresses, of which CUDA and XLA reserve any amount), and the
    number of a user's processes (not root's) beyond the present ones of all users. Without prlimit and before
    bubblewrap 0.7 they are missing.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    present = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    wanted = {"data": (RLIMIT_DATA, memory), "nproc": (RLIMIT_NPROC, MAX_PROCESSES + present)}
    hard = {name: (getrlimit(kind)[1], number) for name, (kind, number) in wanted.items()}
    words = [f"--{name}={number if top == RLIM_INFINITY else min(top, number)}" for name, (top, number) in hard.items()]
    known = subprocess.run(["bwrap", "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    has_size = "--size" in known.stdout + known.stderr
    return ["prlimit", *words] if shutil.which("prlimit") else [], ["--size", str(memory // 4)] if has_size else []


def why_no_bubblewrap(machine: str, cache: Path) -> str:
    """Say in half a sentence why no image for `machine` can run under bubblewrap here; empty if one can."""
    if other := runs_here(machine):
        return other.why
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"bubblewrap does not work here: {done.stderr.strip()[-200:]}"
    with workplace(cache) as folder:
        is_noexec = os.statvfs(folder).f_flag & os.ST_NOEXEC
    return f"nothing may be executed in {cache}, where the image would be unpacked (noexec)" if is_noexec else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InInterpreter:
    """An interpreter of this machine, which is not kept from its network and files."""

    name: str
    variables: Mapping[str, str] | None = None
    """What it runs with; None for those of this process."""
    kept: Path | None = None
    """A folder for what only the user may start; None where there is none."""
    sandbox: InBubblewrap | None = None
    """What runs a pickle instead; None where nothing isolates it."""
    state: tuple[str, ...] = ()
    """What tells the environment from others, such as its packages: an answer that the user got holds for it only."""

    def run(self, program: str, beside: Mapping[str, bytes | Path], *, seconds: float) -> Ran:
        """Run it; what it starts ends with it."""
        with TemporaryDirectory(prefix="envbuild-golden-") as name:
            folder = Path(name)
            _write_files(folder, {"envbuild_golden.py": program.encode(), **beside}, copy=False)
            python = str(Path(self.name).absolute()) if "/" in self.name else self.name  # else found on PATH
            command = [python, str(folder / "envbuild_golden.py"), "--out", str(folder / "answer")]
            lines = _LastLines()
            code = _run(command, self.variables or os.environ, lines, seconds)
            return Ran(
                answer=_answer(folder / "answer"),
                code=code if code is not None and code >= 0 else 128 - (code or 0),
                lines=lines.lines,
                late=code is None,
            )

    def run_by_user(
        self, program: str, beside: Mapping[str, bytes | Path], key: Sequence[Any]
    ) -> tuple[Ran | None, str]:
        """Return what came of the user's run of these files, which it forgets; without one write copies of them.

        `key` tells the files from others. The text says what the user does.
        """
        assert self.kept is not None, "the caller looked"
        folder = self.kept / Digest.of(canonical_json([key, self.name, self.state])).hex
        found = _answer(folder / "answer.json")
        try:
            if found:
                shutil.rmtree(folder)
                return Ran(answer=found, code=0), ""
            if not folder.is_dir():
                with staged_folder(folder) as staged:
                    _write_files(staged, {"check.py": program.encode(), **beside}, copy=True)
        except OSError as error:
            todo = "give a folder that this user may write, and on whose disk a copy of the model has room"
            raise UsageError(f"{folder} cannot be written: {error.strerror}", where=str(folder), todo=todo) from error
        words = [self.name, str(folder / "check.py"), "--out", str(folder / "answer.json")]
        return None, _line_for_user(words, self.variables or os.environ)


def _line_for_user(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Say how to run a command with these variables: in a line for a shell, without values that may be secret."""
    changed = {name: it for name, it in variables.items() if name not in _OWN and os.environ.get(name) != it}
    omitted = {name for name, value in changed.items() if not _PLAIN.fullmatch(name) or not value.isprintable()}
    for name, value in changed.items():
        is_random = RANDOM.fullmatch(value) and not os.access(value, os.F_OK)
        if hides_secret(name, value, sure=True) or scrub(value) != value or is_random:
            omitted |= {name, *(it for it, whole in changed.items() if len(value) >= _TELLING and value in whole)}
    unset = [name for name in ("PYTHONPATH", "PYTHONHOME") if name in _OWN or name not in variables]
    values = [f"{name}={value}" for name, value in changed.items() if name not in omitted]
    line = shlex.join(["env", *(word for name in unset for word in ("-u", name)), *values, *words])
    first = f"export {', '.join(sorted(omitted))}, whose values are not printed, " if omitted else ""
    return f"{first}run it yourself, if you trust the model, and give this command again: {line}"


def _write_files(folder: Path, files: Mapping[str, bytes | Path], *, copy: bool) -> None:
    """Write files; those that lie elsewhere as links, where no copy is needed."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif copy:
            shutil.copyfile(content, path)
        else:
            path.symlink_to(content.absolute())


def _run(
    command: list[str],
    variables: Mapping[str, str],
    lines: "_LastLines",
    seconds: float,
    into: bytearray | None = None,
) -> int | None:
    """Run a program; its exit code, or None where its time was up. What it prints goes to `lines`.

    With `into` what it writes to stdout goes there instead.
    """
    environment = {name: value for name, value in variables.items() if name not in _OWN}
    errors = subprocess.STDOUT if into is None else subprocess.PIPE
    try:
        with running(command, environment, stdout=subprocess.PIPE, stderr=errors) as process:
            readers = [threading.Thread(target=lines.read, args=(process.stderr or process.stdout,), daemon=True)]
            if into is not None:
                readers.append(threading.Thread(target=_collect, args=(process.stdout, into), daemon=True))
            for reader in readers:
                reader.start()
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            for reader in readers:
                reader.join(1)  # a child that it left may hold its output open
            return code
    except OSError as error:
        todo = "give the path of an environment's Python, such as ./venv/bin/python"
        raise UsageError(f"this interpreter cannot be run: {error.strerror}", where=command[0], todo=todo) from error


def _collect(stream: IO[bytes], into: bytearray) -> None:
    while (data := stream.read(_LONGEST)) and len(into) < MAX_RESULT:
        into += data


def _answer(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RESULT + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_RESULT else None


class _LastLines:
    """The last lines of a program that may print any amount."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES)

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def add(self, line: str) -> None:
        if line.strip():
            self._lines.append(line.rstrip()[:_LONGEST])

    def read(self, stream: IO[bytes]) -> None:
        while data := stream.readline(_LONGEST):
            self.add(data.decode(errors="replace"))
