"""What envbuild-check is told: names, places, GPUs and packages, and no value."""

import json
from pathlib import Path

from envbuild.local.contract import contract_json
from envbuild.local.model import Choice, Mount, Settled
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.manifest.hardware import Accelerator, Gpu, Mig
from envbuild.manifest.model import Data, Framework
from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampedImage
from tests.unit.test_local_contract import subject

CPU = Choice(variant="cpu", platform="linux/amd64", gpus=False)
GPU = Choice(variant="gpu", platform="linux/amd64", gpus=True)
DIGEST = Digest("ab" * 32)


def told(it, choice: Choice = CPU, settled: Settled | None = None) -> dict:
    return json.loads(contract_json(it, choice, settled or Settled()))


def test_a_run_without_a_contract_asks_for_nothing():
    assert contract_json(subject(), CPU, Settled()) == b"{}"


def test_data_is_named_by_its_path_in_the_container():
    data = (
        Data(uri="gs://acme/churn/t.csv", size=12),
        Data(uri="gs://acme/churn/parts-*", size=9, objects=3),
        Data(uri="gs://acme/elsewhere"),
        Data(uri="data/train", size=7, objects=2),
        Data(uri="/data/all"),
        Data(uri="gs://acme/moved", variable="MOVED", size=5),
        Data(uri="bq://a.b"),
        Data(uri="/data/[redacted]"),
    )
    mounts = (Mount(source=Path("/x"), target="/gcs/acme/churn"),)
    settled = Settled(mounts=mounts, variables={"MOVED": "/data/here", "TOKEN": "hush"})
    found = told(subject("B", "TOKEN", "A", data=data), settled=settled)
    assert found == {
        "variables": ["A", "B", "TOKEN"],
        "data": [
            {"path": "/gcs/acme/churn/t.csv", "uri": "gs://acme/churn/t.csv", "size": 12},
            {"path": "/gcs/acme/churn", "uri": "gs://acme/churn/parts-*"},
            {"path": "/workspace/data/train", "uri": "data/train", "size": 7, "objects": 2},
            {"path": "/data/all", "uri": "/data/all"},
            {"path": "/data/here", "uri": "gs://acme/moved"},
        ],
    }


def test_gpus_are_asked_for_where_the_container_gets_some():
    framework = Framework(
        name="tensorflow",
        distribution="tensorflow",
        version="2.15.1",
        cuda="12.2",
        compute_capabilities=("sm_80", "sm_90a", "compute_90", "8.6", "sm_120"),
    )
    gpus = (Gpu(name="NVIDIA A100", memory=40 << 30), Gpu(name="NVIDIA L4", memory=22 << 30))
    it = subject(framework=framework, frameworks=(framework,), accelerator=Accelerator(gpus=gpus))
    assert told(it) == {}
    assert told(it, GPU) == {
        "gpu": {
            "count": 2,
            "memory": 22 << 30,
            "driver": "525.60.13",
            "capabilities": ["8.0", "8.6", "9.0", "12.0"],
        }
    }
    divided = (*gpus, Gpu(name="NVIDIA H100", memory=80 << 30, mig=Mig(enabled=True, instances=("1g.10gb",))))
    # Of a divided GPU it had a part.
    assert told(subject(accelerator=Accelerator(gpus=divided)), GPU) == {"gpu": {"count": 3}}


def test_a_stamped_image_has_the_packages_of_its_lock():
    image = StampedImage(
        role="train",
        variant="gpu",
        platform="linux/amd64",
        reference=None,
        digest=DIGEST,
        environment=DIGEST,
        manifest_sha256=DIGEST,
        lock_sha256=DIGEST,
    )
    wheel = LockedWheel(name="numpy", version="1.26.4", filename="numpy.whl", sha256=DIGEST, size=1, url="numpy.whl")
    lock = Lock(target=Target(python="3.11.7", machine="x86_64", glibc="2.36"), wheels=(wheel,))
    it = subject()
    stamped = type(it)(name=it.name, side=it.side, manifest=it.manifest, images=(image,), locks={image.slot: lock})
    pulled = Choice(variant="gpu", platform="linux/amd64", gpus=False, pull=image)
    assert told(stamped, pulled) == {"packages": {"numpy": "1.26.4"}}
    assert told(stamped, CPU) == {}
