"""`envbuild local --venv`: the environment of a run without a container engine."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envbuild.cli.console import Progress
from envbuild.cli.local_container import tell
from envbuild.cli.local_options import Asked
from envbuild.cli.local_parts import (
    Prepared,
    building_of,
    heard,
    options_of,
    prepared,
    print_parity,
    reporter_of,
    stop,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.lock import Lock
    from envbuild.verify.findings import Finding


def run_in_venv(asked: Asked, folder: Path) -> int:
    """Make the environment, and run a command or a shell in it; the exit code is the command's."""
    from envbuild.files import cache_folder
    from envbuild.local.machine import look
    from envbuild.local.notebook import held_server
    from envbuild.local.venv import held_venv
    from envbuild.local.venv_folder import check_place

    check_place(folder)
    with ExitStack() as stack:
        with Progress() as progress:
            ready = prepared(asked, look(None), None, progress)
            stamped = _stamped(ready)
            _say_plan(asked, ready, folder, stamped, progress)
            if asked.mode.dry_run:
                return 0
            lock = stamped or _made_now(asked, ready, progress)
            held = held_venv(folder, lock, lock.target.python, progress, cache=cache_folder())
            python = stack.enter_context(held)
            if asked.mode.golden:
                return _parity(asked, ready, folder, python, progress)
            if asked.mode.jupyter:
                python = stack.enter_context(held_server(folder, lock, options_of(asked, progress), progress))
        return _run(asked, ready, folder, python)


def _run(asked: Asked, ready: Prepared, folder: Path, python: Path) -> int:
    from envbuild.local.notebook import PORT, TOKEN, announced, free_port, new_token, server_command
    from envbuild.local.process import run_command, translated

    variables = translated(ready.settled, folder)
    if not asked.mode.jupyter:
        return run_command(asked.command, variables, folder)
    port, token = free_port(PORT), new_token()
    with announced(port, token, tell):
        return run_command(server_command(str(python), port), {**variables, TOKEN: token}, folder)


def _say_plan(asked: Asked, ready: Prepared, folder: Path, stamped: "Lock | None", progress: Progress) -> None:
    """Say what will differ, print the plan of a dry run, and stop where the contract is broken."""
    from envbuild.local.preflight import preflight
    from envbuild.local.venv import lost

    found = preflight(ready.subject, ready.choice, ready.machine, size=None, settled=ready.settled, engine=False)
    findings = heard(found, progress)
    differs = lost(ready.subject, ready.choice, ready.machine)
    for line in differs:
        progress.warn(line)
    if asked.mode.dry_run and asked.mode.as_json:
        typer.echo(json.dumps(_plan(ready, folder, stamped, findings, differs), indent=2))
    elif asked.mode.dry_run:
        typer.echo(f"{ready.choice.variant} {ready.choice.platform} {folder.absolute()}")
    stop(findings, asked.needs.check)


def _plan(
    ready: Prepared, folder: Path, stamped: "Lock | None", findings: "Sequence[Finding]", differs: "Sequence[str]"
) -> dict[str, object]:
    """The decision; nothing of it is an image's."""
    choice = ready.choice
    return {
        "venv": str(folder.absolute()),
        "variant": choice.variant,
        "platform": choice.platform,
        "gpus": choice.gpus,
        "lock": "stamped" if stamped else "made now",
        "python": stamped.target.python if stamped else ready.subject.side.python,
        "reasons": list(choice.reasons),
        "differs": list(differs),
        "variables": sorted(ready.settled.variables),
        "missing": list(ready.settled.missing),
        "findings": [it.to_dict() for it in findings],
    }


def _stamped(ready: Prepared) -> "Lock | None":
    """The stamped lock of the choice, if this machine can install it; None where one is made of the run's manifest."""
    from envbuild.capture.host import platform_facts
    from envbuild.local.relock import check_known, stamped_lock
    from envbuild.local.venv import check_fits

    lock = stamped_lock(ready.subject, ready.choice)
    if lock is None:
        check_known(ready.subject)
    else:
        check_fits(lock, platform_facts())
    return lock


def _made_now(asked: Asked, ready: Prepared, progress: Progress) -> "Lock":
    from envbuild.local.relock import lock_here

    return lock_here(ready.subject, ready.choice, building_of(asked), reporter_of(progress))


def _parity(asked: Asked, ready: Prepared, folder: Path, python: Path, progress: Progress) -> int:
    from envbuild.files import cache_folder
    from envbuild.local.parity import parity
    from envbuild.local.process import active, translated
    from envbuild.verify.golden import InInterpreter

    runner = InInterpreter(name=str(python), variables=active(os.environ, translated(ready.settled, folder), folder))
    found = parity(ready.subject, runner, cache=cache_folder(), report=progress)
    return print_parity(found, as_json=asked.mode.as_json)
