"""Running one file by a container's own Python: confined, nothing of this machine, nothing left behind."""

import io
import os
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path, PurePosixPath
from threading import Event, Timer
from types import MappingProxyType
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container
from docker.utils.socket import frames_iter
from requests import RequestException

from envbuild.engine.client import explanation
from envbuild.engine.image import LocalImage
from envbuild.errors import UsageError
from envbuild.report import Reporter

WRITABLE = ("/tmp", "/run", "/var/tmp")  # noqa: S108 - the container's own
"""Folders in memory; nothing else of the root file system can be written."""
MAX_PROCESSES = 4096
"""Processes and threads: a server on a large machine has hundreds."""


def confinement(client: docker.DockerClient, memory: int | None = None) -> dict[str, Any]:
    """Return docker-py's options for a container without a network, capabilities or a root that it can write.

    It may use `memory` bytes, by default three quarters of what the engine's machine has. That includes WRITABLE.
    """
    limit = memory or client.info().get("MemTotal", 0) * 3 // 4
    return {
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": dict.fromkeys(WRITABLE, "rw,exec,mode=1777"),
        "mem_limit": limit,
        "memswap_limit": limit,
        "pids_limit": MAX_PROCESSES,
    }


_NAME = re.compile(r"(?:.*/)?envbuild-[a-z]+[-:](?:[0-9a-f]+-)?([0-9a-f]{8})-([1-9]\d*)-(\d+)-(\d{10})-[0-9a-f]{8}")
_NOWHERE = "0" * 8
_LONGEST = 24 * 60 * 60
"""Seconds after which nobody uses what processes made that cannot be seen from here: on other machines, in containers,
before this machine started again."""


def maker() -> str:
    """The end of a name that nobody else gives, and that says which process gave it, and when."""
    began = _state(os.getpid())[1]
    return f"{_here()}-{os.getpid()}-{began}-{int(time.time())}-{secrets.token_hex(4)}"


def remove_left(client: docker.DockerClient, report: Reporter) -> None:
    """Remove containers with their volumes, and then images, whose maker is gone; what the engine keeps stays."""
    with suppress(DockerException, RequestException):
        for name in (*_removed_containers(client), *_removed_images(client)):
            report.note(f"removed {name}, which a command that was killed had left in the engine")


def is_left(name: str, now: float) -> bool:
    """Whether a name says that a process gave it that is gone."""
    found = _NAME.fullmatch(name)
    if found is None:
        return False
    where, pid, began, made = found.groups()
    if where == _NOWHERE or where != _here():
        return now - int(made) > _LONGEST
    return not _runs(int(pid), began)


def _removed_containers(client: docker.DockerClient) -> Iterator[str]:
    for one in client.api.containers(all=True):
        name = next((it for it in one.get("Names") or () if is_left(it, time.time())), None)
        with suppress(APIError):  # others may remove it, too
            if name:
                client.api.remove_container(one["Id"], force=True, v=True)
                yield name.removeprefix("/")


def _removed_images(client: docker.DockerClient) -> Iterator[str]:
    for name in (tag for one in client.api.images() for tag in one.get("RepoTags") or ()):
        with suppress(APIError):
            if is_left(name, time.time()):
                client.api.remove_image(name)
                yield name


def _here() -> str:
    """The machine since its last start, and the namespace that numbers its processes."""
    try:
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return _NOWHERE
    return sha256(f"{os.uname().nodename}\n{boot}\n{space}".encode()).hexdigest()[:8]


def _runs(pid: int, began: str) -> bool:
    state, start = _state(pid)
    if state:
        return start == began and state not in "ZX"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # /proc may hide the processes of others
        return True
    return True


def _state(pid: int) -> tuple[str, str]:
    """Its state and when it began, in ticks since the boot (proc_pid_stat(5)); empty and 0 where that is not told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", "0"
    return fields[0], fields[19]


def tarred(files: Mapping[str, bytes | Path], folders: Mapping[str, int]) -> Iterator[bytes]:
    """Yield a tar of folders with these modes, and of files that everybody may read.

    Nothing stands behind its end, as TarFile would have it: podman leaves there, and what is still written to it then
    breaks its pipe (buildah #6573).
    """
    for name, mode in folders.items():
        yield _header(name, tarfile.DIRTYPE, mode)
    for name, content in files.items():
        yield from _entry(name, content)
    yield bytes(2 * tarfile.BLOCKSIZE)


def parents(names: Iterable[str]) -> dict[str, None]:
    """The folders that relative paths lie in, those above before those below."""
    return {str(folder): None for name in names for folder in reversed(PurePosixPath(name).parents[:-1])}


def _entry(name: str, content: bytes | Path) -> Iterator[bytes]:
    """A file as large as it was when it was opened, whatever is written to it meanwhile."""
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        yield _header(name, tarfile.REGTYPE, 0o644, size)
        left = size
        while left and (data := file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data
        yield bytes(left) + bytes(-size % tarfile.BLOCKSIZE)


def _header(name: str, kind: bytes, mode: int, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size = kind, mode, size
    return info.tobuf(tarfile.PAX_FORMAT)


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
