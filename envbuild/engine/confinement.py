"""How the container of an image that somebody else made is confined, whenever envbuild starts one to check it."""

from typing import Any

import docker

WRITABLE = ("/tmp", "/run", "/var/tmp")  # noqa: S108 - the container's own
"""Folders in memory; nothing else of the root file system can be written."""
MAX_PROCESSES = 4096
"""Processes and threads: a server on a large machine has hundreds."""


def confinement(client: docker.DockerClient, memory: int | None = None) -> dict[str, Any]:
    """Return docker-py's options for a container without a network, capabilities or a root that it can write.

    It may use `memory` bytes, by default three quarters of what the engine's machine has. That includes WRITABLE.
    """
    limit = memory or client.info().get("MemTotal", 0) * 3 // 4
    return {
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": dict.fromkeys(WRITABLE, "rw,exec,mode=1777"),
        "mem_limit": limit,
        "memswap_limit": limit,
        "pids_limit": MAX_PROCESSES,
    }
