"""What is started locally runs as if it were here, in a real engine, and leaves no container behind."""

import fcntl
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest

from envbuild.local.container import LABEL
from tests.e2e.api_tap import Tap, tapped
from tests.e2e.services import engine_answers, podman_places, running
from tests.environ import cleaned

pytestmark = pytest.mark.real

IMAGE = "localhost/local-run:1"
NOBODY = 65534
TOOLS = ("cat", "env", "head", "id", "sh", "sleep", "stty", "touch", "python3.11")
DRIVER = """
import json, os, sys
from pathlib import Path
import docker
from envbuild.errors import EnvbuildError
from envbuild.local.container import run_launch
from envbuild.local.model import Engine, Launch, Mount, Port

given = json.loads(sys.argv[1])
client = docker.DockerClient(base_url=os.environ["DOCKER_HOST"], timeout=60)
client.ping()
if user := given["user"]:
    os.setgroups([user + 1]), os.setresgid(user, user, user), os.setresuid(user, user, user)
launch = {**given["launch"], "command": tuple(given["launch"]["command"])}
launch["mounts"] = tuple(Mount(source=Path(it[0]), target=it[1], read_only=it[2]) for it in launch.get("mounts", ()))
launch["ports"] = tuple(Port(host=it[0], container=it[1], address=(it + ["127.0.0.1"])[2]) for it in launch.get("ports", ()))
engine = Engine(**{"kind": "docker", "version": "20.10", "machine": "x86_64", **given["engine"]})
try:
    code = run_launch(client, engine, Launch(**launch), lambda text: print("told:", text, file=sys.stderr, flush=True))
except EnvbuildError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    code = error.exit_code
finally:
    client.close()
sys.exit(code)
"""


def image_of_tools() -> bytes:
    """This machine's own tools, and nothing else: no /tmp, no user but numbers."""
    paths = [shutil.which(name, path="/usr/bin:/bin") or name for name in TOOLS]
    loaded = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
    library = Path("/usr/lib/python3.11")
    skipped = {"test", "config-3.11-x86_64-linux-gnu", "ensurepip", "__pycache__", "dist-packages", "idlelib"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for path in sorted({*paths, *re.findall(r"(/\S+) \(0x", loaded)}):
            tar.add(path)
        tar.add(library, filter=lambda it: None if Path(it.name).name in skipped else it)
        for name, content in (("opt/data", b"not a program"), ("etc/passwd", b"root:x:0:0::/root:/bin/sh\n")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Local:
    """`run_launch` in a process of its own, by way of a tap."""

    tap: Tap
    client: docker.DockerClient
    facts: dict[str, Any]

    def arguments(self, *command: str, user: int = 0, **launch: Any) -> list[str]:
        given = {"user": user, "engine": self.facts, "launch": {"image": IMAGE, "command": command, **launch}}
        return [sys.executable, "-c", DRIVER, json.dumps(given, default=str)]

    @property
    def environment(self) -> dict[str, str]:
        """The caller's, without settings that are for the engine alone; the engine's client reads its home."""
        runtime = self.tap.socket.parent / "runtime"
        if not runtime.exists():  # of podman, which takes none but its caller's own
            runtime.mkdir(mode=0o700)
            os.chown(runtime, NOBODY, NOBODY)
        ours = {
            "DOCKER_HOST": f"unix://{self.tap.socket}",
            "HOME": str(self.tap.socket.parent),
            "XDG_RUNTIME_DIR": str(runtime),
        }
        return {name: it for name, it in cleaned(os.environ).items() if name != "CONTAINERS_CONF"} | ours

    def run(self, *command: str, input: bytes = b"", **launch: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: A002
        done = subprocess.run(
            self.arguments(*command, **launch), env=self.environment, input=input, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert self.left() == []
        return done

    @contextmanager
    def started(self, *command: str, **launch: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A run that goes on; in the end, nothing of it is left."""
        process = subprocess.Popen(
            self.arguments(*command, **launch), env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        with process:
            try:
                yield process
                process.wait(timeout=60)
            finally:
                process.kill()
        assert self.left() == []

    def left(self) -> list[str]:
        return [it["Id"] for it in self.client.api.containers(all=True, filters={"label": LABEL})]

    def tidy(self) -> None:
        """What a test that failed, or one of an engine that was gone, left is not the next one's."""
        for container in self.left():
            self.client.api.remove_container(container, force=True)


@pytest.fixture(scope="module")
def docker_socket(engine) -> Path:
    with_image(engine.client)
    return engine.socket


@pytest.fixture
def local(engine, docker_socket):
    """Docker, rootful."""
    with short_folder() as folder, tapped(docker_socket, folder) as tap:
        local = Local(tap, engine.client, {"kind": "docker", "version": "20.10"})
        yield local
        local.tidy()


@contextmanager
def short_folder() -> Iterator[Path]:
    """Sockets, and podman's own files, must have short paths."""
    folder = Path(tempfile.mkdtemp(prefix="lr-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def podman(folder: Path, *command: str) -> list[str]:
    """A command of podman, rootful, with storage in the folder."""
    return [*podman_places(folder), "--cgroup-manager", "cgroupfs", *command]


@contextmanager
def served(folder: Path, init: str) -> Iterator[Path]:
    """The socket of a podman that has this program as first process of containers."""
    settings, socket = folder / f"{Path(init).name}.conf", folder / f"{Path(init).name}.sock"
    # Where the tests run in a container themselves, limits cannot be raised to podman's defaults.
    limits = 'default_ulimits=["nofile=1024:1024","nproc=1024:1024"]'
    settings.write_text(
        f'[containers]\n{limits}\n[engine]\ninit_path="{init}"\n[network]\nnetwork_config_dir="{folder}/net"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(settings))
        command = podman(folder, "system", "service", "--time=0", f"unix://{socket}")
        with running(command, folder / "log", lambda: engine_answers(socket) or None):
            yield socket


@pytest.fixture(scope="module")
def podman_folder():
    with short_folder() as folder:
        try:
            with served(folder, "/usr/bin/docker-init") as socket:
                client = docker.DockerClient(base_url=f"unix://{socket}", timeout=600)
                with_image(client)
                client.close()
            yield folder
        finally:
            subprocess.run(podman(folder, "system", "reset", "--force"), check=False, capture_output=True)


@contextmanager
def local_podman(storage: Path, init: str = "/usr/bin/docker-init") -> Iterator[Local]:
    with short_folder() as folder, served(storage, init) as socket, tapped(socket, folder) as tap:
        client = docker.DockerClient(base_url=f"unix://{socket}", timeout=600)
        local = Local(tap, client, {"kind": "podman", "version": "4.3.1"})
        yield local
        local.tidy()
        client.close()


def with_image(client: docker.DockerClient) -> None:
    name, _, tag = IMAGE.rpartition(":")
    client.api.import_image_from_data(image_of_tools(), repository=name, tag=tag)
    client.api.tag(client.images.list()[0].id, name, tag)  # podman passes over the tag


@pytest.fixture(params=["docker", "podman"])
def anywhere(request):
    """Either engine, rootful."""
    if request.param == "docker":
        yield request.getfixturevalue("local")
        return
    with local_podman(request.getfixturevalue("podman_folder")) as local:
        yield local


EVERY_BYTE = bytes(range(256)) * 8192


def test_streams_are_the_programs_own_bytes_and_its_exit_code_is_ours(anywhere):
    done = anywhere.run("sh", "-c", "cat; echo err >&2; exit 7", input=EVERY_BYTE)
    assert (done.returncode, done.stdout) == (7, EVERY_BYTE)
    assert done.stderr.endswith(b"err\n")
    identity = anywhere.client.images.get(IMAGE).id
    unread = anywhere.run("sh", "-c", "exit 3", input=EVERY_BYTE, image=identity)
    assert (unread.returncode, unread.stdout) == (3, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [(["nosuch"], 127), (["/no/such"], 127), (["/opt/data"], 126), (["sh", "-c", "kill -9 $$"], 137)],
)
def test_what_cannot_be_started_or_was_killed_ends_as_in_a_shell(anywhere, command, code):
    done = anywhere.run(*command)
    assert done.returncode == code, done.stderr
    assert (code == 137) or command[0] in done.stderr.decode()


ODD = ["plain", "with space", "it's ünïcode ☃", "colon: and;semi", "comma, only", "-dash $HOME `x`"]


@pytest.mark.parametrize("name", ODD)
def test_files_in_the_mounted_folder_are_the_callers(anywhere, name):
    folder = callers_own(anywhere, name)
    (folder / "read").write_text("here")
    script = "cat read; echo; id -u; id -g; echo $USER; cd && touch written && pwd; touch /workspace/made"
    done = anywhere.run("sh", "-c", script, user=NOBODY, mounts=[(folder, "/workspace", False)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == ["here", "65534", "65534", "nobody", "/tmp/home"]
    made = (folder / "made").stat()
    assert (made.st_uid, made.st_gid) == (NOBODY, NOBODY)


def test_a_client_that_fails_by_itself_is_named_and_the_container_removed(request):
    with local_podman(request.getfixturevalue("podman_folder")) as local:
        (local.tap.socket.parent / "runtime").write_text("not a folder")
        done = local.run("sh", "-c", "sleep 60", user=NOBODY)
        assert done.returncode == 13
        assert "podman --url unix://" in done.stderr.decode()


def callers_own(local: Local, name: str) -> Path:
    """A folder that the ordinary user owns, and can come to."""
    folder = local.tap.socket.parent / name
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


def test_the_callers_groups_are_kept_and_what_is_read_only_stays_so(local):
    data, work = callers_own(local, "data"), callers_own(local, "work")
    (data / "x").write_text("x")
    script = "id -G; cat /gcs/b/x; touch /gcs/b/y || touch /workspace/z"
    mounts = [(data, "/gcs/b", True), (work, "/workspace", False)]
    done = local.run("sh", "-c", script, user=NOBODY, mounts=mounts, variables={"HOME": "/workspace"})
    assert done.stdout == b"65534 65535\nx", done.stderr
    assert (work / "z").exists()
    assert not (data / "y").exists()


def test_a_folder_that_is_missing_is_named_and_not_made(anywhere, tmp_path):
    done = anywhere.run("sh", mounts=[(tmp_path / "gone away", "/workspace", False)])
    assert done.returncode == 2
    assert f"{tmp_path}/gone away" in done.stderr.decode()
    assert not (tmp_path / "gone away").exists()


SLEEPER = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.1)"
STUBBORN = f"import signal; [signal.signal(it, signal.SIG_IGN) for it in (2, 15)]; {SLEEPER}"
TIDY = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(9)); {SLEEPER}"


def is_ready(process) -> bool:
    said = process.stdout.read(6)
    assert said == b"ready\n", process.stderr.read().decode()
    return True


@pytest.mark.parametrize(
    ("program", "signals", "code"),
    [
        (SLEEPER, [signal.SIGINT], 130),
        (SLEEPER, [signal.SIGHUP], 129),
        (TIDY, [signal.SIGTERM], 9),
        (STUBBORN, [signal.SIGINT, signal.SIGTERM, signal.SIGINT], 137),
    ],
    ids=["interrupt", "hangup", "handled", "twice"],
)
def test_signals_reach_the_program_and_a_second_interrupt_kills(anywhere, program, signals, code):
    with anywhere.started("python3.11", "-c", program) as process:
        assert is_ready(process)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.2)  # equal signals at once are one
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert b"our" not in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 137)])
def test_an_engine_without_its_init_program_runs_it_all_the_same(podman_folder, number, code):
    with local_podman(podman_folder, "/no/such-init") as local, local.started("python3.11", "-c", SLEEPER) as process:
        assert is_ready(process)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"no init program" in said


@pytest.mark.parametrize("request_", [b"/containers/create", b"/attach", b"/start"])
def test_a_signal_before_the_start_leaves_nothing(local, request_):
    with local.started("python3.11", "-c", SLEEPER) as process:
        pid = process.pid
        local.tap.before[request_] = lambda: os.kill(pid, signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert local.tap.before == {}


def test_an_engine_that_goes_away_is_told_as_such(local):
    with subprocess.Popen(
        local.arguments("python3.11", "-c", SLEEPER), env=local.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert is_ready(process)
            local.tap.cut()
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 17
    assert b"MissingComponentError: the engine stopped answering" in said, said


def test_without_the_engines_client_it_says_what_to_install(local):
    done = subprocess.run(
        local.arguments("true"), env={**local.environment, "PATH": "/nowhere"}, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 17, done.stderr
    assert b"docker-cli" in done.stderr
    assert local.tap.created() == []


def test_a_reader_that_leaves_ends_the_program(local):
    with local.started("sh", "-c", "while echo line; do :; done") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE, process.stderr.read()
        assert process.stderr.read() in (b"", b"write /dev/stdout: broken pipe\n")


FLOOD = "import os\nwhile True: os.write(1, b'line\\n' * 20000)"


def test_a_reader_that_leaves_a_flood_does_not_hold_the_engine(anywhere):
    with anywhere.started("python3.11", "-c", FLOOD) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("closing", "code", "out", "said"),
    [
        (">/dev/full", 141, b"", b"no space left on device"),
        (">&-", 13, b"", b"standard output is closed"),
        ("2>&-", 0, b"out\n", b""),
        ("<&-", 0, b"out\n", b"err"),
    ],
)
def test_streams_that_are_closed_or_full(local, closing, code, out, said):
    command = shlex.join(local.arguments("sh", "-c", "cat; echo out; echo err >&2"))
    done = subprocess.run(
        ["sh", "-c", f"{command} {closing}"], env=local.environment, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert said in done.stderr
    assert local.left() == []


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_a_port_that_cannot_be_had_is_named_with_what_to_do(local, address):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = local.run("sh", ports=[(port, 80, address)])
    assert done.returncode == 2, done.stderr
    assert f"where: --port {address}:{port}:80" in done.stderr.decode()


def test_a_program_that_used_up_the_memory_is_told_of(local):
    def limit() -> None:
        [container] = local.left()
        local.client.api.update_container(container, mem_limit="32m", memswap_limit="32m")

    local.tap.before[b"/start"] = limit
    done = local.run("python3.11", "-c", "x = bytearray(100 << 20)")
    assert done.returncode == 137
    assert b"told: the container ran out of memory" in done.stderr


def test_a_port_is_served_at_the_address_that_is_told(local):
    server = "import http.server as it; it.HTTPServer(('', 8000), it.SimpleHTTPRequestHandler).serve_forever()"
    with local.started("python3.11", "-c", server, folder="/etc", ports=[(0, 8000)]) as process:
        told = process.stderr.readline().decode()
        address = re.fullmatch(r"told: port 8000 of the container is (127\.0\.0\.1:\d+) here\n", told)
        assert address, told
        assert answer(f"http://{address[1]}/passwd") == "root:x:0:0::/root:/bin/sh\n"
        process.send_signal(signal.SIGINT)


def answer(url: str) -> str:
    for _ in range(200):
        try:
            return httpx.get(url, trust_env=False).text
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


@pytest.mark.parametrize(
    ("launch", "request_"),
    [
        ({"gpus": "runtime"}, {"Count": -1, "Capabilities": [["gpu"]]}),
        ({"gpus": "runtime", "devices": ["0", "GPU-1"]}, {"DeviceIDs": ["0", "GPU-1"], "Capabilities": [["gpu"]]}),
        ({"gpus": "cdi"}, {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}),
        ({"gpus": "cdi", "devices": ["1"]}, {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1"]}),
    ],
)
def test_gpus_are_asked_for_and_where_there_are_none_it_says_what_to_do(local, launch, request_):
    done = local.run("sh", **launch)
    [created] = local.tap.created()
    assert created["HostConfig"]["DeviceRequests"] == [request_]
    assert done.returncode == 17, done.stderr
    said = done.stderr.decode()
    assert "cannot give GPUs" in said
    assert "nvidia-ctk" in said
    assert "--variant cpu" in said


class Terminal:
    """A terminal in which a run was started, as somebody at its keys has it."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.pid, self.keys = pty.fork()
        if self.pid == 0:
            os.execve(arguments[0], arguments, environment)
        self.seen, self.known = b"", 0

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.keys, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: bytes) -> None:
        """Wait for what comes after all that was waited for before."""
        end = time.monotonic() + 60
        while (found := self.seen.find(text, self.known)) < 0:
            assert select.select([self.keys], [], [], end - time.monotonic())[0], self.seen
            self.seen += os.read(self.keys, 4096)
        self.known = found + len(text)

    def mode(self) -> int:
        return int(termios.tcgetattr(self.keys)[3]) & (termios.ICANON | termios.ECHO | termios.ISIG)

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_terminal_is_the_containers_own_until_it_ends(anywhere):
    terminal = Terminal(anywhere.arguments("sh", interactive=True), anywhere.environment)
    try:
        before = terminal.mode()
        terminal.resize(31, 97)
        terminal.until(b"# ")
        assert terminal.mode() == 0
        # The size follows the start, as with docker run.
        os.write(terminal.keys, b"while test \"$(stty size)\" != '31 97'; do sleep 0.1; done; echo a$((1+1))\r")
        # The prompt, too: keys that come before it are echoed before it, and `# ` is at the head of what they print.
        terminal.until(b"\r\na2\r\n# ")
        terminal.resize(20, 40)
        os.write(terminal.keys, b"while test \"$(stty size)\" != '20 40'; do sleep 0.1; done; echo b$((1+1))\r")
        terminal.until(b"\r\nb2\r\n# ")
        os.write(terminal.keys, b"python3.11\r")
        terminal.until(b">>> ")
        # One long sleep would not end if the signal came just before it.
        os.write(terminal.keys, b"import time; print(3 * 3); [time.sleep(0.1) for _ in range(1000)]\r")
        terminal.until(b"\r\n9\r\n")
        os.write(terminal.keys, b"\x10\x03")
        terminal.until(b"KeyboardInterrupt")
        terminal.until(b">>> ")
        os.write(terminal.keys, b"exit()\r")
        terminal.until(b"# ")
        os.write(terminal.keys, b"exit 5\r")
        code = terminal.code()
        after = terminal.mode()
    finally:
        os.close(terminal.keys)
    assert (code, after) == (5, before), terminal.seen[-700:]
    assert before
    assert anywhere.left() == []


def test_a_terminal_that_is_gone_ends_the_shell_in_it(local):
    terminal = Terminal(local.arguments("sh", interactive=True), local.environment)
    terminal.until(b"# ")
    os.close(terminal.keys)
    assert terminal.code() != 0
    assert local.left() == []
