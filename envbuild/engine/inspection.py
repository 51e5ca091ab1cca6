"""Facts of an image, as its own Python reports them in a confined container."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, ContainerError

from envbuild.capture import script
from envbuild.engine.client import connected, explanation
from envbuild.engine.container import confinement, run_file
from envbuild.engine.image import LocalImage, find_image
from envbuild.errors import BaseError, ManifestError
from envbuild.manifest.reader import read_manifest
from envbuild.report import Reporter

MACHINE_FACTS = ("accelerator", "cpu", "host.machine_type", "host.zone", "native.thread_pools", "platform.kernel")
"""Facts of the machine that the container ran on, which is not the one that the model was trained on."""
_PYTHON_2 = "future feature annotations is not defined"
"""The error of Python before 3.7."""
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
class BaseFacts:
    """The facts of a base that an environment depends on."""

    python: str
    """The full version."""
    glibc: str
    machine: str
    """`x86_64`."""
    distribution: str
    """PRETTY_NAME of its os-release."""
    cuda: str
    """As NVIDIA's images set it: `11.2.2`; empty without."""
    cudnn: str


def inspect_base(client: docker.DockerClient, image: str) -> BaseFacts:
    """Read the facts of an image that the engine has; BaseError when its Python does not answer."""
    try:
        output = client.containers.run(
            image, ["-I", "-c", _SCRIPT], entrypoint=["python3"], remove=True, **confinement(client)
        )
        facts: dict[str, Any] = json.loads(output)
        return BaseFacts(**{name: str(value)[:99] for name, value in facts.items()})
    except (ContainerError, APIError, ValueError, TypeError) as error:
        why = explanation(error) if isinstance(error, APIError) else str(error)[:200]
        todo = "give an image with python3 on its PATH, for this machine"
        raise BaseError(f"the image's Python does not answer: {why}", where=image, todo=todo) from error


def image_environment(
    reference: str, arguments: Sequence[str], *, python: str | None, report: Reporter
) -> dict[str, Any]:
    """Capture the environment of an image by its own Python; `python` is a path in the image, None to find it.

    ManifestError if that Python cannot capture.
    """
    lines: list[str] = []

    def add_line(line: str) -> None:
        lines.append(line[:1000])
        del lines[:-100]
        report.note(line)

    with connected("run in the image itself what `envbuild capture --script` prints") as client:
        image = find_image(client, reference, report)
        report.step(f"Capturing in a container of {reference}")
        container = run_file(client, image, script(), arguments, python=python, heard=add_line)
    where = f"--image {image.reference}"
    if container.result is not None:
        read_manifest(container.result, where)  # the image is untrusted
        return facts_of_image(json.loads(container.result), image)
    if any(_PYTHON_2 in line for line in lines):
        what, todo = "the image's Python is older than 3.7", "name another with --python, if the image has one"
    else:
        what = f"the image's Python could not capture its environment (exit code {container.code})"
        todo = "read its message above; Python must be 3.7 or later"
    raise ManifestError(what, where=where, todo=todo)


def facts_of_image(environment: dict[str, Any], image: LocalImage) -> dict[str, Any]:
    """Keep the facts that hold wherever the image runs, and list the unknown ones."""
    facts = {key: value for key, value in environment.items() if key not in ("accelerator", "cpu", "host")}
    for key, unknown in (("native", "thread_pools"), ("platform", "kernel")):
        if key in facts:
            facts[key] = {name: value for name, value in facts[key].items() if name != unknown}
    notes = ["captured in a container of the image: variables are those that the image sets, code is what it holds"]
    if image.digest is None:
        notes.append(f"no registry has given the image a digest: {image.id} is its name on one engine only")
    source = dict(facts["source"])
    source["unknown"] = sorted({*source.get("unknown", ()), *MACHINE_FACTS})
    source["notes"] = [*source.get("notes", ()), *notes]
    container = {"image": image.digest or image.reference, "source": "docker inspect"}
    return dict(facts, source=source, host={"container": container})
