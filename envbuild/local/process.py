"""An interactive shell in a virtual environment, whose own start files do not put another Python before it."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from envbuild.local.model import Settled
from envbuild.recipe import PREFIX

_ZSHENV = """\
ZDOTDIR={home}
[ -r "$ZDOTDIR/.zshenv" ] && . "$ZDOTDIR/.zshenv"
ENVBUILD_ZDOTDIR="$ZDOTDIR"
ZDOTDIR={ours}
"""
_ZSHRC = """\
ZDOTDIR="$ENVBUILD_ZDOTDIR"
unset ENVBUILD_ZDOTDIR
[ -r "$ZDOTDIR/.zshrc" ] && . "$ZDOTDIR/.zshrc"
. {activate}
"""
_BASHRC = """\
[ -r ~/.bashrc ] && . ~/.bashrc
. {activate}
"""
_MISSING, _UNUSABLE = 127, 126
"""What shells answer where there is no such program, and where it cannot be started (POSIX, "Exit Status")."""
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to the program, too."""
_OTHERS = ("PYTHONHOME", "PYTHONPATH", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables that lead a Python to the modules of another."""


@contextmanager
def shell(environment: Mapping[str, str], folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command of the user's shell, and variables for it.

    What pyenv and conda write into start files comes after the variables that a shell is started with, so bash, zsh and
    fish are told to activate the environment after these. Any other shell has the variables only.
    """
    program = environment.get("SHELL") or "/bin/sh"
    activate = folder.absolute() / "bin" / "activate"
    name = Path(program).name
    if not activate.is_file() or name not in {"bash", "zsh", "fish"}:
        yield [program], {}
    elif name == "fish":
        yield [program, "--init-command", f"source {shlex.quote(f'{activate}.fish')}"], {}
    else:
        with TemporaryDirectory(prefix="envbuild-shell-") as ours:
            home = environment.get("ZDOTDIR") or environment.get("HOME") or "/"
            words = {"activate": activate, "home": home, "ours": ours}
            quoted = {key: shlex.quote(str(value)) for key, value in words.items()}
            for file, text in ((".bashrc", _BASHRC), (".zshenv", _ZSHENV), (".zshrc", _ZSHRC)):
                Path(ours, file).write_text(text.format(**quoted), encoding="utf-8")
            yield ([program, "--rcfile", f"{ours}/.bashrc"], {}) if name == "bash" else ([program], {"ZDOTDIR": ours})


def run_command(command: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
    """Run a command in a virtual environment, without one the user's shell; return its exit code.

    128 and the signal's number where one ended it; 127 for a program that is not there, 126 for one that cannot be
    started. That nobody changes the environment meanwhile is for the caller to see to, by `held_venv`.
    """
    environment = active(os.environ, variables, folder)
    with ExitStack() as stack:
        words, more = (list(command), {}) if command else stack.enter_context(shell(environment, folder))
        passing = stack.enter_context(_passing_signals())
        try:
            child = subprocess.Popen(words, env=environment | more)
        except OSError as error:
            return _not_started(words[0], error)
        passing.to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


def active(outer: Mapping[str, str], variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of a program in an environment: those around it, as far as they lead to no other, and its own."""
    folder = folder.absolute()
    own = {name: value for name, value in outer.items() if name not in _OTHERS} | dict(variables)
    first = {"PATH": [str(folder / "bin")], "LD_LIBRARY_PATH": _libraries(folder)}
    after = {"PATH": own.get("PATH") or os.defpath, "LD_LIBRARY_PATH": own.get("LD_LIBRARY_PATH") or ""}
    paths = {name: os.pathsep.join(filter(None, [*places, after[name]])) for name, places in first.items() if places}
    compilers = [f"--xla_gpu_cuda_data_dir={it}" for it in folder.glob("lib/python3.*/site-packages/nvidia/cuda_nvcc")]
    flags = {"XLA_FLAGS": own.get("XLA_FLAGS") or compilers[0]} if compilers else {}
    return own | paths | flags | {"VIRTUAL_ENV": str(folder)}


def _libraries(folder: Path) -> list[str]:
    """CUDA's libraries that are wheels, which not every framework looks for beside itself."""
    return sorted(map(str, folder.glob("lib/python3.*/site-packages/nvidia/*/lib")))


def translated(settled: Settled, folder: Path) -> dict[str, str]:
    """The variables of a contract with paths of this machine instead of a container's: of mounts, and /opt/env."""
    places = {it.target.rstrip("/"): str(it.source) for it in settled.mounts} | {PREFIX: str(folder.absolute())}
    longest = sorted(places, key=len, reverse=True)
    found = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w.-])")
    return {name: found.sub(lambda it: places[it[1]], value) for name, value in settled.variables.items()}


class _Passing:
    """Signals that only this process gets, on their way to the program; early ones wait for it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Let them go to this program."""
        self._child = child
        for number in self._early:
            child.send_signal(number)


@contextmanager
def _passing_signals() -> Iterator[_Passing]:
    """Outlive the signals that the program gets as well, and pass on those that only this process gets."""
    passing = _Passing()
    handlers = dict.fromkeys(_PASSED_ON, passing) | dict.fromkeys(_OF_TERMINAL, _leave)
    # What this process ignores, such as under nohup, the program is to ignore too.
    heard = {number: it for number, it in handlers.items() if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    try:
        yield passing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; that a signal is ignored would be inherited by the program, a handler is not."""


def _not_started(program: str, error: OSError) -> int:
    missing = error.errno == errno.ENOENT
    sys.stderr.write(f"envbuild: {program}: {'not found' if missing else error.strerror}\n")
    return _MISSING if missing else _UNUSABLE
