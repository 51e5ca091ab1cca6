"""A notebook server for an environment, in a virtual environment of its own: none of the environment's pins moves.

The server's environment has its own packages first and then those of the environment, so its interpreter is the kernel.
"""

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import docker
import httpx

from envbuild.build.extend import Extended, extend
from envbuild.build.order import Reporter as BuildReporter
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

PREFIX = "/opt/notebook"
PORT = 8888
REQUIREMENTS = ("nbclassic", "ipykernel")
"""The smallest set with a page of cells: 80 wheels, 31 MB; JupyterLab has 91 and 49 MB, Notebook 7 has 92 and 55 MB."""
ADDITION = Addition(prefix=PREFIX, ports=(PORT,))
LABEL = "notebook"
"""How the names of such images begin in an engine."""
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the variable's name
_WRITABLE = "/tmp/jupyter"  # noqa: S108 - in a container that nobody else is in; any user may write there
_HOST = "127.0.0.1"
_NOTE = "lib/envbuild-notebook.json"
"""For what a server's virtual environment was locked; what empties the environment takes it away."""
_AGAIN = 0.25
"""Seconds between two looks at whether the server answers."""


def new_token() -> str:
    """A password for one run."""
    return secrets.token_urlsafe(24)


def notebook_image(
    client: docker.DockerClient, parent: Reference | Image, below: Lock, options: Options, report: BuildReporter
) -> Extended:
    """Have the engine get the image with the server above an environment's, which was built from the lock `below`."""
    return extend(client, parent, REQUIREMENTS, below, ADDITION, options, report, LABEL)


def server_command(python: str, port: int, host: str = _HOST) -> tuple[str, ...]:
    """The command that starts the server by the interpreter of its environment; notebooks lie in the working folder."""
    return (
        *(python, "-u", "-m", "nbclassic"),  # what it prints is seen when it is printed
        f"--ip={host}",
        f"--port={port}",
        "--no-browser",
        "--allow-root",  # who the user is was decided before, and root of a rootless engine is the caller
        "--ServerApp.port_retries=0",
        "--ServerApp.answer_yes=True",  # to whether Ctrl-C means it
        "--KernelManager.transport=ipc",  # nobody else can listen, and nothing is warned of
        "--log-level=ERROR",
    )


COMMAND = server_command(f"{PREFIX}/bin/python", PORT, "0.0.0.0")  # noqa: S104 - of a container, whose port is published
"""What a container with the server starts."""


def notebook_launch(launch: Launch, image: str, token: str, port: int) -> Launch:
    """A launch of `COMMAND` in the image that has the server, with what that needs: reached at `port` of this machine.

    The token is in a variable, as a command is seen by everybody.
    """
    folders = {
        "JUPYTER_CONFIG_DIR": f"{_WRITABLE}/config",
        "JUPYTER_DATA_DIR": f"{_WRITABLE}/data",
        "JUPYTER_RUNTIME_DIR": f"{_WRITABLE}/runtime",
        "IPYTHONDIR": f"{_WRITABLE}/ipython",
    }
    return replace(
        launch,
        image=image,
        variables={**folders, **launch.variables, TOKEN: token},
        ports=(*launch.ports, Port(host=port, container=PORT, address=_HOST)),
        interactive=False,
    )


def address(port: int, token: str) -> str:
    """What the user opens; the token is in it."""
    return f"http://{_HOST}:{port}/tree?token={token}"


def free_port(wanted: int = PORT) -> int:
    """A port of this machine that nobody listens on: the one that is wanted, if it is free."""
    for port in (wanted, 0):
        with closing(socket.socket()) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((_HOST, port))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    return wanted


@contextmanager
def announced(port: int, token: str, tell: Callable[[str], object]) -> Iterator[None]:
    """While the block runs, wait for the server, and tell the address once it answers to this token."""
    ended = threading.Event()

    def wait() -> None:
        while not ended.wait(_AGAIN):
            if _answers(port, token):
                tell(address(port, token))
                return

    thread = threading.Thread(target=wait, name="notebook", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _answers(port: int, token: str) -> bool:
    headers = {"Authorization": f"token {token}"}
    try:
        answer = httpx.get(f"http://{_HOST}:{port}/api/status", headers=headers, timeout=2, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK


@contextmanager
def held_server(environment: Path, below: Lock, options: Options, report: Reporter) -> Iterator[Path]:
    """Have the server in a virtual environment beside another, which was made of the lock `below`; yield its Python.

    Nobody changes it until the block ends. What was made for the same lock is taken as it is: nothing is resolved.
    LockError where the two exclude each other, and all that making an environment can end with.
    """
    server, python = beside(environment), below.target.python
    above = noted(server, below) or lock_above(REQUIREMENTS, below, options)
    with held_venv(server, above, python, report, cache=options.cache) as found:
        note(server, below, above)
        let_see(server, environment)
        yield found


def noted(server: Path, below: Lock) -> Lock | None:
    """The lock of a server's environment that is there, whole, and was made for this lock; None where it is not."""
    try:
        said = json.loads((server / _NOTE).read_bytes())
        same = said["for"] == _asked(below)
        wheels = tuple(LockedWheel(**it | {"sha256": Digest(it["sha256"])}) for it in said["wheels"]) if same else ()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    above = Lock(target=below.target, wheels=wheels)
    return above if same and is_held(server, above, below.target.python) else None


def note(server: Path, below: Lock, above: Lock) -> None:
    """Say in a server's environment for what it was locked, and with which wheels."""
    wheels = [asdict(it) | {"sha256": it.sha256.hex} for it in above.wheels]
    said = canonical_json({"for": _asked(below), "wheels": wheels})
    if not (server / _NOTE).exists() or (server / _NOTE).read_bytes() != said:
        write_whole(server / _NOTE, said)


def _asked(below: Lock) -> str:
    wheels = sorted([it.filename, str(it.sha256)] for it in below.wheels)
    return str(Digest.of(canonical_json({"on": asdict(below.target), "wheels": wheels, "wanted": REQUIREMENTS})))


def beside(environment: Path) -> Path:
    """Where the server's virtual environment lies, for an environment that is in no image."""
    return environment.with_name(f"{environment.name}-notebook")


def let_see(server: Path, environment: Path) -> None:
    """Let the server's virtual environment see the packages of another after its own."""
    [site] = server.glob("lib/python*/site-packages")
    below = environment.absolute() / site.relative_to(server)
    line = f"import site; site.addsitedir({str(below)!r})\n".encode()
    path = site / "envbuild-parent.pth"
    # Another server may be starting from it.
    if not path.exists() or path.read_bytes() != line:
        write_whole(path, line)
