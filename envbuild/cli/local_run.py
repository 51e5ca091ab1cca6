"""`envbuild local` in a container or a virtual environment, and the files that editors and Compose start one by."""

import json
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envbuild.cli.console import Progress, print_message
from envbuild.cli.local_plan import (
    LocalOptions,
    Plan,
    make_plan,
    plan_object,
    print_parity,
    refuse_errors,
    report_findings,
)
from envbuild.errors import MissingComponentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import docker

    from envbuild.local.model import Choice, Launch, Mount, Port
    from envbuild.local.subject import Here
    from envbuild.lock.model import Lock
    from envbuild.verify.findings import Finding

_ALTERNATIVE = "make a virtual environment of the same wheels: --venv DIR"
_CHECK = "/opt/env/bin/envbuild-check"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_DEVICE = re.compile(r"\d+(?::\d+)?|(?:GPU|MIG)-[\w-]+")
_MIN_SHM, _MAX_SHM = 64 << 10, 1 << 45
"""Bytes of /dev/shm."""
_WRITTEN_BY_US = b"Written by envbuild"
"""In the first line of a file that envbuild wrote."""


def run_in_container(target: str, command: tuple[str, ...], options: LocalOptions) -> int:
    """Plan, bring the image here, and start it; the exit code is the command's."""
    from envbuild.local.container import check_ports, client_command, run_launch
    from envbuild.local.contract import adc_findings
    from envbuild.local.data import workspace_mount
    from envbuild.local.machine import look
    from envbuild.local.preflight import preflight
    from envbuild.local.subject import acquire

    ports = tuple(map(_port, options.port or ()))
    check_ports(ports)
    with ExitStack() as stack:
        client, absence = _engine(stack)
        with Progress() as progress:
            workspace = None if options.golden else workspace_mount(progress.warn)
            machine = look(client)
            plan = make_plan(target, options, machine, client, progress)
            size = _size(plan, client, progress)
            found = preflight(plan.subject, plan.choice, machine, size=size, settled=plan.settled)
            findings = report_findings((*found, *adc_findings(plan.settled)), progress)
            if options.dry_run:
                _print_plan(plan, findings, as_json=options.as_json)
            if absence or client is None:
                raise absence or MissingComponentError("no container engine answers", todo=_ALTERNATIVE)
            refuse_errors(findings, options.check)
            if options.dry_run:
                return 0
            if machine.engine and not (options.golden or options.devcontainer or options.compose):
                client_command(client, machine.engine)  # before anything is downloaded
            now = datetime.now(UTC)
            here = acquire(client, plan.subject, plan.choice, options.building(), progress, now)
            for remark in here.remarks:
                progress.note(remark)
            if workspace is None:
                return _parity(target, options, plan, here, client, progress)
            launch = replace(_launch(command, options, plan, here, client, workspace), ports=ports)
            if options.devcontainer or options.compose:
                return _write_files(target, options, plan, here, launch, client, progress)
            notebook = _notebook(options, here, launch, client, progress) if options.jupyter else None
        assert machine.engine is not None, "an engine that answers was looked at"
        if notebook:
            from envbuild.local.notebook import announced

            launch, port, token = notebook
            stack.enter_context(announced(port, token, print_message))
        return run_launch(client, machine.engine, launch, print_message)


def _print_plan(plan: Plan, findings: "Sequence[Finding]", *, as_json: bool) -> None:
    choice = plan.choice
    image = plan.subject.image or (choice.pull.image if choice.pull else None)
    if not as_json:
        typer.echo(f"{choice.variant} {choice.platform} {image or 'to be built'}")
        return
    mounts = [{"source": str(it.source), "target": it.target} for it in plan.settled.mounts]
    typer.echo(json.dumps(plan_object(plan, findings, image=image, build=image is None, mounts=mounts), indent=2))


def _engine(stack: ExitStack) -> "tuple[docker.DockerClient | None, MissingComponentError | None]":
    from envbuild.engine.client import connected

    try:
        client = stack.enter_context(connected(_ALTERNATIVE))
        client.ping()
    except MissingComponentError as error:
        return None, error
    return client, None


def _size(plan: Plan, client: "docker.DockerClient | None", progress: Progress) -> int | None:
    """Return the bytes of an image that is not built here; of one that is built, its lock has them."""
    from envbuild.local.subject import size_of

    choice = plan.choice
    named = plan.subject.image or (f"docker://{choice.pull.reference}" if choice.pull else None)
    return size_of(named, client, plan.machine.machine, progress) if named else None


def _launch(
    command: tuple[str, ...],
    options: LocalOptions,
    plan: Plan,
    here: "Here",
    client: "docker.DockerClient",
    workspace: "Mount",
) -> "Launch":
    from envbuild.engine.container import first_file
    from envbuild.local.contract import contract_json
    from envbuild.local.model import Launch
    from envbuild.local.notebook import COMMAND

    command = COMMAND if options.jupyter else command
    command = command or (first_file(client, here.image, _SHELLS) or _SHELLS[-1],)
    check = first_file(client, here.image, (_CHECK,))
    contract = contract_json(plan.subject, plan.choice, plan.settled).decode()
    variables = {"ENVBUILD_CHECK": options.check, "ENVBUILD_CONTRACT": contract} if check else {}
    size, devices = options.shm_size, _devices(options.gpus, plan.choice)
    return Launch(
        image=here.image,
        command=(check, "--", *command) if check else command,
        variables={**variables, **plan.settled.variables},
        mounts=(workspace, *plan.settled.mounts),
        shm_size=_shm_bytes(size) if size is not None else None,
        gpus=plan.machine.engine.gpus if plan.machine.engine and devices is not None else None,
        devices=devices or (),
        interactive=True,
    )


def _write_files(
    target: str,
    options: LocalOptions,
    plan: Plan,
    here: "Here",
    launch: "Launch",
    client: "docker.DockerClient",
    progress: Progress,
) -> int:
    """Write the files for editors and Compose, and print their paths; files that envbuild did not write stay."""
    from envbuild.engine.container import first_file
    from envbuild.files import write_whole
    from envbuild.local.editors import check_labels, compose, devcontainer, left_out

    if options.devcontainer:
        config = client.api.inspect_image(here.image).get("Config") or {}
        check_labels(config.get("Labels") or {}, target)
    if first_file(client, here.image, _SHELLS[-1:]) is None:
        progress.warn("the image has no /bin/sh, which editors and Compose start it by")
    if here.digest is None:
        progress.warn("the image is in this engine only: the files work on this machine alone")
    if omitted := left_out(launch, plan.settled):
        names = ", ".join(sorted(omitted))
        progress.note(f"the manifest's values of {names} may be secret, and are left out; give -e NAME=VALUE for each")
    image, name = here.digest or here.image, Path.cwd().name or "envbuild"
    files = {}
    if options.devcontainer:
        data = devcontainer(image, launch, plan.settled, name, optional_gpu=plan.choice.variant == "gpu")
        files[Path(".devcontainer/devcontainer.json")] = data
    if options.compose:
        files[Path("compose.yaml")] = compose(image, launch, plan.settled, name)
    for path in files:
        if path.is_symlink() or (path.exists() and not _is_ours(path)):
            todo = "move it away, or write in another folder"
            raise UsageError("this file exists, and envbuild did not write it", where=str(path), todo=todo)
    for path, data in files.items():
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, data)
        except OSError as error:
            todo = "start in a folder that this user may write"
            raise UsageError(f"it cannot be written: {error.strerror}", where=str(path), todo=todo) from error
        typer.echo(path)
    return 0


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _WRITTEN_BY_US in file.readline(1000)
    except OSError:
        return False


def _devices(text: str | None, choice: "Choice") -> tuple[str, ...] | None:
    """Return the GPUs of the container, empty for all; None for none."""
    if text == "none" or (text is None and not choice.gpus):
        return None
    if not choice.gpus:
        todo = "give --variant gpu, or leave --gpus out"
        raise UsageError("the chosen variant uses no GPU", where=f"--gpus {text}", todo=todo)
    names = tuple(dict.fromkeys(it.strip() for it in (text or "all").split(",")))
    if names == ("all",):
        return ()
    if not all(map(_DEVICE.fullmatch, names)):
        todo = "give all, none, or indexes or UUIDs with commas, such as 0,1"
        raise UsageError("this names no GPU", where=f"--gpus {text!r}", todo=todo)
    return names


def _shm_bytes(text: str) -> int:
    from envbuild.cache import read_size

    size = read_size(text, f"--shm-size {text}")
    if not _MIN_SHM <= size <= _MAX_SHM:
        todo = "give one such as 512MB or 8GB"
        raise UsageError("this size is too small or too large", where=f"--shm-size {text}", todo=todo)
    return size


def _port(text: str) -> "Port":
    """`8080`, `8080:80`, `127.0.0.1:8080:80`."""
    from envbuild.local.model import Port

    *address, host, container = text.split(":") if ":" in text else (text, text)
    numbers = [int(it) for it in (host, container) if it.isdecimal() and int(it) <= 65535]
    if len(numbers) < 2 or not numbers[1] or len(address) > 1:
        todo = "give HOST:CONTAINER, such as 8080:80, or one number for both"
        raise UsageError("not a port", where=f"--port {text}", todo=todo)
    return Port(host=numbers[0], container=numbers[1], **({"address": address[0]} if address else {}))


def _parity(
    target: str, options: LocalOptions, plan: Plan, here: "Here", client: "docker.DockerClient", progress: Progress
) -> int:
    from envbuild.engine.client import find_image
    from envbuild.files import cache_folder
    from envbuild.local.preflight import parity
    from envbuild.verify.golden.runners import InImage

    runner = InImage(name=target, client=client, image=find_image(client, here.image, progress))
    found = parity(plan.subject, runner, cache=cache_folder(), report=progress)
    return print_parity(found, as_json=options.as_json)


def _notebook(
    options: LocalOptions, here: "Here", launch: "Launch", client: "docker.DockerClient", progress: Progress
) -> "tuple[Launch, int, str]":
    """Build the image with a notebook server; return its launch, port and token."""
    from envbuild.local.notebook import PORT, free_port, new_token, notebook_image, notebook_launch

    if here.lock is None or here.parent is None:
        todo = "give the stamped model, or the manifest of its run, instead of an image"
        what = "this image has no lock, so a notebook server could change its versions"
        raise UsageError(what, where="--jupyter", todo=todo)
    image = notebook_image(client, here.parent, here.lock, options.lock_options(progress), progress)
    port, token = free_port(PORT), new_token()
    return notebook_launch(launch, image.id, token, port), port, token


def run_in_venv(target: str, command: tuple[str, ...], options: LocalOptions, folder: Path) -> int:
    """Make the environment, and run a command or a shell in it; the exit code is the command's."""
    from envbuild.files import cache_folder
    from envbuild.local.machine import look
    from envbuild.local.notebook import PORT, TOKEN, announced, free_port, held_server, new_token, server_command
    from envbuild.local.preflight import parity
    from envbuild.local.process import active, run_command, translated
    from envbuild.local.subject import lock_here
    from envbuild.local.venv import BY_HAND, check_place, held_venv, state

    check_place(folder)
    with ExitStack() as stack:
        with Progress() as progress:
            plan = make_plan(target, options, look(None), None, progress)
            stamped = _stamped_lock(plan)
            _report_venv(options, plan, folder, stamped, progress)
            if options.dry_run:
                return 0
            lock = stamped or lock_here(plan.subject, plan.choice, options.building(), progress)
            venv = held_venv(folder, lock, lock.target.python, progress, cache=cache_folder())
            python = stack.enter_context(venv)
            variables = translated(plan.settled, folder)
            if options.golden:
                from envbuild.verify.golden.runners import InInterpreter, isolated

                runner = InInterpreter(
                    name=str(python),
                    variables=active(os.environ, variables, folder),
                    kept=folder.absolute() / BY_HAND,
                    sandbox=isolated(str(python), variables, cache_folder()),
                    state=(*state(folder), *(f"{name}={value}" for name, value in sorted(variables.items()))),
                )
                found = parity(plan.subject, runner, cache=cache_folder(), report=progress)
                return print_parity(found, as_json=options.as_json)
            if options.jupyter:
                server = held_server(folder, lock, options.lock_options(progress), progress)
                python = stack.enter_context(server)
        if not options.jupyter:
            return run_command(command, variables, folder)
        port, token = free_port(PORT), new_token()
        with announced(port, token, print_message):
            return run_command(server_command(str(python), port), {**variables, TOKEN: token}, folder)


def _report_venv(options: LocalOptions, plan: Plan, folder: Path, stamped: "Lock | None", progress: Progress) -> None:
    """Report the differences, print the plan of a dry run, and stop where the contract is broken."""
    from envbuild.local.preflight import preflight
    from envbuild.local.venv import lost

    found = preflight(plan.subject, plan.choice, plan.machine, size=None, settled=plan.settled, engine=False)
    findings = report_findings(found, progress)
    differs = lost(plan.subject, plan.choice, plan.machine)
    for line in differs:
        progress.warn(line)
    if options.dry_run and options.as_json:
        lock = "stamped" if stamped else "made now"
        python = stamped.target.python if stamped else plan.subject.side.python
        more = {"venv": str(folder.absolute()), "lock": lock, "python": python, "differs": list(differs)}
        typer.echo(json.dumps(plan_object(plan, findings, **more), indent=2))
    elif options.dry_run:
        typer.echo(f"{plan.choice.variant} {plan.choice.platform} {folder.absolute()}")
    refuse_errors(findings, options.check)


def _stamped_lock(plan: Plan) -> "Lock | None":
    """Return the stamped lock of the choice, if this machine can install it; None where the run is locked again."""
    from envbuild.capture.host import platform_facts
    from envbuild.local.subject import check_known, stamped_lock
    from envbuild.local.venv import check_fits

    lock = stamped_lock(plan.subject, plan.choice)
    if lock is None:
        check_known(plan.subject)
    else:
        check_fits(lock, platform_facts())
    return lock
