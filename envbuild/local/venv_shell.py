"""An interactive shell in a virtual environment, whose own start files do not put another Python before it."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

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
