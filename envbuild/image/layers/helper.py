"""A second process that writes large layers in parallel, as one interpreter keeps only one core busy.

It reads pickled tasks from standard input and answers each on standard output; both are pipes of this run. It writes
layers into files that the first process opened, and ends when its input ends. It imports neither locks nor recipes, so
that it starts in a tenth of a second.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from envbuild.image.layers.writer import LayerFile, LayerResult, write_layer
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.retry import tune_interpreter
from envbuild.wheel.archive import WheelArchive, check_locked
from envbuild.wheel.install import FilePattern, Fingerprint, InstalledFile, Scheme, fingerprint, installed_files

_CORES = os.cpu_count() or 1
_NICE = 10
"""On two cores all layers together then take a tenth less time (nice(2))."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from envbuild.image.layers.helper import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWheel:
    """A verified wheel on this machine."""

    path: Path
    filename: str
    sha256: Digest
    size: int
    """From the lock."""
    verify_record: bool = False
    """Whether its files are compared with RECORD when they are read."""
    left_out: tuple[FilePattern, ...] = ()
    """Which of its files are not installed."""


@dataclass(frozen=True, slots=True)
class OpenWheel:
    """A wheel and its installed files."""

    archive: WheelArchive
    files: Sequence[InstalledFile]


def open_wheel(wheel: LocalWheel, scheme: Scheme, resources: ExitStack) -> OpenWheel:
    """Open a wheel until `resources` close; WheelError if it cannot be installed."""
    check_locked(wheel.path, wheel.filename, wheel.size)
    archive = resources.enter_context(WheelArchive(wheel.path, wheel.filename))
    archive.verify_record = wheel.verify_record
    return OpenWheel(archive, installed_files(archive, scheme, wheel.left_out))


def layer_files(wheels: Iterable[OpenWheel]) -> list[LayerFile]:
    """Return all files of some wheels in the order of the lock; of equal paths, that of the later wheel."""
    return list({file.path: LayerFile(file, wheel.archive) for wheel in wheels for file in wheel.files}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A layer of wheels."""

    scheme: Scheme
    wheels: Sequence[LocalWheel]
    file: str
    """The path of the empty file for the layer."""
    compression: Compression = GZIP


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A written layer, with verified members and fingerprints of each wheel, by its sha256."""

    result: LayerResult
    verified_members: Mapping[Digest, frozenset[str]]
    prints: Mapping[Digest, Fingerprint]


class Helper:
    """The second process, seen from the first; it writes one layer at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = threading.Lock()
        self._stopped = self._gone = False

    def start(self) -> None:
        """Start it, if there are several cores; errors are ignored, as the layers can be written here."""
        if self._process is None and _CORES > 1 and sys.executable:
            with suppress(OSError):
                command = [sys.executable, "-c", _START, *sys.path]
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # what fails there is tried here, and reported then
                    process_group=0,  # so that Ctrl-C reaches the first process only
                )

    def give_way(self) -> None:
        """Give the calling thread a lower priority than the second process, which does the longest work."""
        if self._process is not None and sys.platform == "linux":  # other systems would change all threads
            with suppress(OSError):
                os.nice(_NICE)

    def stop(self) -> None:
        """Kill it."""
        self._stopped = True
        if self._process:
            self._process.kill()

    def close(self) -> None:
        """Kill it and wait for its end; it can be started again."""
        self.stop()
        if self._process:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):  # unread input
                    pipe.close()  # type: ignore[union-attr]
            self._process.wait()
        self._process, self._stopped, self._gone = None, False, False

    def write(self, task: Task) -> Answer | None:
        """Let it write a layer, and wait; None if it is busy or gone. The file may then hold anything.

        Errors of a wheel are raised as they would be here.
        """
        if self._process is None or self._gone or not self._busy.acquire(blocking=False):
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(task, self._process.stdin)
            self._process.stdin.flush()
            answer: Answer | Exception = pickle.load(self._process.stdout)  # noqa: S301 - a pipe to a process of ours
        except (OSError, EOFError, pickle.UnpicklingError):
            if self._stopped:
                raise
            self._gone = True
            return None
        finally:
            self._busy.release()
        if isinstance(answer, Exception):
            raise answer
        return answer


def main() -> None:
    """Answer tasks until the input ends, even in the middle of one."""
    tune_interpreter()
    tasks: SimpleQueue[Task] = SimpleQueue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        while True:
            task = tasks.get()
            try:
                answer: Answer | Exception = write_task(task)
            except Exception as error:  # noqa: BLE001 - raised in the first process
                answer = error
            pickle.dump(answer, answers)
            answers.flush()


def _read(tasks: "SimpleQueue[Task]") -> None:
    """Take tasks until the input ends: the first process is gone then, perhaps killed."""
    try:
        while True:
            tasks.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - a pipe to the process that started this one
    finally:
        os._exit(0)


def write_task(task: Task) -> Answer:
    """Write the layer of a task."""
    with ExitStack() as stack:
        opened = {wheel.sha256: open_wheel(wheel, task.scheme, stack) for wheel in task.wheels}
        pool = stack.enter_context(ThreadPoolExecutor(_CORES))
        sink: BinaryIO = stack.enter_context(Path(task.file).open("r+b"))
        files = layer_files(opened.values())
        result = write_layer(sink, task.scheme.prefix, files, pool, compression=task.compression)
        members = {sha256: frozenset(it.archive.verified_members) for sha256, it in opened.items()}
        prints = {sha256: fingerprint(it.files) for sha256, it in opened.items()}
        return Answer(result=result, verified_members=members, prints=prints)
