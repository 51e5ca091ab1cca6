"""What a base holds, by its own Python in a container: confined, nothing of this machine, nothing left behind."""

import json
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, ContainerError

from envbuild.engine.client import explanation
from envbuild.engine.confinement import confinement
from envbuild.errors import BaseError

_SCRIPT = r"""
import json, os, re, sys
said = open("/etc/os-release").read() if os.path.exists("/etc/os-release") else ""
named = re.search(r'^PRETTY_NAME="?([^"\n]{1,99})', said, re.M)
print(json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3],
    "glibc": os.confstr("CS_GNU_LIBC_VERSION").split()[-1],
    "machine": os.uname().machine,
    "distribution": named.group(1) if named else "",
    "cuda": os.environ.get("CUDA_VERSION", ""),
    "cudnn": os.environ.get("NV_CUDNN_VERSION", ""),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What an environment would stand on."""

    python: str
    """Its whole version."""
    glibc: str
    machine: str
    """`x86_64`."""
    distribution: str
    """As its os-release says it."""
    cuda: str
    """As NVIDIA's images say it: `11.2.2`; empty without."""
    cudnn: str


def look_inside(client: docker.DockerClient, image: str) -> Inside:
    """Ask an image that the engine has; BaseError when it has no Python that answers."""
    try:
        said = client.containers.run(
            image, ["-I", "-c", _SCRIPT], entrypoint=["python3"], remove=True, **confinement(client)
        )
        found: dict[str, Any] = json.loads(said)
        return Inside(**{name: str(value)[:99] for name, value in found.items()})
    except (ContainerError, APIError, ValueError, TypeError) as error:
        why = explanation(error) if isinstance(error, APIError) else str(error)[:200]
        todo = "give an image with python3 on its PATH, for this machine"
        raise BaseError(f"the image's Python does not answer: {why}", where=image, todo=todo) from error
