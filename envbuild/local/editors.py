"""What devcontainer.json and compose.yaml have in common: they lie beside the code, where anybody may read them."""

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import yaml

from envbuild.capture.redact import RANDOM, hides_secret, scrub, scrub_command
from envbuild.errors import UsageError
from envbuild.local.container import home
from envbuild.local.contract import TARGET
from envbuild.local.data import is_seen
from envbuild.local.model import Launch, Mount, Settled

CONTRACT = "ENVBUILD_CONTRACT"
"""It holds names of variables, and no value."""
_TELLING = 6
"""Characters of a secret at least by which it is known within another value."""
SERVICE = "env"
"""What its one service is called: docker compose run env."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)
_PYTHON = "/opt/env/bin/python"
_CHECK = "/envbuild-check"
"""A command of an editor's own comes instead of the launch's, of which the check is the beginning."""
_EXTENSIONS = ["ms-python.python", "ms-toolsai.jupyter"]
_REMARK = "Written by envbuild local {}, which replaces this file as long as this line is here."
"""The first line of what is written, by which it is known to be replaceable."""
_METADATA = "devcontainer.metadata"
_REFERABLE = re.compile(r"[^:{}]+")


def owner(launch: Launch, reference: str) -> str:
    """User and group of the container: the launch's, else who reads the file by `reference`, else who writes it."""
    if launch.user:
        return launch.user
    return ":".join(reference % it for it in (("UID", os.getuid()), ("GID", os.getgid())))


def variables(launch: Launch, settled: Settled) -> dict[str, str]:
    """The container's variables, sorted, with what Python wants to know of a user whom no image knows."""
    known = {"HOME": home(launch) or launch.folder, "USER": "user", "LOGNAME": "user"}
    omitted = left_out(launch, settled)
    return {name: value for name, value in sorted({**known, **launch.variables}.items()) if name not in omitted}


def referred(launch: Launch, settled: Settled) -> frozenset[str]:
    """Variables that take their values from the shell or the editor: those that the caller gave and that may be secret.

    A manifest's variables never do: its author could name any variable of the caller's, and get its value.
    """
    return frozenset(it for it in _private(launch, settled) if settled.where.get(it) != "run")


def left_out(launch: Launch, settled: Settled) -> frozenset[str]:
    """The manifest's variables that may be secret: they are neither written down nor taken from the shell."""
    return _private(launch, settled) - referred(launch, settled)


def _private(launch: Launch, settled: Settled) -> frozenset[str]:
    """Variables whose values are not written down: the caller's own, and those that may be secret."""
    values = {it: value for it, value in launch.variables.items() if it != CONTRACT and value != TARGET}
    hidden = {value for value in values.values() if not is_seen(value, launch.mounts)}

    def is_secret(name: str, value: str) -> bool:
        is_random = settled.where.get(name) in ("option", ".env") and RANDOM.fullmatch(value) and value in hidden
        return bool(hides_secret(name, value, sure=True) or scrub(value) != value or is_random)

    secret = {it for it, value in values.items() if is_secret(it, value)}
    known = {values[it] for it in secret if values[it] in hidden and len(values[it]) >= _TELLING}
    # As of `.env`, where one variable is made of others.
    composed = {it for it, value in values.items() if any(part in value for part in known)}
    return frozenset(secret | composed | {it for it in values if settled.where.get(it) == "shell"})


def workspace(launch: Launch) -> Mount | None:
    """The caller's folder, which is where the file lies that is written."""
    return next((it for it in launch.mounts if it.target == launch.folder), None)


class _Dumper(yaml.SafeDumper):
    """Quotes what Compose might not read as text: YAML 1.2 has other numbers, such as 1e3, than PyYAML's YAML 1.1."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"'
    ),
)


def compose(image: str, launch: Launch, settled: Settled, name: str) -> bytes:
    """The file that starts `image` as `launch` says; it belongs in the caller's folder.

    Values that may be secret are taken from the shell that calls Compose, or from `.env` beside the file.
    """
    # GPUs by NVIDIA's driver, however the engine has them (Compose Deploy Specification, devices).
    which = {"device_ids": list(launch.devices)} if launch.devices else {"count": "all"}
    gpus = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
    # Without a value, a variable is Compose's own; a reference stops where there is none.
    own = {it: f"${{{it}?it is not set}}" if _NAME.fullmatch(it) else None for it in referred(launch, settled)}
    volumes: list[dict[str, Any]] = [
        {
            "type": "bind",
            "source": "." if it == workspace(launch) else _compose_literal(str(it.source)),
            "target": _compose_literal(it.target),
            # Else what is missing would be made, as an empty folder of root's.
            "bind": {"create_host_path": False},
        }
        | ({"read_only": True} if it.read_only else {})
        for it in launch.mounts
    ]
    service = {
        "image": image,
        "init": True,
        "user": owner(launch, "${%s:-%d}"),
        "working_dir": launch.folder,
        "command": [_compose_literal(it) for it in scrub_command(launch.command)],
        "environment": {
            it: own[it] if it in own else _compose_literal(value) for it, value in variables(launch, settled).items()
        },
        "volumes": volumes,
        # No image has the caller's id, so that nobody made a home for it.
        "tmpfs": [f"{home(launch)}:mode=1777"] if home(launch) else None,
        "ports": [
            {"target": it.container, "host_ip": it.address, "protocol": "tcp"}
            | ({"published": str(it.host)} if it.host else {})
            for it in launch.ports
        ],
        "shm_size": launch.shm_size,
        "stdin_open": launch.interactive or None,
        "tty": launch.interactive or None,
        "deploy": {"resources": {"reservations": {"devices": [gpus]}}} if launch.gpus else None,
    }
    # The last part of the name, in the letters of Compose's projects.
    last = name.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    project = re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_") or "envbuild"
    value = {"name": project, "services": {SERVICE: {key: it for key, it in service.items() if it not in (None, [])}}}
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 16)
    return f"# {_REMARK.format('--compose')}\n{text}".encode()


def _compose_literal(text: str) -> str:
    """A text in which nothing is replaced (Compose Specification, Interpolation)."""
    return text.replace("$", "$$")


def devcontainer(image: str, launch: Launch, settled: Settled, name: str, *, optional_gpu: bool) -> bytes:
    """The file that starts `image` with what `launch` says; it belongs in the folder .devcontainer of the caller's.

    The editor takes this machine's GPUs where there are some, if `optional_gpu`. Values that may be secret are taken
    from the editor's own variables.
    """
    user, private = owner(launch, "${localEnv:%s:%d}"), referred(launch, settled)
    unreferable = sorted(it for it in private if not _REFERABLE.fullmatch(it))
    size = [f"--shm-size={launch.shm_size}"] if launch.shm_size else []
    mounts = io.StringIO()  # as `docker run --mount` has it, which reads CSV; only so can it be read-only
    others = [it for it in launch.mounts if it != workspace(launch)]
    csv.writer(mounts, lineterminator="\0").writerows(
        [
            "type=bind",
            f"source={_editor_literal(str(it.source))}",
            f"target={_editor_literal(it.target)}",
            *(["readonly"] if it.read_only else []),
        ]
        for it in others
    )
    # The editor asks for all GPUs, or for none.
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(launch.devices)} if optional_gpu and launch.devices else {}
    environment = {
        it: f"${{localEnv:{it}}}" if it in private else _editor_literal(value)
        for it, value in variables(launch, settled).items()
        if it not in unreferable
    }
    value = {
        "name": name,
        "image": image,
        "hostRequirements": {"gpu": "optional"} if optional_gpu else None,
        "workspaceFolder": launch.folder,
        "workspaceMount": f"type=bind,source=${{localWorkspaceFolder}},target={launch.folder}",
        "mounts": mounts.getvalue().split("\0")[:-1],
        "containerEnv": chosen | environment,
        "containerUser": user,
        "remoteUser": user,
        # It would build another image on this one, and no image has the caller's name.
        "updateRemoteUserUID": False,
        "init": True,
        "runArgs": [f"--env={it}" for it in unreferable] + size,
        "postStartCommand": list(launch.command[:1]) if launch.command[0].endswith(_CHECK) else None,
        "forwardPorts": [it.container for it in launch.ports],
        "customizations": {
            "vscode": {"extensions": _EXTENSIONS, "settings": {"python.defaultInterpreterPath": _PYTHON}}
        },
    }
    said = {key: it for key, it in value.items() if it not in (None, [])}
    return f"// {_REMARK.format('--devcontainer')}\n{json.dumps(said, indent=2, ensure_ascii=False)}\n".encode()


def check_labels(labels: Mapping[str, str], name: str) -> None:
    """Refuse an image that tells editors itself what else to mount and to run (Dev Container spec, image metadata)."""
    if _METADATA in labels:
        what = f"the image has the label {_METADATA}, by which an editor may mount other folders and run commands here"
        raise UsageError(what, where=name, todo="use --compose, which does not read it, or an image without that label")


def _editor_literal(text: str) -> str:
    """A text of which nothing is replaced: what is replaced is not read again, so that a default can be the `$`."""
    return text.replace("${", "${localEnv:ENVBUILD_NOTHING:$}{")
