"""What the tests of choosing share: a run on a GPU, what it is stamped with, and machines to run it on."""

import json
from dataclasses import replace
from typing import Any

from envbuild.local.model import Engine, Machine, Subject
from envbuild.local.subject import subject_of_manifest
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.manifest.hardware import Accelerator, Cpu, Gpu
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampedImage

GIB = 1 << 30
FLAGS = ["avx", "avx2", "fma", "sse2", "sse4_1", "sse4_2"]
T4 = Gpu(name="Tesla T4", memory=15 * GIB, compute_capability="7.5")
CUDA = ("nvidia-cuda-runtime-cu12", "12.2.140")

RUN: dict[str, Any] = {
    "schema_version": "1.1",
    "created": "2026-01-31T12:00:00Z",
    "python": {"version": "3.11.7", "implementation": "cpython"},
    "platform": {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.31"},
    "distributions": [
        {"name": name, "version": version, "origin": {"kind": "index"}}
        for name, version in (("numpy", "1.26.4"), CUDA, ("tensorflow", "2.15.1"))
    ],
    "framework": {
        "name": "tensorflow",
        "distribution": "tensorflow",
        "version": "2.15.1",
        "cuda": "12.2",
        "compute_capabilities": ["sm_70", "sm_75", "compute_80"],
    },
    "accelerator": {
        "kind": "nvidia",
        "driver": "535.129.03",
        "gpus": [{"name": "Tesla T4", "memory": 15 * GIB, "compute_capability": "7.5"}],
    },
    "cpu": {"model": "Intel(R) Xeon(R) CPU @ 2.20GHz", "flags": FLAGS},
}
ON_CPU: dict[str, Any] = {
    "distributions": [{"name": "tensorflow-cpu", "version": "2.15.1", "origin": {"kind": "index"}}],
    "framework": {"name": "tensorflow", "distribution": "tensorflow-cpu", "version": "2.15.1"},
    "accelerator": {"kind": "none"},
}
"""What is otherwise in a run without a GPU."""


def of_run(**changes: Any) -> Subject:
    """A run by its manifest."""
    data = json.dumps(RUN | changes).encode()
    return subject_of_manifest("manifest.json", data, read_manifest(data, "manifest.json"))


def image(variant: str = "gpu", machine: str = "amd64", *, role: str = "train", pushed: bool = True) -> StampedImage:
    digest = Digest.of(f"{role} {variant} {machine}".encode())
    return StampedImage(
        role=role,
        variant=variant,
        platform=f"linux/{machine}",
        reference=f"example.com/churn@{digest}" if pushed else None,
        digest=digest,
        environment=Digest.of(b"environment"),
        manifest_sha256=Digest.of(b"manifest"),
        lock_sha256=Digest.of(b"lock"),
    )


def lock(*pins: tuple[str, str], machine: str = "x86_64", size: int = 1000) -> Lock:
    wheels = (
        LockedWheel(
            name=name,
            version=version,
            filename=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
            sha256=Digest.of(f"{name} {version} {machine}".encode()),
            size=size,
            url=f"https://index.invalid/{name.replace('-', '_')}-{version}-py3-none-any.whl",
        )
        for name, version in pins
    )
    target = Target(python="3.11.7", machine=machine, glibc="2.36")
    return Lock(target=target, wheels=tuple(sorted(wheels, key=lambda it: it.name)))


def stamped(*images: StampedImage, **changes: Any) -> Subject:
    """A model that the run was stamped on, with a lock for each image."""
    locks = {
        it.slot: lock(("tensorflow", "2.15.1"), CUDA) if it.variant == "gpu" else lock(("tensorflow-cpu", "2.15.1"))
        for it in images
    }
    return replace(of_run(**changes), name="gs://models/churn", images=images, locks=locks, model="gs://models/churn")


def engine(**facts: Any) -> Engine:
    return Engine(**({"kind": "docker", "version": "28.2.2", "machine": "x86_64"} | facts))


def nvidia(*gpus: Gpu, driver: str = "535.129.03", maximum: str = "12.2") -> Accelerator:
    return Accelerator(kind="nvidia", driver=driver, cuda_maximum=maximum, gpus=gpus or (T4,))


LAPTOP = Machine(
    machine="x86_64",
    system="Linux",
    cpu=Cpu(flags=tuple(FLAGS)),
    accelerator=Accelerator(kind="none"),
    engine=engine(),
    free=100 * 10**9,
)
"""Without a GPU."""
WORKSTATION = replace(LAPTOP, accelerator=nvidia(), engine=engine(gpus="runtime"))
"""With the GPU of the run."""
MAC = Machine(
    machine="aarch64",
    system="Darwin",
    accelerator=Accelerator(kind="none"),
    engine=engine(machine="aarch64", near=False),
)
"""With Apple Silicon, whose engine runs in a virtual machine."""
