"""`envbuild local --venv`: the environment of a run without a container engine."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envbuild.cli.console import Progress, print_message
from envbuild.cli.local_plan import LocalOptions, Plan, make_plan, print_parity, refuse_errors, report_findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.lock.model import Lock
    from envbuild.verify.findings import Finding


def run_in_venv(target: str, command: tuple[str, ...], options: LocalOptions, folder: Path) -> int:
    """Make the environment, and run a command or a shell in it; the exit code is the command's."""
    from envbuild.files import cache_folder
    from envbuild.local.image import lock_here
    from envbuild.local.machine import look
    from envbuild.local.notebook import held_server
    from envbuild.local.venv import check_place, held_venv

    check_place(folder)
    with ExitStack() as stack:
        with Progress() as progress:
            plan = make_plan(target, options, look(None), None, progress)
            stamped = _stamped_lock(plan)
            _report_plan(options, plan, folder, stamped, progress)
            if options.dry_run:
                return 0
            lock = stamped or lock_here(plan.subject, plan.choice, options.building(), progress)
            venv = held_venv(folder, lock, lock.target.python, progress, cache=cache_folder())
            python = stack.enter_context(venv)
            if options.golden:
                return _parity(options, plan, folder, python, progress)
            if options.jupyter:
                server = held_server(folder, lock, options.lock_options(progress), progress)
                python = stack.enter_context(server)
        return _run(command, options, plan, folder, python)


def _run(command: tuple[str, ...], options: LocalOptions, plan: Plan, folder: Path, python: Path) -> int:
    from envbuild.local.notebook import PORT, TOKEN, announced, free_port, new_token, server_command
    from envbuild.local.process import run_command, translated

    variables = translated(plan.settled, folder)
    if not options.jupyter:
        return run_command(command, variables, folder)
    port, token = free_port(PORT), new_token()
    with announced(port, token, print_message):
        return run_command(server_command(str(python), port), {**variables, TOKEN: token}, folder)


def _report_plan(options: LocalOptions, plan: Plan, folder: Path, stamped: "Lock | None", progress: Progress) -> None:
    """Report the differences, print the plan of a dry run, and stop where the contract is broken."""
    from envbuild.local.preflight import preflight
    from envbuild.local.venv import lost

    found = preflight(plan.subject, plan.choice, plan.machine, size=None, settled=plan.settled, engine=False)
    findings = report_findings(found, progress)
    differs = lost(plan.subject, plan.choice, plan.machine)
    for line in differs:
        progress.warn(line)
    if options.dry_run and options.as_json:
        typer.echo(json.dumps(_plan_json(plan, folder, stamped, findings, differs), indent=2))
    elif options.dry_run:
        typer.echo(f"{plan.choice.variant} {plan.choice.platform} {folder.absolute()}")
    refuse_errors(findings, options.check)


def _plan_json(
    plan: Plan, folder: Path, stamped: "Lock | None", findings: "Sequence[Finding]", differs: "Sequence[str]"
) -> dict[str, object]:
    choice = plan.choice
    return {
        "venv": str(folder.absolute()),
        "variant": choice.variant,
        "platform": choice.platform,
        "gpus": choice.gpus,
        "lock": "stamped" if stamped else "made now",
        "python": stamped.target.python if stamped else plan.subject.side.python,
        "reasons": list(choice.reasons),
        "differs": list(differs),
        "variables": sorted(plan.settled.variables),
        "missing": list(plan.settled.missing),
        "findings": [it.to_dict() for it in findings],
    }


def _stamped_lock(plan: Plan) -> "Lock | None":
    """Return the stamped lock of the choice, if this machine can install it; None where the run is locked again."""
    from envbuild.capture.host import platform_facts
    from envbuild.local.image import check_known, stamped_lock
    from envbuild.local.venv import check_fits

    lock = stamped_lock(plan.subject, plan.choice)
    if lock is None:
        check_known(plan.subject)
    else:
        check_fits(lock, platform_facts())
    return lock


def _parity(options: LocalOptions, plan: Plan, folder: Path, python: Path, progress: Progress) -> int:
    from envbuild.files import cache_folder
    from envbuild.local.preflight import parity
    from envbuild.local.process import active, translated
    from envbuild.verify.golden.runners import InInterpreter

    runner = InInterpreter(name=str(python), variables=active(os.environ, translated(plan.settled, folder), folder))
    found = parity(plan.subject, runner, cache=cache_folder(), report=progress)
    return print_parity(found, as_json=options.as_json)
