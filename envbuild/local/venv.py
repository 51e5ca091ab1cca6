"""A virtual environment from a lock, for machines without a container engine: its folder, its Python, its wheels."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any

import msgspec
from packaging.utils import canonicalize_name
from rich.filesize import decimal

from envbuild.cache import workplace
from envbuild.capture.host import platform_facts
from envbuild.errors import BuildError, MissingComponentError, UsageError, counted
from envbuild.files import write_whole
from envbuild.local.model import Choice, Machine, Subject
from envbuild.lock.download import fetch
from envbuild.lock.formats import WHEELS, requirements_text
from envbuild.lock.model import Lock, ranked_tags, same_version
from envbuild.lock.settings import uv_environment, uv_program, without_credentials
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.oci.layout import ARCHITECTURES
from envbuild.report import Reporter
from envbuild.verify.rules.catalogue import listing
from envbuild.wheel.name import parsed_wheel

MARKER = ".envbuild.json"
"""The file that marks a folder of envbuild; it names the lock once the folder is complete."""
_LOCK = ".envbuild.lock"
BY_HAND = ".envbuild-golden"
"""A folder for golden samples that only the user may run; it goes when the environment is replaced."""
_OURS = {MARKER, _LOCK, BY_HAND}
_ASIDE = ".envbuild-new"
_OTHER = "give a folder that is new, empty, or was created by envbuild"
_EXACTLY = (
    *("--no-deps", "--no-index", "--require-hashes", "--only-binary", ":all:"),
    *("--find-links", WHEELS, "-r", "requirements.txt"),
)
_CONTAINER = "leave out --venv, and let a container engine run its image"
_MOST_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The content of a folder's marker."""

    lock: str = ""
    """The digest of the wheels and the requested Python; empty while the folder is incomplete."""
    python: str = ""
    """The exact version of its interpreter."""
    entries: tuple[str, ...] = ()
    """The names in the folder when it was complete."""


@contextmanager
def held_venv(folder: Path, lock: Lock, python: str, report: Reporter, *, cache: Path) -> Iterator[Path]:
    """Create a virtual environment of exactly the locked wheels in a folder, and yield its interpreter.

    No other run changes it until the block ends. `python` is the exact version; another patch release is used with a
    warning. An environment from the same lock is kept. UsageError for a lock of another machine and for a folder with
    other files, LockError for wheels that cannot be fetched, MissingComponentError without uv or a Python, BuildError
    if uv fails.
    """
    check_place(folder)
    folder = folder.absolute()
    check_fits(lock, platform_facts())
    with _open_lock(folder) as file:
        _flock(file, LOCK_SH, folder, report)
        marker, is_kept = is_held(folder, lock, python), True
        while marker is None:
            if not file.writable():
                what = "the folder has another environment, and is read-only"
                raise UsageError(what, where=str(folder), todo=_OTHER)
            flock(file, LOCK_UN)  # two runs that upgrade their shared locks would wait for each other
            _flock(file, LOCK_EX, folder, report)
            _check_ours(folder)
            if is_held(folder, lock, python) is None:  # else the run that was waited for created it
                _create(folder, lock, python, report, cache, file.fileno())
                is_kept = False
            # While the lock becomes shared, another run may replace the environment.
            _flock(file, LOCK_SH, folder, report)
            marker = is_held(folder, lock, python)
        if is_kept:
            report.note(f"{folder} was made from the same lock, and is kept")
            if changes := _changed_packages(folder, lock):
                report.warn(f"its packages were changed since: {listing(changes)}; remove {folder} to restore them")
        if python not in {marker.python, lock.target.python_minor}:
            report.warn(
                f"its Python is {marker.python}: {python} is neither on this machine nor could it be downloaded; "
                f'run "uv python install {python}" or pyenv, then remove {folder} to create it again'
            )
        yield folder / "bin" / "python"


def check_place(folder: Path) -> None:
    """Raise UsageError for the current folder, and for one that PATH cannot hold."""
    if folder == Path():
        what = "this is the current folder, which holds the files of the command"
        raise UsageError(what, where="--venv", todo="give a folder of its own, such as --venv .venv")
    if os.pathsep in str(folder.absolute()):
        what = f"no program is found in a folder with {os.pathsep} in its path: PATH cannot hold it"
        raise UsageError(what, where=f"--venv {folder}", todo="give a folder without it")


def check_fits(lock: Lock, here: Mapping[str, Any]) -> None:
    """Raise UsageError if locked wheels do not run on a machine, given capture's facts of its platform."""
    system, machine = here.get("system"), here.get("machine")
    if system != "Linux" or here.get("libc") != "glibc":
        what = f"the lock is for Linux with glibc, and this is {here.get('libc') or system}"
        raise UsageError(what, where="--venv", todo=f"{_CONTAINER}: envbuild locks for nothing else")
    if machine != lock.target.machine:
        name = f"linux/{ARCHITECTURES.get(str(machine), machine)}"
        what = f"the lock is for {lock.target.machine}, and this machine is {machine}"
        raise UsageError(what, where="--venv", todo=f"lock again: envbuild lock MANIFEST --platform {name}")
    glibc = ".".join(str(here.get("libc_version")).split(".")[:2])
    tags = ranked_tags(replace(lock.target, glibc=glibc))
    wheels = {it.filename: parsed_wheel(it.filename) for it in lock.wheels}
    other = [name for name, wheel in wheels.items() if wheel is None or not wheel.tags & tags.keys()]
    if other:
        what = f"these wheels do not run on glibc {glibc}: {listing(other)}"
        raise UsageError(what, where="--venv", todo=f"lock again: envbuild lock MANIFEST --glibc {glibc}")


def lost(subject: Subject, choice: Choice, machine: Machine) -> tuple[str, ...]:
    """Return in sentences what a virtual environment cannot reproduce of the chosen image."""
    stamped, side = choice.pull or choice.expected or choice.nearest, subject.side
    lock = subject.locks.get(stamped.slot) if stamped else None
    python = lock.target.python if lock else side.python
    theirs, ours = lock.target.glibc if lock else side.libc_version, platform_facts().get("libc_version")
    versions = f", with glibc {ours} instead of {theirs}" if ours and theirs and ours != theirs else ""
    lines = [f"libraries and programs of the system are this machine's{versions}"]
    if python:
        minor = ".".join(python.split(".")[:2])
        found = f"Python is {python} only if it is on this machine or can be downloaded; else it is another {minor}"
        lines.insert(0, found)
    if lock and lock.packages:
        packages = listing([f"{it.name} {it.version}" for it in lock.packages])
        lines.append(f"packages of the system are not installed: {packages}")
    if side.machine and side.machine != machine.machine:
        lines.append(
            f"the run's machine was {side.machine}, and this is {machine.machine}: its wheels are other builds"
        )
    if choice.variant == "gpu" and lock and not any(it.name.startswith("nvidia-") for it in lock.wheels):
        lines.append("CUDA's libraries lie in the image's base, and in no wheel: install them on this machine")
    if choice.variant == "gpu" and not choice.gpus:
        lines.append("it can use no GPU")
    outside = (
        "programs run as you, with all of your files, your network and your shell's variables, and in no container"
    )
    return (*lines, outside)


def is_held(folder: Path, lock: Lock, python: str) -> Marker | None:
    """Return a folder's marker if the folder is complete and was created from this lock for this Python."""
    marker = _read_marker(folder)
    same = marker is not None and marker.lock == _lock_digest(lock, python)
    return marker if same and (folder / "bin" / "python").exists() else None


def state(folder: Path) -> tuple[str, ...]:
    """Return what tells an environment from another: its marker, and the packages that are installed now."""
    sites = map(str, folder.glob("lib/python3.*/site-packages"))
    packages = sorted(f"{canonicalize_name(it.name)} {it.version}" for it in distributions(path=list(sites)))
    return (folder / MARKER).read_text("utf-8"), *packages


def _read_marker(folder: Path) -> Marker | None:
    """Return a folder's marker; None if the folder is not envbuild's."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        return Marker()


def _lock_digest(lock: Lock, python: str) -> str:
    """Digest what decides an environment: files, and not where they were found."""
    wheels = sorted([wheel.filename, str(wheel.sha256)] for wheel in lock.wheels)
    return str(Digest.of(canonical_json({"python": python, "wheels": wheels})))


def _open_lock(folder: Path) -> IO[bytes]:
    """Create a folder if it is missing, and open its lock file; UsageError if it holds other files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _LOCK).exists():
            _check_ours(folder)
        # An environment can be used by those who may not write it.
        is_read_only = (folder / _LOCK).exists() and not os.access(folder / _LOCK, os.W_OK)
        return (folder / _LOCK).open("rb" if is_read_only else "a+b")
    except OSError as error:
        raise UsageError(f"this cannot be a folder: {error.strerror}", where=str(folder), todo=_OTHER) from error


def _flock(file: IO[bytes], kind: int, folder: Path, report: Reporter) -> None:
    """Lock a file, shared or exclusive, and say so if another run has it; Linux downgrades without releasing it."""
    try:
        flock(file, kind | LOCK_NB)
    except BlockingIOError:
        report.note(f"waiting for another run that makes or uses {folder}")
        flock(file, kind)


def _check_ours(folder: Path) -> None:
    marker, names = _read_marker(folder), {it.name for it in folder.iterdir()} - _OURS
    # Everything that a killed run left is envbuild's.
    others = names if marker is None else names - set(marker.entries) if marker.lock else set()
    if others:
        more = " and others" if len(others) > 1 else ""
        what = f"the folder holds what envbuild did not put there: {min(others)}{more}"
        raise UsageError(what, where=str(folder), todo=_OTHER)


def _create(folder: Path, lock: Lock, python: str, report: Reporter, cache: Path, handle: int) -> None:
    """Fill the folder, and write its marker last; after an error or Ctrl-C nothing is left in it.

    `handle` is that of the locked file: if this process is killed, the lock ends with uv.
    """
    program = _interpreter(python, report)
    report.step(f"making a virtual environment of {counted(len(lock.wheels), 'wheel')} in {folder}")
    with workplace(cache) as shelf:
        # Before the folder is emptied, as this needs the network.
        (shelf / WHEELS).mkdir()
        (shelf / "requirements.txt").write_bytes(requirements_text(lock))
        for wheel, path in fetch(lock.wheels, cache, reporter=report):
            (shelf / WHEELS / wheel.plain_name).symlink_to(path.absolute())
        size = decimal(sum(it.size for it in lock.wheels))
        report.note(f"{len(lock.wheels)} wheels of {size} are here, as locked")
        with _emptied(folder) as aside:
            # Without uv's own settings, which may add packages, or link to files that will be removed. The cache is on
            # the environment's own disk, so that uv links files instead of copying them.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
            environment |= {"UV_CACHE_DIR": str(aside / "cache"), "UV_NO_CONFIG": "1", "UV_OFFLINE": "1"}
            environment["NO_COLOR"] = "1"
            commands: list[tuple[str, ...]] = [
                ("venv", "--allow-existing", "--no-project", "--python", str(program), str(folder))
            ]
            if lock.wheels:
                commands.append(("pip", "install", "--python", str(folder / "bin" / "python"), *_EXACTLY))
            for command in commands:
                done = _run_uv(*command, environment=environment, folder=shelf, handle=handle)
                if done.returncode:
                    what = f"uv could not make the environment: {_error_of(done)}"
                    todo = "correct what uv reports; free disk space, or make the folder writable"
                    raise BuildError(what, where="--venv", todo=todo)
            if changes := _changed_packages(folder, lock):
                todo = "install the uv that envbuild requires: python -m pip install --upgrade uv"
                raise BuildError(f"uv installed something else: {listing(changes)}", where=str(folder), todo=todo)
    entries = sorted(it.name for it in folder.iterdir() if it.name not in _OURS)
    # uv writes the version into pyvenv.cfg (PEP 405).
    version = re.search(r"(?m)^version_info *= *(\S+)", (folder / "pyvenv.cfg").read_text("utf-8"))
    marker = {"lock": _lock_digest(lock, python), "python": version[1] if version else "", "entries": entries}
    write_whole(folder / MARKER, json.dumps(marker, indent=2).encode() + b"\n")


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """Empty a folder of envbuild's, and yield a temporary one in it; after an error nothing is left."""

    def clear() -> None:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in _OURS:
                path.unlink()

    write_whole(folder / MARKER, b"{}\n")
    clear()
    aside = folder / _ASIDE
    aside.mkdir()
    try:
        yield aside
    except BaseException:
        clear()
        (folder / MARKER).unlink(missing_ok=True)
        raise
    shutil.rmtree(aside)


def _changed_packages(folder: Path, lock: Lock) -> tuple[str, ...]:
    """Compare packages with the lock: `ipython 8.0 added`, `numpy 1.26.4 -> 2.0.0`, `six 1.0 missing`."""
    site = folder / "lib" / f"python{lock.target.python_minor}" / "site-packages"
    installed = {str(canonicalize_name(it.name)): it.version for it in distributions(path=[str(site)])}
    locked = {wheel.name: wheel.version for wheel in lock.wheels}
    changes = []
    for name in sorted(installed.keys() | locked.keys()):
        here, version = installed.get(name), locked.get(name)
        if here is None or version is None:
            changes.append(f"{name} {version} missing" if here is None else f"{name} {here} added")
        elif not same_version(here, version):
            changes.append(f"{name} {version} -> {here}")
    return tuple(changes)


def _interpreter(python: str, report: Reporter) -> Path:
    """Find CPython of an exact version, else download uv's own build; then the same for its minor version.

    MissingComponentError if there is none.
    """
    minor, reason = ".".join(python.split(".")[:2]), ""
    allowed = os.environ.get("UV_PYTHON_DOWNLOADS") or "manual"
    for version in dict.fromkeys((python, minor)):
        if found := _find_python(version):
            return found
        if allowed.lower() in {"never", "false", "0"}:
            reason = "UV_PYTHON_DOWNLOADS forbids a download"
            continue
        report.step(f"Python {version} is not on this machine: downloading uv's build")
        environment = uv_environment() | {"UV_PYTHON_DOWNLOADS": allowed}
        done = _run_uv("python", "install", "--no-bin", f"cpython@{version}", environment=environment)
        reason = _error_of(done) if done.returncode else ""
        if found := _find_python(version):
            return found
    todo = (
        f'install Python {minor}, for example with "apt install python{minor}", "pyenv install {python}" or '
        f'"uv python install {python}"; or let a container engine run the image'
    )
    raise MissingComponentError(f"there is no Python {minor} here: {reason}", where="--venv", todo=todo)


def _find_python(version: str) -> Path | None:
    """Find an interpreter on this machine: this one, pyenv's, or one that uv finds."""
    parts = tuple(version.split("."))
    if platform.python_implementation() == "CPython" and platform.python_version_tuple()[: len(parts)] == parts:
        return Path(sys.executable)
    # pyenv puts only activated versions on PATH.
    own = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions", version, "bin", "python")
    if own.exists():
        return own
    # Neither a project's Python nor that of an active virtual environment.
    words = ("python", "find", "--no-project", "--system", f"cpython@{version}")
    found = _run_uv(*words, environment=uv_environment())
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def _run_uv(
    *arguments: str, environment: Mapping[str, str], folder: Path | None = None, handle: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run uv in a folder without a project, with the file of a handle open; MissingComponentError without uv."""
    return subprocess.run(
        [uv_program(), *arguments],
        cwd=folder or "/",
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=() if handle is None else (handle,),
    )


def _error_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return uv's error on one line, without credentials."""
    text = re.split(r"^error: ", without_credentials(done.stderr), flags=re.MULTILINE)[-1]
    lines = [line.strip().removeprefix("cause: ") for line in text.strip().splitlines()]
    return ": ".join(lines[:_MOST_LINES]) or f"exit code {done.returncode}"
