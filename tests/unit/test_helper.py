"""A second process writes the heavy layers; whatever becomes of it, the image is the same."""

import pickle
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Self

import pytest

from envbuild.errors import WheelError
from envbuild.image.layers import helper, maker
from envbuild.image.layers.helper import Answer, Helper, LocalWheel, OpenWheel, Task
from envbuild.lock.model import LockedWheel
from envbuild.oci.blobs import AbandonedError, GrowingBlob
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor
from envbuild.wheel.install import Scheme
from tests.fakes.wheels import make_wheel
from tests.layers import WheelFiles
from tests.unit.test_assemble import built, tree

LARGE: dict[str, str | bytes] = {
    "large/large.bin": random.Random(1).randbytes(9 << 20),
    "large/small.py": "a = 1\n",
    "shared.py": "large",
}
WHEELS = (make_wheel("large", "1", LARGE), make_wheel("other", "1", {"other.py": "b = 2\n", "shared.py": "other"}))
TRUNCATED = "import pickle, sys; sys.path[:] = sys.argv[1:]; task = pickle.load(sys.stdin.buffer)"
NOT_THERE, ASLEEP = "", "import time; time.sleep(600)"
HALF_WRITTEN = f"{TRUNCATED}; open(task.file, 'wb').write(b'x' * (20 << 20))"
GARBLED = f"{HALF_WRITTEN}; print('no pickle')"
DEAF = "import sys; sys.stdin.close()"


class Followers:
    """Reads what grows, each in a thread of its own."""

    def __init__(self) -> None:
        self._pool, self._read = ThreadPoolExecutor(4), list[tuple[GrowingBlob, Future[bytes]]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def follow(self, blob: GrowingBlob) -> None:
        file = FileIO(blob.path)
        self._read.append((blob, self._pool.submit(self._whole, blob, file)))

    def read(self) -> list[tuple[GrowingBlob, bytes]]:
        """What became of each; no bytes where it was abandoned."""
        return [(blob, future.result(60)) for blob, future in self._read]

    @staticmethod
    def _whole(blob: GrowingBlob, file: FileIO) -> bytes:
        with file:
            try:
                return b"".join(blob.pieces(file, lambda: None))
            except AbandonedError:
                return b""


@pytest.fixture
def answers(monkeypatch):
    """What the other process answered; layers of 8 MiB are heavy now."""
    found: list[Answer | None] = []
    write = Helper.write

    def watched(self: Helper, task: Task) -> Answer | None:
        answer = write(self, task)
        found.append(answer)
        return answer

    monkeypatch.setattr(maker, "_HEAVY", 8 << 20)
    monkeypatch.setattr(helper, "_CORES", 2)
    monkeypatch.setattr(Helper, "write", watched)
    return found


@pytest.fixture
def alone(tmp_path_factory):
    """The image as one process makes it."""
    return built(tmp_path_factory.mktemp("alone"), *WHEELS)


def test_the_image_is_the_one_that_a_single_process_makes(alone, answers, tmp_path, monkeypatch):
    opened: list[str] = []
    read = helper.open_wheel

    def watched(wheel: LocalWheel, scheme: Scheme, stack: ExitStack) -> OpenWheel:
        opened.append(wheel.filename)
        return read(wheel, scheme, stack)

    monkeypatch.setattr(maker, "open_wheel", watched)
    wheels = (WHEELS[0], make_wheel("other", "1", {"other.py": "b = 2\n"}))
    result = built(tmp_path, *wheels)
    [answer] = answers
    assert answer is not None
    assert answer.result in result.results.values()
    assert opened == ["other-1-py3-none-any.whl"]
    assert (
        result.verified_members[Digest.of(WHEELS[0].data)]
        == alone.verified_members[Digest.of(WHEELS[0].data)]
        != frozenset()
    )
    assert tree(result.image)["opt/env/lib/python3.11/site-packages/large/large.bin"][1] == LARGE["large/large.bin"]


def test_files_that_a_wheel_shares_with_a_heavy_one_are_found(alone, answers, tmp_path):
    result = built(tmp_path, *WHEELS)
    assert answers[0] is not None
    assert (result.image.digest, result.overlaps, result.verified_members) == (
        alone.image.digest,
        alone.overlaps,
        alone.verified_members,
    )
    assert [it.path for it in result.overlaps] == ["lib/python3.11/site-packages/shared.py"]


@pytest.mark.parametrize("program", [NOT_THERE, HALF_WRITTEN, GARBLED, DEAF], ids=["ends", "half", "garbled", "deaf"])
def test_a_process_that_fails_is_done_without(alone, answers, tmp_path, monkeypatch, program):
    monkeypatch.setattr(helper, "_START", program)
    assert built(tmp_path, *WHEELS).image.digest == alone.image.digest
    assert answers == [None]


@pytest.mark.parametrize(("name", "value"), [("executable", ""), ("executable", "/nowhere/python")])
def test_a_process_that_cannot_be_started_is_done_without(alone, answers, tmp_path, monkeypatch, name, value):
    monkeypatch.setattr(sys, name, value)
    assert built(tmp_path, *WHEELS).image.digest == alone.image.digest
    assert answers == [None]


def test_one_core_has_no_use_for_another_process(answers, tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "_CORES", 1)
    monkeypatch.setattr(subprocess, "Popen", None)
    built(tmp_path, *WHEELS)
    assert answers == [None]


@pytest.mark.parametrize("program", [helper._START, NOT_THERE, HALF_WRITTEN], ids=["works", "ends", "half"])
def test_a_heavy_layer_can_be_followed_while_it_is_written(alone, answers, tmp_path, monkeypatch, program):
    monkeypatch.setattr(helper, "_START", program)
    with Followers() as followers:
        result = built(tmp_path, *WHEELS, on_start=followers.follow)
    assert result.image.digest == alone.image.digest
    [(blob, data)] = followers.read()
    assert blob.label == "large 1"
    if program == HALF_WRITTEN:
        assert (blob.descriptor, data) == (None, b"")
    else:
        assert blob.descriptor in [layer.descriptor for layer in result.image.layers]
        assert blob.descriptor == Descriptor(LAYER_GZIP, Digest.of(data), len(data))


@pytest.mark.usefixtures("answers")
def test_nobody_follows_a_layer_whose_wheel_is_still_on_its_way(tmp_path, monkeypatch):
    happened: list[str] = []
    path = WheelFiles.path

    def arriving(self: WheelFiles, wheel: LockedWheel) -> Path:
        time.sleep(0.2)
        happened.append(f"{wheel.name} came")
        return path(self, wheel)

    monkeypatch.setattr(WheelFiles, "path", arriving)
    built(tmp_path, WHEELS[0], on_start=lambda blob: happened.append(f"{blob.label} begun"))
    assert happened[:2] == ["large came", "large 1 begun"]


def test_a_heavy_layer_with_a_stream_that_cannot_be_continued_is_compressed_as_a_whole(
    answers, tmp_path, tmp_path_factory, monkeypatch
):
    """Such a stream is known at its end only, when the layer has been written up to there."""
    text, usual = b"".join(b"%d\n" % number for number in range(400_000)), zlib.compressobj
    with monkeypatch.context() as patch:  # where all blocks have the same codes, none is known by them
        patch.setattr(zlib, "compressobj", lambda level, way, bits: usual(level, way, bits, 9, zlib.Z_FIXED))
        wheel = make_wheel("odd", "1", LARGE | {"odd/large": text})
    with Followers() as followers:
        result = built(tmp_path, wheel, on_start=followers.follow)
    assert [data for _, data in followers.read()] == [b""]
    assert answers == []
    with result.image.layers[0].open() as blob:
        reader = zlib.decompressobj(31)
        reader.decompress(blob.read())
    assert reader.eof
    assert not reader.unused_data
    assert tree(result.image)["opt/env/lib/python3.11/site-packages/odd/large"][1] == text
    monkeypatch.setattr(maker, "_HEAVY", 1 << 30)
    assert built(tmp_path_factory.mktemp("here"), wheel).image.digest == result.image.digest


def test_a_layer_that_cannot_be_written_is_abandoned(answers, tmp_path):
    wheel = make_wheel("large", "1", LARGE)
    middle = len(wheel.data) // 2
    broken = replace(wheel, data=wheel.data[:middle] + bytes(9) + wheel.data[middle + 9 :])
    with Followers() as followers:
        with pytest.raises(WheelError):
            built(tmp_path, broken, on_start=followers.follow)
        [(blob, data)] = followers.read()
    assert (blob.descriptor, data) == (None, b"")


def test_light_layers_start_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(Helper, "start", None)
    built(tmp_path, *WHEELS)


def test_a_wheel_is_refused_there_as_it_is_here(answers, tmp_path):
    record = "large/large.bin,sha256=,1\n"
    with pytest.raises(WheelError) as caught:
        built(tmp_path, make_wheel("large", "1", LARGE, record=record))
    assert "where its RECORD says" in caught.value.what
    assert caught.value.where == "large-1-py3-none-any.whl"
    assert caught.value.todo
    assert answers == []


def test_stopping_wakes_who_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "_START", ASLEEP)
    monkeypatch.setattr(helper, "_CORES", 2)
    other = Helper()
    other.start()
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            other.write(task_of(tmp_path))
        except (EOFError, OSError) as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    other.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert raised
    other.close()


def test_a_second_layer_does_not_wait_for_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "_START", ASLEEP)
    monkeypatch.setattr(helper, "_CORES", 2)
    other = Helper()
    other.start()
    with other._busy:
        assert other.write(task_of(tmp_path)) is None
    other.close()


def test_closed_it_is_gone_and_can_be_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "_CORES", 2)
    other, task = Helper(), task_of(tmp_path)
    for _ in range(2):
        other.start()
        process = other._process
        assert process
        assert other.write(task) == helper.write_task(task)
        other.close()
        assert process.returncode is not None
        assert other.write(task) is None
    other.close()


def test_no_process_is_left_when_the_heavy_layers_are_written(answers, tmp_path, monkeypatch):
    closed, close = list[bool](), Helper.close

    def watched(self: Helper) -> None:
        closed.append(self._process is None)
        close(self)

    monkeypatch.setattr(Helper, "close", watched)
    built(tmp_path, *WHEELS)
    assert closed == [False, True], "with the layers, and again with all that is made"


def test_it_answers_until_its_input_ends(tmp_path):
    task = task_of(tmp_path)
    with asked(helper._START, task) as process:
        assert process.stdin
        assert process.stdout
        assert pickle.load(process.stdout) == helper.write_task(task)
        process.stdin.close()
        assert process.wait(60) == 0


def test_it_ends_with_the_process_that_asks_in_the_middle_of_a_layer(tmp_path):
    slow = (
        "from envbuild.image.layers import helper; helper.write_task = lambda task: (print('at it'), time.sleep(600))"
    )
    start = f"import sys, time; sys.path[:] = sys.argv[1:]; {slow}; helper.main()"
    began = time.monotonic()
    with asked(start, task_of(tmp_path)) as process:
        assert process.stdin
        time.sleep(1)
        process.stdin.close()
        assert process.wait(60) == 0
    assert time.monotonic() - began < 60


@contextmanager
def asked(program: str, task: Task) -> Iterator[subprocess.Popen[bytes]]:
    """The process with one task."""
    command = [sys.executable, "-c", program, *sys.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        pickle.dump(task, process.stdin)
        process.stdin.flush()
        yield process


def task_of(folder: Path) -> Task:
    wheel = WHEELS[0]
    path, layer = folder / wheel.filename, folder / "layer"
    path.write_bytes(wheel.data)
    layer.touch()
    file = LocalWheel(
        path=path, filename=wheel.filename, sha256=Digest.of(wheel.data), size=len(wheel.data), verify_record=True
    )
    return Task(scheme=Scheme(prefix="/opt/env", python_minor="3.11"), wheels=[file], file=str(layer))
