"""Containers of images that others built: confined, without files of this machine, and removed at the end."""

import io
import json
import os
import re
import secrets
import tarfile
import time
from collections import deque
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
from docker.errors import APIError, ContainerError, DockerException, NotFound
from docker.models.containers import Container
from docker.utils.socket import frames_iter
from requests import RequestException

from envbuild.capture import script
from envbuild.engine.client import LocalImage, connected, explanation, find_image
from envbuild.errors import BaseError, ManifestError, UsageError
from envbuild.manifest.reader import read_manifest
from envbuild.report import Reporter

WRITABLE = ("/tmp", "/run", "/var/tmp")  # noqa: S108 - the container's own
"""Folders in memory; the rest of the root file system is read-only."""
MAX_PROCESSES = 4096
"""Processes and threads: a server on a large machine has hundreds."""


def confinement(client: docker.DockerClient, memory: int | None = None) -> dict[str, Any]:
    """Return docker-py's options for a container without network and capabilities, with a read-only root.

    It may use `memory` bytes, WRITABLE included; by default three quarters of the memory of the engine's machine.
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
_REMOVED = "removed {}, which a killed command had left in the engine"
_UNKNOWN = "0" * 8
_LONGEST = 24 * 60 * 60
"""Seconds after which names of processes that this one cannot see are leftovers: those of other machines or containers,
and from before this machine's last start."""


def owner_suffix() -> str:
    """A unique end of a name in the engine, which tells the process that created it, and when."""
    started = _state(os.getpid())[1]
    return f"{_machine()}-{os.getpid()}-{started}-{int(time.time())}-{secrets.token_hex(4)}"


def remove_leftovers(client: docker.DockerClient, report: Reporter) -> None:
    """Remove the containers, their volumes and the images of commands that were killed; ignore what cannot go."""
    with suppress(DockerException, RequestException):
        for container in client.api.containers(all=True):
            name = next((it for it in container.get("Names") or () if is_leftover(it, time.time())), None)
            with suppress(APIError):  # other commands may remove it, too
                if name:
                    client.api.remove_container(container["Id"], force=True, v=True)
                    report.note(_REMOVED.format(name.removeprefix("/")))
        for name in (tag for image in client.api.images() for tag in image.get("RepoTags") or ()):
            with suppress(APIError):
                if is_leftover(name, time.time()):
                    client.api.remove_image(name)
                    report.note(_REMOVED.format(name))


def is_leftover(name: str, now: float) -> bool:
    """Whether a process that no longer runs created this name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    machine, pid, started, created = match.groups()
    if machine == _UNKNOWN or machine != _machine():
        return now - int(created) > _LONGEST
    return not _runs(int(pid), started)


def _machine() -> str:
    """Identify the machine since its last start, and the namespace that numbers its processes."""
    try:
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return _UNKNOWN
    return sha256(f"{os.uname().nodename}\n{boot}\n{space}".encode()).hexdigest()[:8]


def _runs(pid: int, started: str) -> bool:
    state, start = _state(pid)
    if state:
        return start == started and state not in "ZX"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # /proc may hide the processes of others
        return True
    return True


def _state(pid: int) -> tuple[str, str]:
    """Its state and start in ticks since the boot (proc_pid_stat(5)); empty and 0 if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", "0"
    return fields[0], fields[19]


def tar_stream(files: Mapping[str, bytes | Path], folders: Mapping[str, int]) -> Iterator[bytes]:
    """Yield a tar of folders with these modes, and of files that everybody may read.

    Nothing follows its end marker, unlike TarFile's padding: podman stops reading there, and the rest would break the
    pipe (buildah #6573).
    """
    for name, mode in folders.items():
        yield _header(name, tarfile.DIRTYPE, mode)
    for name, content in files.items():
        yield from _entry(name, content)
    yield bytes(2 * tarfile.BLOCKSIZE)


def parents(names: Iterable[str]) -> dict[str, None]:
    """The parent folders of relative paths, the upper ones first."""
    return {str(folder): None for name in names for folder in reversed(PurePosixPath(name).parents[:-1])}


def _entry(name: str, content: bytes | Path) -> Iterator[bytes]:
    """A file of the size that it had when it was opened, even if another process writes to it meanwhile."""
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
"""An anonymous volume, as the container's root is read-only."""
_OUT = f"{_FOLDER}/out/result"
"""In a folder that everybody may write to, as images run as any user."""
_OFF_PATH = ("/opt/env/bin/python", "/opt/venv/bin/python", "/opt/conda/bin/python")
"""Interpreters that images do not put on PATH."""
MAX_RESULT = 64 * 2**20
"""Bytes."""
_CHUNK = 1 << 20
_NOTHING: Mapping[str, bytes | Path] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ContainerResult:
    """The end of a container."""

    code: int
    result: bytes | None
    """The contents of the file given by --out, if it was written."""
    late: bool = False
    """Whether it was killed because its time was up."""


def run_file(
    client: docker.DockerClient,
    image: LocalImage,
    program: str,
    arguments: Sequence[str],
    *,
    python: str | None,
    on_line: Callable[[str], None],
    files: Mapping[str, bytes | Path] = _NOTHING,
    seconds: float | None = None,
) -> ContainerResult:
    """Run a program by the image's Python with `--out FILE` and arguments; `on_line` gets each line that it prints.

    It runs as the image's user, confined, without the image's entry point; `files` are copied to its folder under
    these names. After `seconds` it is killed. UsageError if the image has no Python.
    """
    interpreter = python or _find_python(client, image)
    command = [f"{_FOLDER}/capture.py", "--out", _OUT, *arguments]
    with _created(client, image.id, entrypoint=[interpreter], command=command) as container:
        files = {"capture.py": program.encode(), **files}
        container.put_archive(_FOLDER, tar_stream(files, {**dict.fromkeys(parents(files), 0o755), "out": 0o777}))
        with _ended_after(seconds, container) as ended:
            with _started(client, container, f"--image {image.reference}", interpreter) as printed:
                for line in _lines(printed):
                    on_line(line)
            code = int(container.wait(timeout=None)["StatusCode"])
        return ContainerResult(code, _read(container, _OUT), late=ended.is_set())


@contextmanager
def _ended_after(seconds: float | None, container: Container) -> Iterator[Event]:
    """Kill a container that still runs after some seconds; the event tells whether this happened."""
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
    """Start a container; yield all of its output."""
    patience, client.api.timeout = client.api.timeout, None  # it may be silent for any time
    try:
        socket = container.attach_socket(params={"stdout": 1, "stderr": 1, "stream": 1})
    finally:
        client.api.timeout = patience
    try:
        container.start()
        yield (data for _, data in frames_iter(socket, tty=False))
    except APIError as error:
        todo = "give the path of the image's Python by --python; check that the image is for this machine"
        raise UsageError(f"the image cannot run {interpreter}: {explanation(error)}", where=where, todo=todo) from error
    finally:
        getattr(socket, "_response", socket).close()  # docker-py keeps the connection's owner there


@contextmanager
def _created(client: docker.DockerClient, image: str, **options: Any) -> Iterator[Container]:
    """Create a container, and remove it even if the block ends before the engine has answered its id."""
    name = f"envbuild-run-{owner_suffix()}"
    try:
        yield client.containers.create(image, name=name, volumes=[_FOLDER], **confinement(client), **options)
    finally:
        with suppress(NotFound):
            client.api.remove_container(name, force=True, v=True)


def _find_python(client: docker.DockerClient, image: LocalImage) -> str:
    """Find the image's Python by its files, as not every image has a shell."""
    on_path = (f"{folder.rstrip('/')}/{name}" for name, folder in product(("python3", "python"), image.path))
    if found := first_file(client, image.id, (*on_path, *_OFF_PATH)):
        return found
    todo = "name an image that a model was trained in, or give the path of the image's Python by --python"
    raise UsageError("the image has no Python on its PATH", where=f"--image {image.reference}", todo=todo)


def first_file(client: docker.DockerClient, image: str, paths: Sequence[str]) -> str | None:
    """The first of these paths that an image has; the image is not started."""
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
    """Read a file of a container that has ended; None if it is absent or too large."""
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


MACHINE_FACTS = ("accelerator", "cpu", "host.machine_type", "host.zone", "native.thread_pools", "platform.kernel")
"""Facts of the machine that the container ran on, which is not the one that the model was trained on."""
_PYTHON_2 = "future feature annotations is not defined"
"""The error of Python before 3.7."""
_FACTS_SCRIPT = r"""
import json, os, re, sys
said = open("/etc/os-release").read() if os.path.exists("/etc/os-release") else ""
named = re.search(r'^PRETTY_NAME="?([^"\n]{1,99})', said, re.M)
print(json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3],
    "glibc": os.confstr("CS_GNU_LIBC_VERSION").split()[-1],
    "machine": os.uname().machine,
    "distribution": named.group(1) if named else "",
    "cuda": os.environ.get("CUDA_VERSION", ""),
    "cudnn": os.environ.get("NV_CUDNN_VERSION", ""),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """The facts of a base that an environment depends on."""

    python: str
    glibc: str
    machine: str
    distribution: str
    """PRETTY_NAME of its os-release."""
    cuda: str
    """As NVIDIA's images set it: `11.2.2`; empty without."""
    cudnn: str


def inspect_base(client: docker.DockerClient, image: str) -> BaseFacts:
    """Read the facts of an image that the engine has; BaseError when its Python does not answer."""
    try:
        output = client.containers.run(
            image, ["-I", "-c", _FACTS_SCRIPT], entrypoint=["python3"], remove=True, **confinement(client)
        )
        facts: dict[str, Any] = json.loads(output)
        return BaseFacts(**{name: str(value)[:99] for name, value in facts.items()})
    except (ContainerError, APIError, ValueError, TypeError) as error:
        why = explanation(error) if isinstance(error, APIError) else str(error)[:200]
        todo = "give an image with python3 on its PATH, for this machine"
        raise BaseError(f"the image's Python does not answer: {why}", where=image, todo=todo) from error


def image_environment(
    reference: str, arguments: Sequence[str], *, python: str | None, report: Reporter
) -> dict[str, Any]:
    """Capture the environment of an image by its own Python; `python` is a path in the image, None to find it.

    ManifestError if that Python cannot capture.
    """
    lines = deque[str](maxlen=100)

    def add_line(line: str) -> None:
        lines.append(line[:1000])
        report.note(line)

    with connected("run in the image itself what `envbuild capture --script` prints") as client:
        image = find_image(client, reference, report)
        report.step(f"Capturing in a container of {reference}")
        container = run_file(client, image, script(), arguments, python=python, on_line=add_line)
    where = f"--image {image.reference}"
    if container.result is not None:
        read_manifest(container.result, where)  # the image is untrusted
        return facts_of_image(json.loads(container.result), image)
    if any(_PYTHON_2 in line for line in lines):
        what, todo = "the image's Python is older than 3.7", "name another with --python, if the image has one"
    else:
        what = f"the image's Python could not capture its environment (exit code {container.code})"
        todo = "read its message above; Python must be 3.7 or later"
    raise ManifestError(what, where=where, todo=todo)


def facts_of_image(environment: dict[str, Any], image: LocalImage) -> dict[str, Any]:
    """Keep the facts that hold wherever the image runs, and list the unknown ones."""
    facts = {key: value for key, value in environment.items() if key not in ("accelerator", "cpu", "host")}
    for key, unknown in (("native", "thread_pools"), ("platform", "kernel")):
        if key in facts:
            facts[key] = {name: value for name, value in facts[key].items() if name != unknown}
    notes = ["captured in a container of the image: variables are those that the image sets, code is what it holds"]
    if image.digest is None:
        notes.append(f"no registry has given the image a digest: {image.id} is its name on one engine only")
    source = dict(facts["source"])
    source["unknown"] = sorted({*source.get("unknown", ()), *MACHINE_FACTS})
    source["notes"] = [*source.get("notes", ()), *notes]
    container = {"image": image.digest or image.reference, "source": "docker inspect"}
    return dict(facts, source=source, host={"container": container})
