"""A virtual environment from a lock, for machines without a container engine."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.filesize import decimal

from envbuild.cache import workplace
from envbuild.capture.host import platform_facts
from envbuild.engine.image import Report
from envbuild.errors import BuildError, UsageError, counted
from envbuild.local.model import Choice, Machine, Subject
from envbuild.local.venv_folder import Made, begun, check_place, finished, is_held, moved, opened
from envbuild.local.venv_python import asked_uv, interpreter, last_words
from envbuild.lock import Lock, fetch, requirements_text
from envbuild.lock.formats import WHEELS
from envbuild.lock.tags import Rank, parsed_wheel, ranked_tags
from envbuild.oci.layout import ARCHITECTURES

_EXACTLY = (
    *("--no-deps", "--no-index", "--require-hashes", "--only-binary", ":all:"),
    *("--find-links", WHEELS, "-r", "requirements.txt"),
)
_NAMED = 5
_CONTAINER = "leave out --venv, and let a container engine run its image"


class Teller(Report, Protocol):
    """Who is told what goes on."""

    def warn(self, text: str, /) -> None:
        """Say what the reader should not miss."""


@contextmanager
def held_venv(folder: Path, lock: Lock, python: str, report: Teller, *, cache: Path) -> Iterator[Path]:
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


def _say_python(folder: Path, held: Made, python: str, lock: Lock, report: Teller) -> None:
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


def _say_moved(folder: Path, lock: Lock, report: Teller) -> None:
    report.note(f"{folder} was made from the same lock, and is kept")
    if changes := moved(folder, lock):
        report.warn(f"packages of it were changed since: {_some(changes)}; remove {folder} to have the lock's again")


def _make(folder: Path, lock: Lock, python: str, report: Teller, cache: Path, key: int) -> None:
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


def _fetched(lock: Lock, shelf: Path, cache: Path, report: Report) -> None:
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
