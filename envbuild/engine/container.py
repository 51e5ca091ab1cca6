"""Running one file by a container's own Python: no network, nothing of this machine, nothing left behind."""

import io
import secrets
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from envbuild.engine.client import explanation
from envbuild.engine.image import LocalImage
from envbuild.errors import UsageError

_FOLDER = "envbuild-capture"
"""In the container's root; anybody may write there, as images run as whom they like."""
_OUT = f"/{_FOLDER}/out"
_ELSEWHERE = ("/opt/env/bin/python", "/opt/venv/bin/python", "/opt/conda/bin/python")
"""Where images have a Python that they do not put on PATH."""
MAX_RESULT = 64 * 2**20
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a container left."""

    code: int
    """Its exit code."""
    result: bytes | None
    """The file that it was told to write, if it did."""


def run_file(
    client: docker.DockerClient,
    image: LocalImage,
    script: str,
    arguments: Sequence[str],
    *,
    python: str | None,
    heard: Callable[[str], None],
) -> Done:
    """Run a file by the image's Python with `--out FILE` and arguments; `heard` gets the lines that it prints.

    As the image's user, without a network and without its entry point. UsageError if the image has no Python.
    """
    interpreter = python or _find_python(client, image)
    command = [f"/{_FOLDER}/capture.py", "--out", _OUT, *arguments]
    with _created(client, image.id, entrypoint=[interpreter], command=command) as container:
        container.put_archive("/", _archive(script))
        lines = _started(container, f"--image {image.reference}", interpreter)
        for line in _lines(lines):
            heard(line)
        code = int(container.wait(timeout=None)["StatusCode"])
        return Done(code, _read(container, _OUT))


def _started(container: Container, where: str, interpreter: str) -> Iterable[bytes]:
    """Start a container; return what it prints, of which nothing is missed."""
    try:
        printed: Iterable[bytes] = container.attach(stdout=True, stderr=True, stream=True, logs=False)
        container.start()
    except APIError as error:
        todo = "say with --python where in the image its Python lies; see that the image is for this machine"
        raise UsageError(f"the image cannot run {interpreter}: {explanation(error)}", where=where, todo=todo) from error
    return printed


@contextmanager
def _created(client: docker.DockerClient, image: str, **options: Any) -> Iterator[Container]:
    """Create a container; however the block ends, even before the engine has said its id, it is removed."""
    name = f"envbuild-{secrets.token_hex(8)}"
    try:
        yield client.containers.create(image, name=name, network_mode="none", **options)
    finally:
        with suppress(NotFound):
            client.api.remove_container(name, force=True, v=True)


def _find_python(client: docker.DockerClient, image: LocalImage) -> str:
    """Find the Python that the image runs; a shell to ask is not in every image, so its files are looked at."""
    on_path = (f"{folder.rstrip('/')}/{name}" for name, folder in product(("python3", "python"), image.path))
    with _created(client, image.id, entrypoint=["none"]) as container:
        for path in (*on_path, *_ELSEWHERE):
            if _exists(container, path):
                return path
    todo = "name an image that a model was trained in, or say with --python where in the image its Python lies"
    raise UsageError("the image has no Python on its PATH", where=f"--image {image.reference}", todo=todo)


def _exists(container: Container, path: str) -> bool:
    try:
        content, _ = container.get_archive(path)
    except NotFound:
        return False
    for _ in content:  # read to its end, so that the connection is free again
        pass
    return True


def _archive(script: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(_FOLDER)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(folder)
        data = script.encode()
        file = tarfile.TarInfo(f"{_FOLDER}/capture.py")
        file.size, file.mode = len(data), 0o644
        archive.addfile(file, io.BytesIO(data))
    return buffer.getvalue()


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
