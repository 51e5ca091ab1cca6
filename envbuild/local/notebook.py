"""A notebook server in a virtual environment of its own, so that no pin of the environment moves.

The server's interpreter sees its own packages first and then those of the environment, and so is the kernel.
"""

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import docker
import httpx

from envbuild.build.extend import EngineChild, extend
from envbuild.files import write_whole
from envbuild.image.child import Addition
from envbuild.local.model import Launch, Port
from envbuild.local.venv import held_venv, is_held
from envbuild.lock.model import Lock, LockedWheel
from envbuild.lock.run import Options, lock_above
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.oci.reference import Reference
from envbuild.report import Reporter
from envbuild.validation import read_values

PREFIX = "/opt/notebook"
PORT = 8888
REQUIREMENTS = ("nbclassic", "ipykernel")
"""The smallest set with a page of cells: 80 wheels, 31 MB; JupyterLab has 91 and 49 MB, Notebook 7 has 92 and 55 MB."""
ADDITION = Addition(prefix=PREFIX, ports=(PORT,))
LABEL = "notebook"
"""The prefix of these images' names in an engine."""
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the variable's name
_WRITABLE = "/tmp/jupyter"  # noqa: S108 - in a container of its own; any user may write there
_HOST = "127.0.0.1"
_NOTE = "lib/envbuild-notebook.json"
"""Says for which lock a server's environment was made."""


def new_token() -> str:
    """Return a password for one run."""
    return secrets.token_urlsafe(24)


def notebook_image(
    client: docker.DockerClient, parent: Reference | Image, below: Lock, options: Options, report: Reporter
) -> EngineChild:
    """Add the server to an image that was built from the lock `below`, and load the result into the engine."""
    return extend(client, parent, REQUIREMENTS, below, ADDITION, options, report, LABEL)


def server_command(python: str, port: int, host: str = _HOST) -> tuple[str, ...]:
    """Return the command that starts the server with an interpreter; it serves the working folder."""
    return (
        *(python, "-u", "-m", "nbclassic"),  # unbuffered output
        f"--ip={host}",
        f"--port={port}",
        "--no-browser",
        "--allow-root",  # root of a rootless engine is the caller
        "--ServerApp.port_retries=0",
        "--ServerApp.answer_yes=True",  # to the question that Ctrl-C asks
        "--KernelManager.transport=ipc",  # no open ports
        "--log-level=ERROR",
    )


COMMAND = server_command(f"{PREFIX}/bin/python", PORT, "0.0.0.0")  # noqa: S104 - of a container, whose port is published
"""The command of a container with the server."""


def notebook_launch(launch: Launch, image: str, token: str, port: int) -> Launch:
    """Return a launch of `COMMAND` in an image with the server, published at `port` of this machine.

    The token is in a variable, as every user sees command lines.
    """
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    folders = {it: f"{_WRITABLE}/{it.lower()}" for it in names}
    return replace(
        launch,
        image=image,
        variables={**folders, **launch.variables, TOKEN: token},
        ports=(*launch.ports, Port(host=port, container=PORT, address=_HOST)),
        interactive=False,
    )


def free_port(preferred: int = PORT) -> int:
    """Return a free port of this machine, the preferred one if possible."""
    for port in (preferred, 0):
        with suppress(OSError), socket.create_server((_HOST, port)) as listener:
            return int(listener.getsockname()[1])
    return preferred


@contextmanager
def announced(port: int, token: str, report: Callable[[str], object]) -> Iterator[None]:
    """While the block runs, wait for the server, and report its address once it answers to this token."""
    ended, place = threading.Event(), f"http://{_HOST}:{port}"
    headers = {"Authorization": f"token {token}"}

    def wait() -> None:
        while not ended.wait(0.25):
            with suppress(httpx.HTTPError):
                answer = httpx.get(f"{place}/api/status", headers=headers, timeout=2, trust_env=False)
                if answer.status_code == httpx.codes.OK:
                    report(f"{place}/tree?token={token}")
                    return

    thread = threading.Thread(target=wait, name="notebook", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def held_server(environment: Path, below: Lock, options: Options, report: Reporter) -> Iterator[Path]:
    """Create the server's virtual environment next to one that was made from the lock `below`; yield its Python.

    No other run changes it until the block ends. One for the same lock is used as it is, without resolving anything.
    LockError if the two exclude each other, and the errors of `held_venv`.
    """
    server, python = server_folder(environment), below.target.python
    above = read_note(server, below) or lock_above(REQUIREMENTS, below, options)
    with held_venv(server, above, python, report, cache=options.cache) as found:
        write_note(server, below, above)
        link_packages(server, environment)
        yield found


def read_note(server: Path, below: Lock) -> Lock | None:
    """Return the lock of a server's complete environment; None if it is missing, or was made for another lock."""
    try:
        value = json.loads((server / _NOTE).read_bytes())
        if value["for"] != _lock_digest(below):
            return None
        wheels = read_values(value["wheels"], tuple[LockedWheel, ...])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    above = Lock(target=below.target, wheels=wheels)
    return above if is_held(server, above, below.target.python) else None


def write_note(server: Path, below: Lock, above: Lock) -> None:
    """Write into a server's environment for which lock it was made, and its wheels."""
    wheels = list(map(asdict, above.wheels))
    data = canonical_json({"for": _lock_digest(below), "wheels": wheels})
    if not (server / _NOTE).exists() or (server / _NOTE).read_bytes() != data:
        write_whole(server / _NOTE, data)


def _lock_digest(below: Lock) -> str:
    wheels = sorted([it.filename, str(it.sha256)] for it in below.wheels)
    return str(Digest.of(canonical_json({"on": asdict(below.target), "wheels": wheels, "wanted": REQUIREMENTS})))


def server_folder(environment: Path) -> Path:
    """Return the folder of the server's virtual environment."""
    return environment.with_name(f"{environment.name}-notebook")


def link_packages(server: Path, environment: Path) -> None:
    """Add the packages of another environment after those of the server's."""
    [site] = server.glob("lib/python*/site-packages")
    below = environment.absolute() / site.relative_to(server)
    line = f"import site; site.addsitedir({str(below)!r})\n".encode()
    path = site / "envbuild-parent.pth"
    # Another server may be starting from it.
    if not path.exists() or path.read_bytes() != line:
        write_whole(path, line)
