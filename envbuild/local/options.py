"""What an engine is asked for a launch: a container's whole configuration, as the engine's API takes it."""

from dataclasses import dataclass
from typing import Any

from envbuild.engine.container import parents, tar_stream
from envbuild.errors import MissingComponentError, UsageError
from envbuild.local.model import Engine, Launch, Mount
from envbuild.local.ports import check_ports

LABEL = "dev.envbuild.local"
"""By which containers are found that a machine lost its power on: docker ps --all --filter label=dev.envbuild.local"""
_HOMES = ("/tmp/home", "/home/envbuild")  # noqa: S108 - made by root before the program starts, in its own container
"""The first that no mount covers."""
_CDI = "nvidia.com/gpu="
_OTHERWISE = "or run it without GPUs: --variant cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose files the container writes."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary ones."""
    name: str = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What of the caller's streams the container gets."""

    stdin: bool = True
    size: tuple[int, int] | None = None
    """Rows and columns of the terminal; None without one."""


def container_config(
    launch: Launch, engine: Engine, caller: Caller, attached: Attached, *, init: bool = True
) -> dict[str, Any]:
    """Say what is created, as the engine's API has it (Docker Engine API, ContainerCreate).

    With `init`, the engine's own small program is the first process: it passes signals on, and reaps.
    UsageError for ports that contradict each other and a path that podman cannot mount, MissingComponentError where
    podman is too old for GPUs.
    """
    check_ports(launch.ports)
    program, *arguments = launch.command
    return {
        "Image": launch.image,
        "Entrypoint": [program],
        "Cmd": arguments,
        "Env": [f"{name}={value}" for name, value in _variables(launch, caller).items()],
        "User": launch.user or _user(engine, caller),
        "WorkingDir": launch.folder,
        "Labels": {LABEL: caller.name},
        "StopSignal": "SIGTERM",
        "Tty": attached.size is not None,
        "OpenStdin": attached.stdin,
        "StdinOnce": attached.stdin,
        "AttachStdin": attached.stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "ExposedPorts": {f"{port.container}/tcp": {} for port in launch.ports},
        "HostConfig": _host_config(launch, engine, caller, attached) | {"Init": init},
    }


def home(launch: Launch) -> str | None:
    """The folder that has to be made, as the program's home; None where the launch names one itself."""
    if "HOME" in launch.variables:
        return None
    return next((it for it in _HOMES if not any(_covers(mount, it) for mount in launch.mounts)), None)


def folders(path: str) -> bytes:
    """A tar of a folder that anybody may write to, whoever the program runs as; of those above it, what /tmp is."""
    relative = path.lstrip("/")
    return b"".join(tar_stream({}, dict.fromkeys((*parents([relative]), relative), 0o1777)))


def _covers(mount: Mount, path: str) -> bool:
    target = mount.target.rstrip("/")
    return f"{path}/".startswith(f"{target}/") or target.startswith(f"{path}/")


def _variables(launch: Launch, caller: Caller) -> dict[str, str]:
    # No image knows the caller's id, and Python's getpass, which PyTorch's caches use, fails without a name.
    known = {"HOME": home(launch) or launch.folder, "USER": caller.name, "LOGNAME": caller.name}
    return known | dict(launch.variables)


def _user(engine: Engine, caller: Caller) -> str:
    """Root of a rootless Docker is the caller; podman keeps the ids where it is told to."""
    if engine.kind == "docker" and engine.rootless:
        return "0:0"
    return f"{caller.uid}:{caller.gid}"


def _host_config(launch: Launch, engine: Engine, caller: Caller, attached: Attached) -> dict[str, Any]:
    binds, mounts = _mounts(launch, engine)
    chosen = {
        "Binds": binds,
        "Mounts": mounts,
        "GroupAdd": [str(it) for it in caller.groups if it != caller.gid] if _keeps_groups(launch, engine) else [],
        "UsernsMode": "keep-id" if engine.kind == "podman" and engine.rootless else "",
        "PortBindings": _ports(launch),
        "ShmSize": launch.shm_size or 0,
        "DeviceRequests": _devices(launch, engine),
        "ConsoleSize": list(attached.size or ()),
    }
    # The folders of a home carry labels that SELinux lets no container read. What is printed is shown already, and days
    # of progress bars would fill the engine's disk as a log.
    fixed = {"SecurityOpt": ["label=disable"], "LogConfig": {"Type": "none", "Config": {}}}
    return {name: value for name, value in chosen.items() if value} | fixed


def _keeps_groups(launch: Launch, engine: Engine) -> bool:
    """Whether the caller's groups mean the same in the container."""
    return launch.user is None and not engine.rootless


def _ports(launch: Launch) -> dict[str, list[dict[str, str]]]:
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in dict.fromkeys(launch.ports):
        host = {"HostIp": port.address, "HostPort": str(port.host or "")}
        bindings.setdefault(f"{port.container}/tcp", []).append(host)
    return bindings


def _mounts(launch: Launch, engine: Engine) -> tuple[list[str], list[dict[str, Any]]]:
    """Binds and mounts: an engine makes the missing source of a bind, so that those are for what mounts cannot be."""
    binds = [mount for mount in launch.mounts if engine.kind == "podman" and _is_split(mount, ',"')]
    for mount in binds:
        if _is_split(mount, ':"'):
            todo = 'run it from a folder without commas and quotes in its path, or with Docker: DOCKER_HOST="..."'
            raise UsageError("podman's socket cannot mount this path", where=str(mount.source), todo=todo)
    return [_bind(it) for it in binds], [_mount(it) for it in launch.mounts if it not in binds]


def _is_split(mount: Mount, letters: str) -> bool:
    return any(letter in f"{mount.source}{mount.target}" for letter in letters)


def _bind(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"


def _mount(mount: Mount) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(mount.source), "Target": mount.target, "ReadOnly": mount.read_only}


def _devices(launch: Launch, engine: Engine) -> list[dict[str, Any]]:
    """GPUs, as `docker run --gpus` and `--device nvidia.com/gpu=...` ask for them."""
    if launch.gpus is None:
        return []
    _check_sight(engine)
    if launch.gpus == "cdi" or engine.kind == "podman":
        return [{"Driver": "cdi", "DeviceIDs": [f"{_CDI}{it}" for it in launch.devices or ("all",)]}]
    if launch.devices:
        return [{"DeviceIDs": list(launch.devices), "Capabilities": [["gpu"]]}]
    return [{"Count": -1, "Capabilities": [["gpu"]]}]


def _check_sight(engine: Engine) -> None:
    if engine.blind:
        what = f"podman {engine.version} gives no GPUs to what is started by its socket"
        todo = f"take podman 5.4 or later, or Docker with the NVIDIA Container Toolkit, {_OTHERWISE}"
        raise MissingComponentError(what, where="container engine", todo=todo)
