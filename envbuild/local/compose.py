"""compose.yaml, by which Compose starts the environment (Compose Specification)."""

import re
from typing import Any

import yaml

from envbuild.capture.redact import scrub_command
from envbuild.local.editors import owner, referred, remark, variables, workspace
from envbuild.local.model import Launch, Mount, Port, Settled
from envbuild.local.options import home

SERVICE = "env"
"""What its one service is called: docker compose run env."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)


class _Dumper(yaml.SafeDumper):
    """Quotes what Compose might not read as text: YAML 1.2 has other numbers, such as 1e3, than PyYAML's YAML 1.1."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _text)


def compose(image: str, launch: Launch, settled: Settled, name: str) -> bytes:
    """The file that starts `image` as `launch` says; it belongs in the caller's folder.

    Values that may be secret are taken from the shell that calls Compose, or from `.env` beside the file.
    """
    service = {
        "image": image,
        "init": True,
        "user": owner(launch, "${%s:-%d}"),
        "working_dir": launch.folder,
        "command": [_literal(it) for it in scrub_command(launch.command)],
        "environment": _variables(launch, settled),
        "volumes": [_volume(it, own=it == workspace(launch)) for it in launch.mounts],
        # No image has the caller's id, so that nobody made a home for it.
        "tmpfs": [f"{home(launch)}:mode=1777"] if home(launch) else None,
        "ports": [_port(it) for it in launch.ports],
        "shm_size": launch.shm_size,
        "stdin_open": launch.interactive or None,
        "tty": launch.interactive or None,
        "deploy": _deploy(launch) if launch.gpus else None,
    }
    said = {key: it for key, it in service.items() if it not in (None, [])}
    value = {"name": _project(name), "services": {SERVICE: said}}
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 16)
    return f"# {remark('--compose')}\n{text}".encode()


def _variables(launch: Launch, settled: Settled) -> dict[str, str | None]:
    """Without a value, a variable is Compose's own; a reference stops where there is none."""
    private = referred(launch, settled)
    own = {name: f"${{{name}?it is not set}}" if _NAME.fullmatch(name) else None for name in private}
    return {name: own[name] if name in own else _literal(value) for name, value in variables(launch, settled).items()}


def _volume(mount: Mount, *, own: bool) -> dict[str, Any]:
    volume = {
        "type": "bind",
        "source": "." if own else _literal(str(mount.source)),
        "target": _literal(mount.target),
        # Else what is missing would be made, as an empty folder of root's.
        "bind": {"create_host_path": False},
    }
    return volume | ({"read_only": True} if mount.read_only else {})


def _port(port: Port) -> dict[str, Any]:
    published = {"published": str(port.host)} if port.host else {}
    return {"target": port.container, "host_ip": port.address, "protocol": "tcp", **published}


def _deploy(launch: Launch) -> dict[str, Any]:
    """GPUs by NVIDIA's driver, whichever way the engine has them (Compose Deploy Specification, devices)."""
    which = {"device_ids": list(launch.devices)} if launch.devices else {"count": "all"}
    device = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}


def _project(name: str) -> str:
    """The last part of a name in the letters that projects may have."""
    words = re.sub(r"[^a-z0-9_-]+", "-", name.rstrip("/").rpartition("/")[2].partition("@")[0].lower()).strip("-_")
    return words or "envbuild"


def _literal(text: str) -> str:
    """A text in which nothing is replaced (Compose Specification, Interpolation)."""
    return text.replace("$", "$$")
