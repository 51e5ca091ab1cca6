"""Which environment is chosen for a machine, and why."""

from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import StampError
from envbuild.local.machine import choose
from envbuild.local.model import Machine, Subject
from envbuild.local.subject import Building, build_request_of, subject_of_image
from envbuild.manifest.hardware import Accelerator, Gpu
from envbuild.verify.sources import Side
from tests.unit.choosing import LAPTOP, MAC, ON_CPU, WORKSTATION, engine, image, nvidia, of_run, stamped

GPU, CPU, ARM = image("gpu"), image("cpu"), image("cpu", "arm64")
SERVING = (image("gpu", role="serve"), image("cpu", role="serve"))
OLD = replace(WORKSTATION, accelerator=nvidia(driver="470.57.02", maximum="11.4"))
NO_TOOLKIT = replace(WORKSTATION, engine=engine())
REMOTE = replace(LAPTOP, engine=engine(gpus="runtime", near=False))
A100, K80 = Gpu(name="NVIDIA A100", compute_capability="8.0"), Gpu(name="Tesla K80", compute_capability="3.7")
FOUND = [
    # machine, variant, words of the reason
    (WORKSTATION, "gpu", "as the run computed on a GPU"),
    (replace(WORKSTATION, engine=engine(kind="podman", gpus="cdi")), "gpu", "as the run computed on a GPU"),
    (replace(WORKSTATION, engine=None), "gpu", "as the run computed on a GPU"),  # for a virtual environment
    (replace(WORKSTATION, accelerator=nvidia(K80, A100)), "gpu", "as the run computed on a GPU"),
    (LAPTOP, "cpu", "this machine has no NVIDIA GPU"),
    (replace(LAPTOP, accelerator=Accelerator(kind="tpu")), "cpu", "this machine has a TPU"),
    (replace(LAPTOP, accelerator=Accelerator(kind="nvidia", driver="535.1")), "cpu", "it shows no GPU"),
    (
        NO_TOOLKIT,
        "cpu",
        "Docker gives it to no container; to use it, install nvidia-container-toolkit, then `nvidia-ctk",
    ),
    (replace(NO_TOOLKIT, engine=engine(kind="podman", version="5.6.0")), "cpu", "nvidia-ctk cdi generate"),
    (replace(WORKSTATION, engine=engine(kind="podman", version="4.3.1", gpus="cdi")), "cpu", "podman 5.4 or later"),
    (OLD, "cpu", "CUDA 12.2.140 needs driver 525.60.13 or later, and the host has driver 470.57.02; to use it, update"),
    (replace(WORKSTATION, accelerator=nvidia(K80)), "cpu", "this GPU is 3.7"),
    (REMOTE, "cpu", "the engine runs on another machine"),
    (replace(WORKSTATION, engine=engine(near=False)), "cpu", "Docker runs on another machine"),
    (MAC, "cpu", "this machine has no NVIDIA GPU"),
]


@pytest.mark.parametrize(("machine", "variant", "why"), FOUND)
def test_the_stamped_image_that_this_machine_can_run_is_pulled(machine, variant, why):
    choice = choose(stamped(*SERVING, GPU, CPU, ARM), machine, "auto")
    own = {"gpu": GPU, "cpu": ARM if machine is MAC else CPU}[variant]
    assert (choice.variant, choice.gpus, choice.pull, choice.nearest) == (variant, variant == "gpu", own, own)
    assert choice.platform == machine.platform
    assert why in choice.reasons[0]
    assert "the model is stamped with it" in choice.reasons[-1]


@pytest.mark.parametrize("machine", [LAPTOP, OLD, MAC])
def test_a_variant_that_is_not_stamped_is_built_and_held_against_the_one_that_is(machine):
    choice = choose(stamped(*SERVING, GPU), machine, "auto")
    assert (choice.variant, choice.gpus, choice.pull, choice.expected, choice.nearest) == (
        "cpu",
        False,
        None,
        None,
        GPU,
    )
    assert "built from the run's manifest" in choice.reasons[-1]


def test_what_was_never_pushed_is_built_and_expected():
    local = image("cpu", pushed=False)
    choice = choose(stamped(GPU, local), LAPTOP, "auto")
    assert (choice.pull, choice.expected, choice.nearest) == (None, local, local)
    assert "never pushed" in choice.reasons[-1]


def test_the_run_s_own_variant_goes_before_the_faster_one_and_a_stamped_one_before_both():
    assert choose(stamped(GPU, CPU, **ON_CPU), WORKSTATION, "auto").pull == CPU
    assert choose(of_run(**ON_CPU), WORKSTATION, "auto").variant == "cpu"
    choice = choose(stamped(CPU), WORKSTATION, "auto")
    assert (choice.pull, choice.gpus) == (CPU, False)
    assert "the one that is stamped" in choice.reasons[0]


def test_a_manifest_is_built_for_what_its_run_had():
    here, there = choose(of_run(), WORKSTATION, "auto"), choose(of_run(), LAPTOP, "auto")
    assert (here.variant, there.variant, here.pull, here.nearest) == ("gpu", "cpu", None, None)
    assert "no image is stamped" in here.reasons[-1]
    without_record = of_run(accelerator={"kind": "none"})  # CUDA's wheels tell
    assert choose(without_record, WORKSTATION, "auto").variant == "gpu"


@pytest.mark.parametrize("machine", [LAPTOP, OLD, NO_TOOLKIT, REMOTE, WORKSTATION])
def test_what_is_asked_for_stays_chosen(machine):
    subject = stamped(GPU, CPU)
    forced, slow = choose(subject, machine, "gpu"), choose(subject, machine, "cpu")
    assert (forced.pull, forced.gpus, slow.pull, slow.gpus) == (GPU, True, CPU, False)
    assert ("; but " in forced.reasons[0]) == (machine is not WORKSTATION)
    assert "; but " not in slow.reasons[0]


def test_another_architecture_is_said_not_to_be_bit_identical():
    assert "not bit-identical to those of the run on x86_64" in " ".join(choose(stamped(ARM), MAC, "auto").reasons)
    apple = of_run(platform={"system": "Darwin", "machine": "arm64"})
    assert "bit-identical" not in " ".join(choose(apple, MAC, "auto").reasons)


def test_tensorflow_has_no_cuda_on_arm_unless_somebody_stamped_it():
    grace = replace(WORKSTATION, machine="aarch64", engine=engine(machine="aarch64", gpus="cdi"))
    assert "no wheels with CUDA for aarch64" in choose(stamped(GPU), grace, "auto").reasons[0]
    own = image("gpu", "arm64")
    assert choose(stamped(own), grace, "auto").pull == own


def test_without_a_manifest_only_what_was_pushed_can_be_had():
    bare = replace(stamped(CPU, image("gpu", pushed=False)), manifest=None, manifest_bytes=None)
    assert choose(bare, LAPTOP, "auto").pull == CPU
    assert choose(bare, WORKSTATION, "auto").pull == CPU
    with pytest.raises(StampError, match="no manifest says how to build one"):
        choose(bare, WORKSTATION, "gpu")


def made(variant: str | None, machine: str = "x86_64", cuda: str | None = "12.2") -> Subject:
    side = Side(name="churn:7", kind="image", machine=machine, cuda=cuda, variant=variant)  # type: ignore[arg-type]
    return subject_of_image("churn:7", side)


GIVEN: list[tuple[Subject, Machine, str, str, bool, str]] = [
    (made("gpu"), WORKSTATION, "auto", "gpu", True, "it gets the GPUs"),
    (made("gpu"), LAPTOP, "auto", "gpu", False, "on the CPU: this machine has no NVIDIA GPU"),
    (made("gpu"), OLD, "auto", "gpu", False, "needs driver 525.60.13"),
    (made("gpu"), WORKSTATION, "cpu", "gpu", False, "on the CPU, as requested"),
    (made("gpu"), LAPTOP, "gpu", "gpu", True, "but this machine has no NVIDIA GPU"),
    (made("cpu"), WORKSTATION, "auto", "cpu", False, "which it was made for"),
    (made(None, cuda=None), WORKSTATION, "auto", "gpu", True, "it gets the GPUs"),
    (made(None, cuda=None), LAPTOP, "auto", "cpu", False, "no NVIDIA GPU"),
    (made("cpu"), MAC, "auto", "cpu", False, "this machine is linux/arm64: it runs only by emulation"),
]


@pytest.mark.parametrize(("subject", "machine", "wanted", "variant", "gpus", "why"), GIVEN)
def test_an_image_runs_as_it_is_with_the_gpus_that_it_can_have(subject, machine, wanted, variant, gpus, why):
    choice = choose(subject, machine, wanted)
    assert (choice.variant, choice.gpus, choice.platform) == (variant, gpus, "linux/amd64")
    assert (choice.pull, choice.expected, choice.nearest) == (None, None, None)
    assert why in " ".join(choice.reasons)


def test_a_variant_that_is_not_stamped_is_locked_as_the_one_that_is():
    subject = stamped(GPU)
    lock = replace(subject.locks[GPU.slot], dropped=("tool",), as_of="2023-01-01T23:59:59Z")
    subject = replace(subject, locks={GPU.slot: lock}, manifest_bytes=b"{}")
    order = build_request_of(subject, choose(subject, LAPTOP, "auto"), Building(cache=Path("cache")), Path("out"))
    assert (order.variant, order.drop, order.as_of) == ("cpu", lock.dropped, lock.as_of)
