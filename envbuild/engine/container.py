"""Running one file by a container's own Python: confined, nothing of this machine, nothing left behind."""

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Event, Timer
from types import MappingProxyType
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.utils.socket import frames_iter
from requests import RequestException

from envbuild.engine.client import explanation
from envbuild.engine.confinement import confinement
from envbuild.engine.image import LocalImage
from envbuild.engine.left import maker
from envbuild.engine.tarred import parents, tarred
from envbuild.errors import UsageError

_FOLDER = "/envbuild-capture"
"""A volume of the container's own, as its root can't be written."""
_OUT = f"{_FOLDER}/out/result"
"""In a folder that anybody may write to, as images run as whom they like."""
_ELSEWHERE = ("/opt/env/bin/python", "/opt/venv/bin/python", "/opt/conda/bin/python")
"""Where images have a Python that they do not put on PATH."""
MAX_RESULT = 64 * 2**20
"""Bytes."""
_CHUNK = 1 << 20
_NOTHING: Mapping[str, bytes | Path] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Done:
    """What a container left."""

    code: int
    """Its exit code."""
    result: bytes | None
    """The file that it was told to write, if it did."""
    late: bool = False
    """Whether it was ended, as its time was up."""


def run_file(
    client: docker.DockerClient,
    image: LocalImage,
    script: str,
    arguments: Sequence[str],
    *,
    python: str | None,
    heard: Callable[[str], None],
    beside: Mapping[str, bytes | Path] = _NOTHING,
    seconds: float | None = None,
) -> Done:
    """Run a file by the image's Python with `--out FILE` and arguments; `heard` gets the lines that it prints.

    As the image's user, confined and without its entry point. Copies of the files in `beside` lie by these names
    beside it, also in folders. After `seconds` it is ended. UsageError if the image has no Python.
    """
    interpreter = python or _find_python(client, image)
    command = [f"{_FOLDER}/capture.py", "--out", _OUT, *arguments]
    with _created(client, image.id, entrypoint=[interpreter], command=command) as container:
        files = {"capture.py": script.encode(), **beside}
        container.put_archive(_FOLDER, tarred(files, {**dict.fromkeys(parents(files), 0o755), "out": 0o777}))
        with _ended_after(seconds, container) as ended:
            with _started(client, container, f"--image {image.reference}", interpreter) as printed:
                for line in _lines(printed):
                    heard(line)
            code = int(container.wait(timeout=None)["StatusCode"])
        return Done(code, _read(container, _OUT), late=ended.is_set())


@contextmanager
def _ended_after(seconds: float | None, container: Container) -> Iterator[Event]:
    """Kill a container that still runs after some seconds; the event says that this was so."""
    ended = Event()

    def end() -> None:
        ended.set()
        with suppress(APIError, RequestException):  # it may have ended a moment ago
            container.kill()

    timer = Timer(seconds or 0, end)
    timer.daemon = True
    try:
        if seconds is not None:
            timer.start()
        yield ended
    finally:
        timer.cancel()


@contextmanager
def _started(
    client: docker.DockerClient, container: Container, where: str, interpreter: str
) -> Iterator[Iterable[bytes]]:
    """Start a container; yield what it prints, of which nothing is missed."""
    patience, client.api.timeout = client.api.timeout, None  # it may be silent for as long as it likes
    try:
        socket = container.attach_socket(params={"stdout": 1, "stderr": 1, "stream": 1})
    finally:
        client.api.timeout = patience
    try:
        container.start()
        yield (data for _, data in frames_iter(socket, tty=False))
    except APIError as error:
        todo = "say with --python where in the image its Python lies; see that the image is for this machine"
        raise UsageError(f"the image cannot run {interpreter}: {explanation(error)}", where=where, todo=todo) from error
    finally:
        getattr(socket, "_response", socket).close()  # what owns the connection is kept there by docker-py


@contextmanager
def _created(client: docker.DockerClient, image: str, **options: Any) -> Iterator[Container]:
    """Create a container; however the block ends, even before the engine has said its id, it is removed."""
    name = f"envbuild-run-{maker()}"
    try:
        yield client.containers.create(image, name=name, volumes=[_FOLDER], **confinement(client), **options)
    finally:
        with suppress(NotFound):
            client.api.remove_container(name, force=True, v=True)


def _find_python(client: docker.DockerClient, image: LocalImage) -> str:
    """Find the Python that the image runs; a shell to ask is not in every image, so its files are looked at."""
    on_path = (f"{folder.rstrip('/')}/{name}" for name, folder in product(("python3", "python"), image.path))
    if found := first_file(client, image.id, (*on_path, *_ELSEWHERE)):
        return found
    todo = "name an image that a model was trained in, or say with --python where in the image its Python lies"
    raise UsageError("the image has no Python on its PATH", where=f"--image {image.reference}", todo=todo)


def first_file(client: docker.DockerClient, image: str, paths: Sequence[str]) -> str | None:
    """The first of these paths that an image has, which is not started for it."""
    with _created(client, image, entrypoint=["none"]) as container:
        return next((path for path in paths if _exists(container, path)), None)


def _exists(container: Container, path: str) -> bool:
    try:
        content, _ = container.get_archive(path)
    except NotFound:
        return False
    for _ in content:  # read to its end, so that the connection is free again
        pass
    return True


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        # A container that prints without line ends must not fill the memory.
        rest = rest[-10_000:]
    if rest:
        yield rest.decode(errors="replace")


def _read(container: Container, path: str) -> bytes | None:
    """Read one file of a container that has ended; None if it is not there or too large."""
    try:
        chunks, _ = container.get_archive(path)
    except NotFound:
        return None
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_RESULT:
            return None
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member and member.isreg() else None
        return file.read() if file else None
