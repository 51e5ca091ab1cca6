"""The command line: check, tell, and become the command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from envbuild.check.asked import Asked, content
from envbuild.check.gpus import gpu_findings
from envbuild.check.packages import package_findings
from envbuild.check.surroundings import data_findings, variable_findings
from envbuild.check.words import finding, shown, tell, why, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from envbuild.check.words import Finding

USAGE = "envbuild-check [--json] [-- COMMAND...]"
MODES = ("strict", "warn", "off")
UNTOLD, MISUSED, FAILED, NO_START, NOT_FOUND, INTERRUPTED = 1, 2, 16, 126, 127, 130
"""Exit codes; the last three are a shell's."""
ALL_THE_SAME = "ENVBUILD_CHECK=warn starts it all the same, in `envbuild local` also --check warn"
MOST = 50
"""Lines that are printed; `--json` has all."""


def checked(prefix: str, environment: Mapping[str, str]) -> list[Finding]:
    """Return everything that is wrong, in the order of the list and each once."""
    asked = Asked(prefix, environment)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "variables": lambda: variable_findings(asked, environment),
        "data": lambda: data_findings(asked),
        "packages": lambda: package_findings(asked, prefix),
        "gpu": lambda: gpu_findings(asked),
    }
    found: list[Finding] = []
    for about, check in checks.items():
        try:
            found.extend(check())
        except Exception as error:
            says = "%s could not be tested: %s" % (about, type(error).__name__)
            found.append(finding(about, says, "set ENVBUILD_CHECK=warn to start all the same"))
    return list({it["says"]: it for it in asked.faults + found}.values())


def print_json(mode: str, found: list[Finding]) -> int:
    """Write everything for the next program; return an exit code."""
    import json

    failed = any(it["severity"] == "error" for it in found)
    return printed(json.dumps({"check": mode, "ok": not failed, "findings": found}, indent=2) + "\n")


def printed(text: str) -> int:
    """Write what was asked for; return an exit code."""
    trouble = write(1, text)
    if trouble:
        tell("nothing can be written to stdout: %s" % trouble)
    return UNTOLD if trouble else 0


def print_lines(found: list[Finding]) -> int:
    """Write a line for each; return an exit code, good even where nobody reads."""
    for it in found[:MOST]:
        tell("%s%s; %s" % ("" if it["severity"] == "error" else "warning: ", it["says"], it["todo"]))
    if len(found) > MOST:
        tell("and %d more, which --json lists" % (len(found) - MOST))
    return 0


def wanted_mode(environment: Mapping[str, str]) -> str:
    """Return what a fault does; a word that nobody knows is told, and may have been meant to stop."""
    said = environment.get("ENVBUILD_CHECK", "").strip().lower() or "warn"
    if said not in MODES:
        tell("ENVBUILD_CHECK is none of %s, and is taken as strict" % ", ".join(MODES))
        return "strict"
    return said


def given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without LC_CTYPE where Python itself has set it (PEP 538)."""
    try:
        ours = not any(it.startswith(b"LC_CTYPE=") for it in content("/proc/self/environ").split(b"\0"))
    except OSError:
        ours = False
    return {name: it for name, it in environment.items() if not (ours and name == "LC_CTYPE")}


def started(command: list[str], environment: Mapping[str, str]) -> int:
    """Become the command; return the exit code of a shell where that cannot be."""
    try:
        import _signal  # type: ignore[import-not-found]

        # Python ignores these, and what is started would go on with that.
        _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
        _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    except (ImportError, AttributeError):
        pass
    if not command[0]:
        tell("the command is an empty word, so it cannot be started; give a program's name after --")
        return NOT_FOUND
    try:
        os.execvpe(command[0], command, given(environment))
    except (FileNotFoundError, NotADirectoryError):
        tell("%s is not there, so it cannot be started" % shown(command[0]))
        return NOT_FOUND
    except (OSError, ValueError) as error:
        tell("%s cannot be started: %s" % (shown(command[0]), why(error)))
        return NO_START


def main(arguments: list[str], prefix: str, environment: Mapping[str, str]) -> int:
    """Check, tell, and start the command; return an exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = arguments[:at], arguments[at + 1 :]
    if "--help" in options or "-h" in options:
        return printed("usage: %s\n\n%s" % (USAGE, (__doc__ or "").partition("\n\n")[2]))
    if any(it != "--json" for it in options):
        tell("this is not known: %s; usage: %s" % (shown(next(it for it in options if it != "--json")), USAGE))
        return MISUSED
    mode = wanted_mode(environment)
    found = checked(prefix, environment) if mode != "off" else []
    code = print_json(mode, found) if "--json" in options else print_lines(found)
    if mode == "strict" and any(it["severity"] == "error" for it in found):
        tell("this is ENVBUILD_CHECK=strict, so nothing is started; %s" % ALL_THE_SAME)
        return FAILED
    return started(command, environment) if command else code


def run() -> None:
    """Run for the environment that this file lies in the folder bin of."""
    try:
        code = main(sys.argv[1:], os.path.dirname(os.path.dirname(os.path.realpath(__file__))), dict(os.environ))
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
