"""devcontainer.json, by which editors start the environment (containers.dev, Dev Container metadata reference)."""

import csv
import io
import json
import re
from collections.abc import Mapping

from envbuild.errors import UsageError
from envbuild.local.editors import owner, referred, remark, variables, workspace
from envbuild.local.model import Launch, Mount, Settled

_PYTHON = "/opt/env/bin/python"
_CHECK = "/envbuild-check"
"""A command of an editor's own comes instead of the launch's, of which the check is the beginning."""
_EXTENSIONS = ["ms-python.python", "ms-toolsai.jupyter"]
_METADATA = "devcontainer.metadata"
_REFERABLE = re.compile(r"[^:{}]+")


def devcontainer(image: str, launch: Launch, settled: Settled, name: str, *, optional_gpu: bool) -> bytes:
    """The file that starts `image` with what `launch` says; it belongs in the folder .devcontainer of the caller's.

    The editor takes this machine's GPUs where there are some, if `optional_gpu`. Values that may be secret are taken
    from the editor's own variables.
    """
    user = owner(launch, "${localEnv:%s:%d}")
    value = {
        "name": name,
        "image": image,
        "hostRequirements": {"gpu": "optional"} if optional_gpu else None,
        "workspaceFolder": launch.folder,
        "workspaceMount": f"type=bind,source=${{localWorkspaceFolder}},target={launch.folder}",
        "mounts": [_mount(it) for it in launch.mounts if it != workspace(launch)],
        "containerEnv": _variables(launch, settled, optional_gpu=optional_gpu),
        "containerUser": user,
        "remoteUser": user,
        # It would build another image on this one, and no image has the caller's name.
        "updateRemoteUserUID": False,
        "init": True,
        "runArgs": _arguments(launch, settled),
        "postStartCommand": list(launch.command[:1]) if launch.command[0].endswith(_CHECK) else None,
        "forwardPorts": [it.container for it in launch.ports],
        "customizations": {
            "vscode": {"extensions": _EXTENSIONS, "settings": {"python.defaultInterpreterPath": _PYTHON}}
        },
    }
    said = {key: it for key, it in value.items() if it not in (None, [])}
    return f"// {remark('--devcontainer')}\n{json.dumps(said, indent=2, ensure_ascii=False)}\n".encode()


def check_labels(labels: Mapping[str, str], name: str) -> None:
    """Refuse an image that tells editors itself what else to mount and to run (Dev Container spec, image metadata)."""
    if _METADATA in labels:
        what = f"the image has the label {_METADATA}, by which an editor may mount other folders and run commands here"
        raise UsageError(what, where=name, todo="use --compose, which does not read it, or an image without that label")


def _variables(launch: Launch, settled: Settled, *, optional_gpu: bool) -> dict[str, str]:
    private = referred(launch, settled)
    found = {
        name: f"${{localEnv:{name}}}" if name in private else _literal(value)
        for name, value in variables(launch, settled).items()
        if name not in private or _REFERABLE.fullmatch(name)
    }
    # The editor asks for all GPUs, or for none.
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(launch.devices)} if optional_gpu and launch.devices else {}
    return chosen | found


def _arguments(launch: Launch, settled: Settled) -> list[str]:
    """Arguments of `docker run`."""
    names = sorted(it for it in referred(launch, settled) if not _REFERABLE.fullmatch(it))
    return [f"--env={it}" for it in names] + ([f"--shm-size={launch.shm_size}"] if launch.shm_size else [])


def _mount(mount: Mount) -> str:
    """As `docker run --mount` has it, which reads CSV; only so can it be read-only."""
    parts = ["type=bind", f"source={_literal(str(mount.source))}", f"target={_literal(mount.target)}"]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([*parts, "readonly"] if mount.read_only else parts)
    return line.getvalue()


def _literal(text: str) -> str:
    """A text of which nothing is replaced: what is replaced is not read again, so that a default can be the `$`."""
    return text.replace("${", "${localEnv:ENVBUILD_NOTHING:$}{")
