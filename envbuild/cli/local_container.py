"""`envbuild local` in a container."""

import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress, err, printable
from envbuild.cli.local_editors import written
from envbuild.cli.local_options import Asked
from envbuild.cli.local_parts import (
    Prepared,
    building_of,
    heard,
    options_of,
    prepared,
    print_parity,
    print_plan,
    reporter_of,
    stop,
)
from envbuild.errors import MissingComponentError, UsageError

if TYPE_CHECKING:
    import docker

    from envbuild.local.image import Here
    from envbuild.local.model import Choice, Engine, Launch, Mount, Port

_INSTEAD = "make a virtual environment of the same wheels: --venv DIR"
_CHECK = "/opt/env/bin/envbuild-check"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_DEVICE = re.compile(r"\d+(?::\d+)?|(?:GPU|MIG)-[\w-]+")
_LEAST_SHARED, _MOST_SHARED = 64 << 10, 1 << 45
"""Bytes of /dev/shm."""


def run_in_container(asked: Asked) -> int:
    """Prepare, bring the image here, and start it; the exit code is the command's."""
    from envbuild.local.container import client_command
    from envbuild.local.contract import adc_findings
    from envbuild.local.data import workspace_mount
    from envbuild.local.machine import look
    from envbuild.local.preflight import preflight

    ports = _ports(asked)
    with ExitStack() as stack:
        client, absence = _engine(stack)
        with Progress() as progress:
            workspace = None if asked.mode.golden else workspace_mount(progress.warn)
            machine = look(client)
            ready = prepared(asked, machine, client, progress)
            size = _size(ready, client, progress)
            found = preflight(ready.subject, ready.choice, machine, size=size, settled=ready.settled)
            findings = heard((*found, *adc_findings(ready.settled)), progress)
            if asked.mode.dry_run:
                print_plan(ready, findings, as_json=asked.mode.as_json)
            if absence or client is None:
                raise absence or MissingComponentError("no container engine answers", todo=_INSTEAD)
            stop(findings, asked.needs.check)
            if asked.mode.dry_run:
                return 0
            if machine.engine and not (asked.mode.golden or asked.mode.devcontainer or asked.mode.compose):
                client_command(client, machine.engine)  # before anything is downloaded
            here = _brought(asked, ready, client, progress)
            if workspace is None:
                return _parity(asked, ready, here, client, progress)
            launch = replace(_launch(asked, ready, here, client, workspace), ports=ports)
            if asked.mode.devcontainer or asked.mode.compose:
                return _written(asked, ready, here, launch, client, progress)
            served = _with_notebook(asked, here, launch, client, progress) if asked.mode.jupyter else None
        assert machine.engine is not None, "an engine that answers was looked at"
        return _run(client, machine.engine, launch, served)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A notebook server that is to be started."""

    launch: "Launch"
    port: int
    token: str


def _run(client: "docker.DockerClient", engine: "Engine", launch: "Launch", served: Served | None) -> int:
    from envbuild.local.container import run_launch

    if served is None:
        return run_launch(client, engine, launch, tell)
    from envbuild.local.notebook import announced

    with announced(served.port, served.token, tell):
        return run_launch(client, engine, served.launch, tell)


def tell(text: str) -> None:
    """Say something beside what the command prints."""
    err().print(printable(text))


def _engine(stack: ExitStack) -> "tuple[docker.DockerClient | None, MissingComponentError | None]":
    from envbuild.engine.client import connected

    try:
        client = stack.enter_context(connected(_INSTEAD))
        client.ping()
    except MissingComponentError as error:
        return None, error
    return client, None


def _size(ready: Prepared, client: "docker.DockerClient | None", progress: Progress) -> int | None:
    """Bytes that an image takes that is not built here; of what is built the lock tells."""
    from envbuild.local.subject import size_of

    choice = ready.choice
    named = ready.subject.image or (f"docker://{choice.pull.reference}" if choice.pull else None)
    return size_of(named, client, ready.machine.machine, progress) if named else None


def _brought(asked: Asked, ready: Prepared, client: "docker.DockerClient", progress: Progress) -> "Here":
    from envbuild.local.image import acquire

    now = datetime.now(UTC)
    here = acquire(client, ready.subject, ready.choice, building_of(asked), reporter_of(progress), now)
    for remark in here.remarks:
        progress.note(remark)
    return here


def _launch(asked: Asked, ready: Prepared, here: "Here", client: "docker.DockerClient", workspace: "Mount") -> "Launch":
    from envbuild.engine.container import first_file
    from envbuild.local.contract import contract_json
    from envbuild.local.model import Launch
    from envbuild.local.notebook import COMMAND

    if asked.mode.jupyter:
        command = COMMAND
    else:
        command = asked.command or (first_file(client, here.image, _SHELLS) or _SHELLS[-1],)
    checked = first_file(client, here.image, (_CHECK,))
    contract = contract_json(ready.subject, ready.choice, ready.settled).decode()
    variables = {"ENVBUILD_CHECK": asked.needs.check.value, "ENVBUILD_CONTRACT": contract} if checked else {}
    size, devices = asked.container.shm_size, _devices(asked.container.gpus, ready.choice)
    return Launch(
        image=here.image,
        command=(checked, "--", *command) if checked else command,
        variables={**variables, **ready.settled.variables},
        mounts=(workspace, *ready.settled.mounts),
        shm_size=_bytes(size) if size is not None else None,
        gpus=ready.machine.engine.gpus if ready.machine.engine and devices is not None else None,
        devices=devices or (),
        interactive=True,
    )


def _written(
    asked: Asked, ready: Prepared, here: "Here", launch: "Launch", client: "docker.DockerClient", progress: Progress
) -> int:
    """Write the files for editors and Compose, once the image is known to do for them."""
    from envbuild.engine.container import first_file
    from envbuild.local.editors import check_labels

    if asked.mode.devcontainer:
        config = client.api.inspect_image(here.image).get("Config") or {}
        check_labels(config.get("Labels") or {}, asked.target)
    if first_file(client, here.image, _SHELLS[-1:]) is None:
        progress.warn("the image has no /bin/sh, which editors and Compose start it by")
    return written(asked.mode, ready, here, launch, progress)


def _devices(text: str | None, choice: "Choice") -> tuple[str, ...] | None:
    """Which GPUs the container gets, empty for all; None for none."""
    if text == "none" or (text is None and not choice.gpus):
        return None
    if not choice.gpus:
        todo = "ask for the other one by --variant gpu, or leave --gpus out"
        raise UsageError("the variant that is chosen uses no GPU", where=f"--gpus {text}", todo=todo)
    names = tuple(dict.fromkeys(it.strip() for it in (text or "all").split(",")))
    if names == ("all",):
        return ()
    if not all(map(_DEVICE.fullmatch, names)):
        todo = "give all, none, or indexes or UUIDs with commas, such as 0,1"
        raise UsageError("this names no GPU", where=f"--gpus {text!r}", todo=todo)
    return names


def _bytes(text: str) -> int:
    from envbuild.cache import read_size

    size = read_size(text, f"--shm-size {text}")
    if not _LEAST_SHARED <= size <= _MOST_SHARED:
        raise UsageError(
            "no program is served by that", where=f"--shm-size {text}", todo="give one such as 512MB or 8GB"
        )
    return size


def _ports(asked: Asked) -> "tuple[Port, ...]":
    from envbuild.local.container import check_ports

    ports = tuple(map(_port, asked.container.port or ()))
    check_ports(ports)
    return ports


def _port(text: str) -> "Port":
    """`8080`, `8080:80`, `127.0.0.1:8080:80`."""
    from envbuild.local.model import Port

    *address, host, container = text.split(":") if ":" in text else (text, text)
    numbers = [int(it) for it in (host, container) if it.isdecimal() and int(it) <= 65535]
    if len(numbers) < 2 or not numbers[1] or len(address) > 1:
        todo = "give HOST:CONTAINER, such as 8080:80, or one number for both"
        raise UsageError("this is no port", where=f"--port {text}", todo=todo)
    return Port(host=numbers[0], container=numbers[1], **({"address": address[0]} if address else {}))


def _parity(asked: Asked, ready: Prepared, here: "Here", client: "docker.DockerClient", progress: Progress) -> int:
    from envbuild.engine.image import find_image
    from envbuild.files import cache_folder
    from envbuild.local.preflight import parity
    from envbuild.verify.golden import InImage

    runner = InImage(name=asked.target, client=client, image=find_image(client, here.image, progress))
    found = parity(ready.subject, runner, cache=cache_folder(), report=progress)
    return print_parity(found, as_json=asked.mode.as_json)


def _with_notebook(
    asked: Asked, here: "Here", launch: "Launch", client: "docker.DockerClient", progress: Progress
) -> "Served":
    """The launch of a notebook server in the image with one, and where it will be reached."""
    from envbuild.local.notebook import PORT, free_port, new_token, notebook_image, notebook_launch

    if here.lock is None or here.parent is None:
        todo = "give the stamped model, or the manifest of its run, instead of an image"
        raise UsageError(
            "nothing says what is in this image, so that a server could move a pin", where="--jupyter", todo=todo
        )
    options = options_of(asked, progress)
    made = notebook_image(client, here.parent, here.lock, options, reporter_of(progress))
    port, token = free_port(PORT), new_token()
    return Served(launch=notebook_launch(launch, made.id, token, port), port=port, token=token)
