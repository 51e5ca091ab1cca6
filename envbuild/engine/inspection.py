"""Facts of an image, as its own Python reports them in a confined container."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, ContainerError

from envbuild.capture import script
from envbuild.engine.client import connected, explanation
from envbuild.engine.container import Done, confinement, run_file
from envbuild.engine.image import LocalImage, find_image
from envbuild.errors import BaseError, ManifestError
from envbuild.manifest import read_manifest
from envbuild.report import Reporter

NOT_OF_THE_IMAGE = ("accelerator", "cpu", "host.machine_type", "host.zone", "native.thread_pools", "platform.kernel")
"""Facts of the machine that the container ran on, which is not the one that the model was trained on."""
_OLD = "future feature annotations is not defined"
"""What Python before 3.7 says to the file."""


def image_environment(
    reference: str, arguments: Sequence[str], *, python: str | None, report: Reporter
) -> dict[str, Any]:
    """Capture the environment in an image by its own Python; `python` is a path in the image, else it is looked for.

    ManifestError if that Python cannot capture.
    """
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line[:1000])
        del heard[:-100]
        report.note(line)

    with connected("run in the image itself what `envbuild capture --script` prints") as client:
        image = find_image(client, reference, report)
        report.step(f"Capturing in a container of {reference}")
        done = run_file(client, image, script(), arguments, python=python, heard=hear)
    return facts_of_image(_environment(done, image, heard), image)


def _environment(done: Done, image: LocalImage, heard: Sequence[str]) -> dict[str, Any]:
    if done.result is not None:
        read_manifest(done.result, f"--image {image.reference}")  # an image is a stranger's
        environment: dict[str, Any] = json.loads(done.result)
        return environment
    if any(_OLD in line for line in heard):
        what, todo = "the image's Python is older than 3.7", "name another with --python, if the image has one"
    else:
        what = f"the image's Python could not capture its environment (exit code {done.code})"
        todo = "its own message is above; Python has to be 3.7 or later"
    raise ManifestError(what, where=f"--image {image.reference}", todo=todo)


def facts_of_image(environment: dict[str, Any], image: LocalImage) -> dict[str, Any]:
    """Keep what is true of the image wherever it runs, and say what is not known."""
    facts = {key: value for key, value in environment.items() if key not in ("accelerator", "cpu", "host")}
    for key, lost in (("native", "thread_pools"), ("platform", "kernel")):
        if key in facts:
            facts[key] = {name: value for name, value in facts[key].items() if name != lost}
    source = dict(facts["source"])
    source["unknown"] = sorted({*source.get("unknown", ()), *NOT_OF_THE_IMAGE})
    source["notes"] = [*source.get("notes", ()), *_notes(image)]
    container = {"image": image.digest or image.reference, "source": "docker inspect"}
    return dict(facts, source=source, host={"container": container})


def _notes(image: LocalImage) -> list[str]:
    notes = ["captured in a container of the image: variables are those that the image sets, code is what it holds"]
    if image.digest is None:
        notes.append(f"no registry has given the image a digest: {image.id} is its name on one engine only")
    return notes


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
