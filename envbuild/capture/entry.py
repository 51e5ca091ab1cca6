"""How the run was started."""

from __future__ import annotations

import os
import re
import sys
from typing import Sequence

from envbuild.capture.reading import Facts, read_bytes
from envbuild.capture.redact import scrub_command, scrub_line

LONGEST_WORD = 1000
"""Characters; a program given by `-c` says enough with its first ones."""
MOST_WORDS = 1000
"""A pattern that the shell expanded can be a hundred thousand files."""
KERNEL = re.compile(r".*\bkernel-[\w-]+\.json$")
"""The file that tells a kernel of Jupyter its ports; its name is new each time."""


def entry_facts(command: Sequence[str] | None, process: str) -> Facts | None:
    """Describe the command, secrets cut out; that of a fresh process is not the run's."""
    words = [command] if isinstance(command, str) else list(command or ())
    if not words and process == "run":
        words = own_words()
    if not words:
        return None
    session = os.environ.get("JPY_SESSION_NAME") if command is None else None
    return {
        "command": _shortened([_without_home(word) for word in scrub_command(words)]),
        "notebook": _without_home(scrub_line(session)) if session else None,
    }


def own_words(cmdline: str = "/proc/self/cmdline") -> list[str]:
    """Return the words that this process was started with; of the interpreter, whose path is known, the name."""
    # Python before 3.10 keeps only what follows its own options, so /proc is asked.
    original = [os.fsdecode(word) for word in (read_bytes(cmdline) or b"").split(b"\0")[:-1]]
    words = list(getattr(sys, "orig_argv", ())) or original or [sys.executable or "python", *getattr(sys, "argv", ())]
    words = [os.path.basename(words[0]), *words[1:]]
    return ["kernel.json" if KERNEL.match(word) else word for word in words]


def _shortened(words: list[str]) -> list[str]:
    cut = [
        "%s… (%d characters)" % (word[:LONGEST_WORD], len(word)) if len(word) > LONGEST_WORD else word
        for word in words[:MOST_WORDS]
    ]
    more = len(words) - MOST_WORDS
    return [word.replace("\0", "\\0") for word in cut] + (["… (%d words more)" % more] if more > 0 else [])


def _without_home(word: str) -> str:
    """Write the home folder as a shell does, since its name is the user's."""
    home = os.path.expanduser("~").rstrip("/")
    if not home.startswith("/"):
        return word
    return re.sub(r"(?<![\w.~-])%s(?=[/\s:,;\"']|$)" % re.escape(home), "~", word)
