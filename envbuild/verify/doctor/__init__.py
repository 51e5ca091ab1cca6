"""Checks that run at once: none waits for another, none ends another, and each has a limit of time."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module

from envbuild.errors import EnvbuildError
from envbuild.verify.findings import Finding, Severity

_STEP = 0.5
"""Seconds: a wait that is longer would keep Ctrl-C waiting too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to check."""

    about: str
    find: Callable[[], Iterable[Finding]]
    seconds: float = 10.0
    """After which it is not waited for any longer."""
    severity: Severity = "error"
    """How much it matters that it could not be checked."""
    needs: tuple[str, ...] = ()
    """Modules that it imports itself, as they are slow to load."""


@dataclass(slots=True)
class _Run:
    check: Check
    over: threading.Event = field(default_factory=threading.Event)
    found: tuple[Finding, ...] = ()


def checked(checks: Sequence[Check]) -> tuple[Finding, ...]:
    """Run all checks at once; the findings are in their order."""
    # One import after the other: two threads that import parts of one package may each get half of it, as Python breaks
    # the deadlock of a package that waits for its part, and a part that waits for its package (importlib._bootstrap).
    for name in dict.fromkeys(name for check in checks for name in check.needs):
        with suppress(Exception):  # the check itself meets the error again, and reports it
            import_module(name)
    runs, began = [_Run(check) for check in checks], time.monotonic()
    for run in runs:
        # What hangs must not keep the process from ending.
        threading.Thread(target=_run, args=(run,), name=f"check {run.check.about}", daemon=True).start()
    return tuple(finding for run in runs for finding in _awaited(run, began + run.check.seconds))


def ok(about: str, says: str, found: str = "") -> Finding:
    """Say that nothing has to be done."""
    return Finding(about=about, agrees=True, says=says, found=found)


def wrong(about: str, says: str, todo: str, *, severity: Severity = "error", why: str = "") -> Finding:
    """Say what is wrong, what comes of it, and what to do."""
    return Finding(about=about, agrees=False, says=says, severity=severity, why=why, todo=todo)


def refused(about: str, error: EnvbuildError, severity: Severity) -> Finding:
    """Say what an error says."""
    where = f" ({error.where})" if error.where else ""
    return wrong(about, f"{error.what}{where}", error.todo, severity=severity)


def _run(run: _Run) -> None:
    try:
        run.found = tuple(run.check.find())
    except EnvbuildError as error:
        run.found = (refused(run.check.about, error, run.check.severity),)
    except Exception as error:  # noqa: BLE001 - an error of one check must not end the others
        says = f"it cannot be checked: {type(error).__name__}: {error}"
        run.found = (wrong(run.check.about, says, "check what is unusual on this machine", severity="warning"),)
    finally:
        run.over.set()


def _awaited(run: _Run, until: float) -> tuple[Finding, ...]:
    while not run.over.wait(min(_STEP, max(until - time.monotonic(), 0.0))):
        if time.monotonic() >= until:
            says = f"no answer within {run.check.seconds:.0f} s"
            return (
                wrong(run.check.about, says, "check the network, and whether it hangs", severity=run.check.severity),
            )
    return run.found
