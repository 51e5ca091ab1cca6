"""The command line in a process of its own, in little time: copies of one process that has imported everything."""

import atexit
import gc
import importlib
import json
import os
import pickle
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

import typer.main

import envbuild
from tests.environ import cleaned

ROOT = Path(__file__).parents[1]
_MOST_BYTES = 1 << 17  # of a request: arguments and environment
_ENVIRONMENT = cleaned(os.environ)
"""Before the tests change it."""
_STARTING = threading.Lock()


def remember_costly_results() -> None:
    """Let the command line be put together once, and the same TOML be parsed once; both are read by each command.

    What checks IRIs, and compiles 38 grammars when it is imported, is imported when an IRI is checked.
    """
    if not hasattr(typer.main.get_command, "cache_info"):
        typer.main.get_command = cache(typer.main.get_command)
        tomllib.loads = _remembering(tomllib.loads)
        sys.modules["rfc3987_syntax"] = stub = ModuleType("rfc3987_syntax")
        vars(stub)["is_valid_syntax"] = _is_valid_syntax


def _is_valid_syntax(rule: str, text: str) -> bool:
    del sys.modules["rfc3987_syntax"]
    usual = importlib.import_module("rfc3987_syntax").is_valid_syntax
    vars(sys.modules["jsonschema._format"])["_rfc3987_is_valid_syntax"] = usual
    return bool(usual(rule, text))


def _remembering(loads: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @cache
    def pickled(text: str) -> bytes:
        return pickle.dumps(loads(text))

    def loads_again(text: str, /, **how: Any) -> dict[str, Any]:
        large = type(text) is str and 10_000 < len(text) < 1_000_000 and not how
        return pickle.loads(pickled(text)) if large else loads(text, **how)

    return loads_again


def run_envbuild(
    *arguments: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    data: bytes = b"",
    check: bool = False,
    timeout: float = 300,
    program: str = "",
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m envbuild`, or a program; `env` is its whole environment, and `data` what it reads from stdin.

    What it writes is in the result, but for a stream that is given.
    """
    words, env = [str(it) for it in arguments], dict(os.environ if env is None else env)
    if any(name.startswith("PYTHON") and value != os.environ.get(name) for name, value in env.items()):
        # Python reads these when it starts.
        command = [sys.executable, *(["-c", program] if program else ["-m", "envbuild"]), *words]
        return subprocess.run(
            command,
            cwd=cwd,
            env=env,
            input=data.decode(),
            stdout=stdout or subprocess.PIPE,
            stderr=stderr or subprocess.PIPE,
            text=True,
            check=check,
            timeout=timeout,
        )
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(data)
        given.seek(0)
        request = {"words": words, "cwd": str(cwd or Path.cwd()), "env": env, "program": program}
        files = [given.fileno(), (stdout or out).fileno(), (stderr or err).fileno()]
        with _STARTING:
            server = _server()
        code = server.ask(request, files, timeout)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    done = subprocess.CompletedProcess(["envbuild", *words], code, *texts)
    if check:
        done.check_returncode()
    return done


class _Server:
    """The process that is copied; it ends with this one, as its socket is closed then."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.running", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def ask(self, request: Mapping[str, Any], files: list[int], timeout: float) -> int:
        """Run a command on these files as its stdin, stdout and stderr; returns its exit code."""
        mine, theirs = socket.socketpair()
        with mine:
            mine.settimeout(timeout)
            with theirs:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [*files, theirs.fileno()])
            answer = mine.recv(16)
        assert answer, "the process that runs commands has ended"
        return int(answer)


@cache
def _server() -> _Server:
    return _Server()


def stop_server() -> None:
    """End the process that is copied, so that its processor time counts as the tests'."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


def _serve(requests: socket.socket) -> None:
    running = selectors.DefaultSelector()
    running.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in running.select():
            if key.fileobj is requests:
                data, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
                if not data:
                    return
                pid = os.fork()
                if pid == 0:
                    _run(json.loads(data), files)
                for file in files[:3]:
                    os.close(file)
                asker = socket.socket(fileno=files[3])
                running.register(asker, selectors.EVENT_READ, pid)
                running.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asker))
            elif isinstance(key.fileobj, socket.socket):  # whoever asked waits no longer
                with suppress(KeyError, ValueError, ProcessLookupError):  # it has ended meanwhile
                    running.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            else:
                pid, asker = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                running.unregister(key.fd)
                os.close(key.fd)
                with asker, suppress(KeyError, BrokenPipeError):
                    running.unregister(asker)
                    asker.send(b"%d" % code)


def _run(request: Mapping[str, Any], files: list[int]) -> NoReturn:
    from envbuild.cli import main

    code: Any = 99
    try:
        for number in range(3):
            os.dup2(files[number], number)
        os.closerange(3, max(files) + 1)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.path[0], sys.argv = request["cwd"], ["envbuild", *request["words"]]
        os.fsync = lambda fd: None  # no test cuts the power
        if request["program"]:
            typer.main.get_command.cache_clear()  # type: ignore[attr-defined] # the program may add commands
            exec(request["program"], {"__name__": "__main__"})
        else:
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _import_everything() -> None:
    for module in pkgutil.walk_packages(envbuild.__path__, "envbuild."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("google.cloud.storage", "docker", "httpx", "jinja2", "rich.console", "pydantic.types"):
        importlib.import_module(name)
    from envbuild.cli.commands import app

    remember_costly_results()
    typer.main.get_command(app)
    for path in (*ROOT.glob("profiles/*.toml"), *ROOT.glob("envbuild/**/*.toml")):
        tomllib.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    _import_everything()
    assert threading.active_count() == 1, "a process with threads cannot be copied"
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
