"""The interpreter that a virtual environment is made from."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any

from packaging.utils import canonicalize_name
from rich.filesize import decimal

from envbuild.cache import workplace
from envbuild.capture.host import platform_facts
from envbuild.errors import BuildError, MissingComponentError, UsageError, counted
from envbuild.files import write_whole
from envbuild.local.model import Choice, Machine, Subject
from envbuild.lock.download import fetch
from envbuild.lock.formats import WHEELS, requirements_text
from envbuild.lock.model import Lock
from envbuild.lock.settings import uv_environment, uv_program, without_credentials
from envbuild.lock.tags import Rank, parsed_wheel, ranked_tags, same_version
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.layout import ARCHITECTURES
from envbuild.report import Reporter

_ALONE = ("--no-project", "--system")
"""No project's Python, and none of a virtual environment that is active."""
_MOST_LINES = 6
MARKER = ".envbuild.json"
"""What makes a folder one of ours; it says from which lock only when everything is there."""
_LOCK = ".envbuild.lock"
_OURS = {MARKER, _LOCK}
_ASIDE = ".envbuild-new"
_OTHER = "give a folder that is new, empty, or was made by envbuild"
_OF_ITS_OWN = "give a folder of its own, such as --venv .venv"
_EXACTLY = (
    *("--no-deps", "--no-index", "--require-hashes", "--only-binary", ":all:"),
    *("--find-links", WHEELS, "-r", "requirements.txt"),
)
_NAMED = 5
_CONTAINER = "leave out --venv, and let a container engine run its image"


def interpreter(python: str, report: Reporter) -> Path:
    """Find CPython of an exact version here, else have uv download it; then the same for its minor version.

    MissingComponentError where there is none at all.
    """
    minor = ".".join(python.split(".")[:2])
    said = ""
    for version in dict.fromkeys((python, minor)):
        if found := _here(version):
            return found
        said = _downloaded(version, report)
        if found := _here(version):
            return found
    todo = (
        f"install Python {minor}, such as by `apt install python{minor}`, `pyenv install {python}`, or "
        f"`uv python install {python}` where its downloads can be reached; or let a container engine run the image"
    )
    raise MissingComponentError(f"there is no Python {minor} here: {said}", where="--venv", todo=todo)


def _here(version: str) -> Path | None:
    """An interpreter of this machine: the one that runs this, pyenv's, or what uv finds."""
    parts = tuple(version.split("."))
    if platform.python_implementation() == "CPython" and platform.python_version_tuple()[: len(parts)] == parts:
        return Path(sys.executable)
    # Those that pyenv has are on PATH only where they are switched on.
    own = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions", version, "bin", "python")
    if own.exists():
        return own
    found = asked_uv("python", "find", *_ALONE, f"cpython@{version}", environment=uv_environment())
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def _downloaded(version: str, report: Reporter) -> str:
    """Have uv install its own build, where it keeps these; what it says if that fails."""
    allowed = os.environ.get("UV_PYTHON_DOWNLOADS") or "manual"
    environment = uv_environment() | {"UV_PYTHON_DOWNLOADS": allowed}
    if allowed.lower() in {"never", "false", "0"}:
        return "UV_PYTHON_DOWNLOADS forbids a download"
    report.step(f"Python {version} is not on this machine: asking uv for its build")
    done = asked_uv("python", "install", "--no-bin", f"cpython@{version}", environment=environment)
    return last_words(done) if done.returncode else ""


def asked_uv(
    *arguments: str, environment: Mapping[str, str], folder: Path | None = None, key: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run uv, in a folder where no project is found; MissingComponentError where there is none.

    `key` is a locked file's handle: if this process is killed, the lock ends with uv and not before.
    """
    return subprocess.run(
        [uv_program(), *arguments],
        cwd=folder or "/",
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=() if key is None else (key,),
    )


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What uv said of its fault, without credentials, on one line."""
    said = re.split(r"^error: ", without_credentials(done.stderr), flags=re.MULTILINE)[-1]
    lines = [line.strip().removeprefix("cause: ") for line in said.strip().splitlines()]
    return ": ".join(lines[:_MOST_LINES]) or f"exit code {done.returncode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a folder's marker says."""

    lock: str
    """The digest of the wheels and the wanted Python; empty while it is not whole."""
    python: str
    """The exact version of its interpreter."""
    entries: tuple[str, ...]
    """The names in the folder when it was whole."""


def made(folder: Path) -> Made | None:
    """Read a folder's marker; None where the folder is not ours."""
    try:
        value: Any = json.loads((folder / MARKER).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        value = {}
    said = value if isinstance(value, dict) else {}
    entries = said.get("entries")
    return Made(
        lock=str(said.get("lock") or ""),
        python=str(said.get("python") or ""),
        entries=tuple(map(str, entries)) if isinstance(entries, list) else (),
    )


def is_held(folder: Path, lock: Lock, python: str) -> Made | None:
    """What a folder's marker says, where it is whole and was made from this lock for this Python."""
    found = made(folder)
    same = found is not None and found.lock == _digest(lock, python)
    return found if same and (folder / "bin" / "python").exists() else None


def check_place(folder: Path) -> None:
    """See that programs can be found in a folder, and that it is not the one they work in; UsageError if not."""
    if folder == Path():
        what = "this is the current folder, which is for the files of what is run"
        raise UsageError(what, where="--venv", todo=_OF_ITS_OWN)
    if os.pathsep in str(folder.absolute()):
        what = f"no program is found in a folder with {os.pathsep} in its path: PATH cannot hold it"
        raise UsageError(what, where=f"--venv {folder}", todo="give a folder without it")


class Door:
    """The lock of a folder: used by many, or changed by one."""

    def __init__(self, folder: Path, file: IO[bytes], report: Reporter) -> None:
        self._folder, self._file, self._report = folder, file, report

    @property
    def key(self) -> int:
        """The handle of the lock, for programs that are to hold it too."""
        return self._file.fileno()

    def share(self) -> None:
        """Keep others from changing the folder; who had it to himself lets nobody else in between, where Linux can."""
        self._lock(LOCK_SH)

    def seize(self) -> None:
        """Have the folder to oneself; UsageError where it holds what is not ours, or cannot be written."""
        if not self._file.writable():
            what = "the folder has another environment, and may not be written"
            raise UsageError(what, where=str(self._folder), todo=_OTHER)
        flock(self._file, LOCK_UN)  # of two that wait for each other's share, neither would come in
        self._lock(LOCK_EX)
        _check_ours(self._folder)

    def _lock(self, kind: int) -> None:
        try:
            flock(self._file, kind | LOCK_NB)
        except BlockingIOError:
            self._report.note(f"waiting for another run that makes or uses {self._folder}")
            flock(self._file, kind)


@contextmanager
def opened(folder: Path, report: Reporter) -> Iterator[Door]:
    """Have a folder's lock at hand, the folder made where it is missing; UsageError where it holds what is not ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _LOCK).exists():
            _check_ours(folder)
        # What is there already can be used by those who may not write it.
        read_only = (folder / _LOCK).exists() and not os.access(folder / _LOCK, os.W_OK)
        file = (folder / _LOCK).open("rb" if read_only else "a+b")
    except OSError as error:
        raise UsageError(f"this cannot be a folder: {error.strerror}", where=str(folder), todo=_OTHER) from error
    with file:
        yield Door(folder, file, report)


def _check_ours(folder: Path) -> None:
    found, names = made(folder), {it.name for it in folder.iterdir()} - _OURS
    # What a run left that was killed is ours, whatever it is.
    others = names if found is None else names - set(found.entries) if found.lock else set()
    if others:
        more = " and others" if len(others) > 1 else ""
        what = f"the folder holds what envbuild did not put there: {min(others)}{more}"
        raise UsageError(what, where=str(folder), todo=_OTHER)


@contextmanager
def begun(folder: Path) -> Iterator[Path]:
    """Empty a folder of ours, and yield an empty one in it that ends with the block; after an error nothing is left."""
    write_whole(folder / MARKER, b"{}\n")
    _clear(folder)
    aside = folder / _ASIDE
    aside.mkdir()
    try:
        yield aside
    except BaseException:
        _clear(folder)
        (folder / MARKER).unlink(missing_ok=True)
        raise
    shutil.rmtree(aside)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in _OURS:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def finished(folder: Path, lock: Lock, python: str) -> None:
    """Say in a folder from what it was made, as the last thing of all."""
    entries = sorted(it.name for it in folder.iterdir() if it.name not in _OURS)
    said = {"lock": _digest(lock, python), "python": _version(folder), "entries": entries}
    write_whole(folder / MARKER, json.dumps(said, indent=2).encode() + b"\n")


def _version(folder: Path) -> str:
    """The interpreter's, as uv writes it into pyvenv.cfg (PEP 405)."""
    lines = (line.partition("=") for line in (folder / "pyvenv.cfg").read_text("utf-8").splitlines())
    settings = {name.strip(): value.strip() for name, _, value in lines}
    return settings.get("version_info", "")


def moved(folder: Path, lock: Lock) -> tuple[str, ...]:
    """What of a folder's packages is not as locked: `ipython 8.0 added`, `numpy 1.26.4 -> 2.0.0`, `six 1.0 missing`."""
    site = folder / "lib" / f"python{lock.target.python_minor}" / "site-packages"
    found = {str(canonicalize_name(it.name)): it.version for it in distributions(path=[str(site)])}
    locked = {wheel.name: wheel.version for wheel in lock.wheels}
    told = {name: f"{name} {version} added" for name, version in found.items() if name not in locked}
    for name, version in locked.items():
        if name not in found:
            told[name] = f"{name} {version} missing"
        elif not same_version(found[name], version):
            told[name] = f"{name} {version} -> {found[name]}"
    return tuple(told[name] for name in sorted(told))


def _digest(lock: Lock, python: str) -> str:
    """What decides an environment: files, not where they were found."""
    wheels = sorted([wheel.filename, str(wheel.sha256)] for wheel in lock.wheels)
    return str(Digest.of(canonical_json({"python": python, "wheels": wheels})))


@contextmanager
def held_venv(folder: Path, lock: Lock, python: str, report: Reporter, *, cache: Path) -> Iterator[Path]:
    """Have a virtual environment of exactly the locked wheels in a folder, and yield its interpreter.

    Nobody changes it until the block ends. `python` is the exact version that is wanted; another of the same minor
    version is taken with a warning. What was made from the same lock is kept. UsageError for a lock of another machine
    and for a folder with other files, LockError for wheels that cannot be had, MissingComponentError without uv or a
    Python, BuildError if uv fails.
    """
    check_place(folder)
    folder = folder.absolute()
    check_fits(lock, platform_facts())
    with opened(folder, report) as door:
        door.share()
        held, kept = is_held(folder, lock, python), True
        while held is None:
            door.seize()
            # Who was waited for may have made the very same.
            if is_held(folder, lock, python) is None:
                _make(folder, lock, python, report, cache, door.key)
                kept = False
            # While the lock becomes a share, another run may make the folder its own.
            door.share()
            held = is_held(folder, lock, python)
        if kept:
            _say_moved(folder, lock, report)
        _say_python(folder, held, python, lock, report)
        yield folder / "bin" / "python"


def _say_python(folder: Path, held: Made, python: str, lock: Lock, report: Reporter) -> None:
    if python not in {held.python, lock.target.python_minor}:
        report.warn(
            f"its Python is {held.python}: {python} is neither on this machine nor could it be downloaded; "
            f"`uv python install {python}` or pyenv may have it, then remove {folder} to have it made again"
        )


def check_fits(lock: Lock, here: Mapping[str, Any]) -> None:
    """See that locked wheels run on a machine, by capture's facts of its platform; UsageError that says what does."""
    system, machine = here.get("system"), here.get("machine")
    if system != "Linux" or here.get("libc") != "glibc":
        what = f"the lock is for Linux with glibc, and this is {here.get('libc') or system}"
        raise UsageError(what, where="--venv", todo=f"{_CONTAINER}: envbuild locks for nothing else")
    if machine != lock.target.machine:
        platform = f"linux/{ARCHITECTURES.get(str(machine), machine)}"
        what = f"the lock is for {lock.target.machine}, and this machine is {machine}"
        raise UsageError(what, where="--venv", todo=f"lock again: envbuild lock MANIFEST --platform {platform}")
    glibc = ".".join(str(here.get("libc_version")).split(".")[:2])
    tags = ranked_tags(replace(lock.target, glibc=glibc))
    other = [it.filename for it in lock.wheels if not _fits(it.filename, tags)]
    if other:
        what = f"these wheels do not run on glibc {glibc}: {_some(other)}"
        raise UsageError(what, where="--venv", todo=f"lock again: envbuild lock MANIFEST --glibc {glibc}")


def _fits(filename: str, tags: Rank) -> bool:
    wheel = parsed_wheel(filename)
    return wheel is not None and any(tag in tags for tag in wheel[3])


def _say_moved(folder: Path, lock: Lock, report: Reporter) -> None:
    report.note(f"{folder} was made from the same lock, and is kept")
    if changes := moved(folder, lock):
        report.warn(f"packages of it were changed since: {_some(changes)}; remove {folder} to have the lock's again")


def _make(folder: Path, lock: Lock, python: str, report: Reporter, cache: Path, key: int) -> None:
    """Fill the folder; after an error or Ctrl-C nothing is left in it."""
    program = interpreter(python, report)
    report.step(f"making a virtual environment of {counted(len(lock.wheels), 'wheel')} in {folder}")
    with workplace(cache) as shelf:
        # All that can fail for want of a network, before what the folder had is gone.
        _fetched(lock, shelf, cache, report)
        with begun(folder) as aside:
            run = partial(_run, shelf, _environment(aside), key)
            run("venv", "--allow-existing", "--no-project", "--python", str(program), str(folder))
            if lock.wheels:
                run("pip", "install", "--python", str(folder / "bin" / "python"), *_EXACTLY)
            _check_whole(folder, lock)
    finished(folder, lock, python)


def _environment(aside: Path) -> dict[str, str]:
    """What uv installs in: without its settings, which may add packages, or link to files that will be gone."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    # On the environment's own disk, so that uv links files instead of copying them.
    ours = {"UV_CACHE_DIR": str(aside / "cache"), "UV_NO_CONFIG": "1", "UV_OFFLINE": "1", "NO_COLOR": "1"}
    return others | ours


def _check_whole(folder: Path, lock: Lock) -> None:
    if changes := moved(folder, lock):
        todo = "install the uv that envbuild asks for: python -m pip install --upgrade uv"
        raise BuildError(f"uv installed something else: {_some(changes)}", where=str(folder), todo=todo)


def _fetched(lock: Lock, shelf: Path, cache: Path, report: Reporter) -> None:
    """Put verified wheels under their names beside a requirements file that has their digests once more."""
    (shelf / WHEELS).mkdir()
    (shelf / "requirements.txt").write_bytes(requirements_text(lock))

    def told(done: int, total: int, _text: str) -> None:
        report.progress("fetching", done, total)

    for wheel, path in fetch(lock.wheels, cache, report=told):
        (shelf / WHEELS / wheel.filename).symlink_to(path.absolute())
    # Progress is told now and then only, and so hardly ever at the end.
    report.note(f"{len(lock.wheels)} wheels of {decimal(sum(it.size for it in lock.wheels))} are here, as locked")


def _run(shelf: Path, environment: Mapping[str, str], key: int, *arguments: str) -> None:
    done = asked_uv(*arguments, environment=environment, folder=shelf, key=key)
    if done.returncode:
        todo = "see its words; there may be no space left, or the folder may not be written"
        raise BuildError(f"uv could not make the environment: {last_words(done)}", where="--venv", todo=todo)


def lost(subject: Subject, choice: Choice, machine: Machine) -> tuple[str, ...]:
    """What a virtual environment cannot reproduce of the image that is chosen, each in a sentence."""
    stamped = choice.pull or choice.expected or choice.nearest
    lock = subject.locks.get(stamped.slot) if stamped else None
    return tuple(_lost(subject, choice, machine, lock))


def _lost(subject: Subject, choice: Choice, machine: Machine, lock: Lock | None) -> Iterator[str]:
    side = subject.side
    python = lock.target.python if lock else side.python
    if python:
        minor = ".".join(python.split(".")[:2])
        yield f"Python is {python} only if it is on this machine or can be downloaded; else it is another {minor}"
    yield _system(lock.target.glibc if lock else side.libc_version)
    if lock and lock.packages:
        packages = _some(f"{it.name} {it.version}" for it in lock.packages)
        yield f"packages of the system are not installed: {packages}"
    if side.machine and side.machine != machine.machine:
        yield f"the run's machine was {side.machine}, and this is {machine.machine}: its wheels are other builds"
    if choice.variant == "gpu" and lock and not any(it.name.startswith("nvidia-") for it in lock.wheels):
        yield "CUDA's libraries lie in the image's base, and in no wheel: this machine has to have them"
    if choice.variant == "gpu" and not choice.gpus:
        yield "there is no GPU that it could use"
    yield "programs run as you, with all of your files, your network and your shell's variables, and in no container"


def _system(theirs: str | None) -> str:
    ours = platform_facts().get("libc_version")
    versions = f", with glibc {ours} instead of {theirs}" if ours and theirs and ours != theirs else ""
    return f"libraries and programs of the system are this machine's{versions}"


def _some(texts: Iterable[str]) -> str:
    """The first few."""
    every = list(texts)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
