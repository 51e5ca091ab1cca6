"""A command or shell in a virtual environment, as if it were started without envbuild in between."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_MISSING, _NOT_EXECUTABLE = 127, 126
"""Exit codes of shells (POSIX, "Exit Status")."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the command itself, too."""
_OTHERS = ("PYTHONHOME", "PYTHONPATH", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
"""Variables that lead a Python to the modules of another."""


def run_command(command: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
    """Run a command in a virtual environment, by default the user's shell; return its exit code.

    128 and the number of the signal that ended it; 127 for a missing program, 126 for one that cannot be executed. The
    caller holds the environment by `held_venv`.
    """
    environment = active(os.environ, variables, folder)
    with ExitStack() as stack:
        words, more = (list(command), {}) if command else stack.enter_context(shell(environment, folder))
        forward_to = stack.enter_context(_forwarded_signals())
        try:
            child = subprocess.Popen(words, env=environment | more)
        except OSError as error:
            is_missing = error.errno == errno.ENOENT
            sys.stderr.write(f"envbuild: {words[0]}: {'not found' if is_missing else error.strerror}\n")
            return _MISSING if is_missing else _NOT_EXECUTABLE
        forward_to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


def active(outer: Mapping[str, str], variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of a command: those of this process that suit the environment, and its own."""
    folder = folder.absolute()
    own = {name: value for name, value in outer.items() if name not in _OTHERS} | dict(variables)
    # Not every framework looks for CUDA's libraries in wheels.
    libraries = sorted(map(str, folder.glob("lib/python3.*/site-packages/nvidia/*/lib")))
    first = {"PATH": [str(folder / "bin")], "LD_LIBRARY_PATH": libraries}
    after = {"PATH": own.get("PATH") or os.defpath, "LD_LIBRARY_PATH": own.get("LD_LIBRARY_PATH") or ""}
    paths = {name: os.pathsep.join(filter(None, [*places, after[name]])) for name, places in first.items() if places}
    compilers = [f"--xla_gpu_cuda_data_dir={it}" for it in folder.glob("lib/python3.*/site-packages/nvidia/cuda_nvcc")]
    flags = {"XLA_FLAGS": own.get("XLA_FLAGS") or compilers[0]} if compilers else {}
    return own | paths | flags | {"VIRTUAL_ENV": str(folder)}


def translated(settled: Settled, folder: Path) -> dict[str, str]:
    """Return a contract's variables with paths of this machine instead of the container's mounts and /opt/env."""
    places = {it.target.rstrip("/"): str(it.source) for it in settled.mounts} | {PREFIX: str(folder.absolute())}
    longest = sorted(places, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w.-])")
    return {name: pattern.sub(lambda it: places[it[1]], value) for name, value in settled.variables.items()}


@contextmanager
def shell(environment: Mapping[str, str], folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command of the user's shell, and variables for it.

    The start files of pyenv and conda change variables after a shell has started, so bash, zsh and fish activate the
    environment after these files. Any other shell has the variables only.
    """
    program = environment.get("SHELL") or "/bin/sh"
    activate, name = folder.absolute() / "bin" / "activate", Path(program).name
    if activate.is_file() and name == "fish":
        yield [program, "--init-command", f"source {shlex.quote(f'{activate}.fish')}"], {}
    elif activate.is_file() and name in {"bash", "zsh"}:
        with TemporaryDirectory(prefix="envbuild-shell-") as ours:
            home = environment.get("ZDOTDIR") or environment.get("HOME") or "/"
            words = {"activate": str(activate), "home": home, "ours": ours}
            quoted = {key: shlex.quote(value) for key, value in words.items()}
            for file, text in ((".bashrc", _BASHRC), (".zshenv", _ZSHENV), (".zshrc", _ZSHRC)):
                Path(ours, file).write_text(text.format(**quoted), encoding="utf-8")
            yield ([program, "--rcfile", f"{ours}/.bashrc"], {}) if name == "bash" else ([program], {"ZDOTDIR": ours})
    else:
        yield [program], {}


@contextmanager
def _forwarded_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Outlive the signals that the command gets as well, and forward the others to the process that is given.

    Those before its start wait for it.
    """
    children: list[subprocess.Popen[bytes]] = []
    pending: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if children:
            children[0].send_signal(number)
        else:
            pending.append(number)

    def start(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in pending:
            child.send_signal(number)

    def outlive(_number: int, _frame: FrameType | None) -> None:
        """Do nothing: the command would inherit SIG_IGN, but not a handler."""

    handlers = dict.fromkeys(_FORWARDED, forward) | dict.fromkeys(_OF_TERMINAL, outlive)
    # The command also ignores what this process ignores, such as under nohup.
    heeded = {number: it for number, it in handlers.items() if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in heeded.items()}
    try:
        yield start
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
