"""How the pins of one lock differ from those of another, in words."""

from dataclasses import replace

from envbuild.local.subject import pin_changes
from envbuild.lock.model import SystemPackage, Target
from envbuild.oci.digest import Digest
from tests.unit.choosing import lock

GPU = lock(
    ("keras", "2.15.0"), ("numpy", "1.26.4"), ("nvidia-cudnn-cu12", "8.9.4.25"), ("nvidia-cublas-cu12", "12.2.5.6"),
    ("tensorflow", "2.15.1"), ("triton", "2.1.0"), ("six", "1.16.0"),
)  # fmt: skip


def test_the_same_pins_have_no_changes():
    assert pin_changes(GPU, GPU) == ()


def test_what_is_for_gpus_is_in_one_line():
    cpu = lock(("keras", "2.15.0"), ("numpy", "1.26.3"), ("tensorflow-cpu", "2.15.1"), ("wheel", "0.45.0"))
    assert pin_changes(GPU, cpu) == (
        "tensorflow 2.15.1 -> tensorflow-cpu 2.15.1",
        "numpy 1.26.4 -> 1.26.3",
        "six 1.16.0 dropped",
        "3 packages for GPUs dropped: nvidia-cublas-cu12 12.2.5.6, nvidia-cudnn-cu12 8.9.4.25, triton 2.1.0",
        "wheel 0.45.0 added",
    )


def test_a_label_is_a_version_of_its_own():
    assert pin_changes(lock(("torch", "2.3.1+cu121")), lock(("torch", "2.3.1+cpu"))) == (
        "torch 2.3.1+cu121 -> 2.3.1+cpu",
    )


def test_another_machine_has_other_wheels():
    arm = replace(
        lock(("numpy", "1.26.4"), machine="aarch64"), target=Target(python="3.11.2", machine="aarch64", glibc="2.36")
    )
    assert pin_changes(lock(("numpy", "1.26.4")), arm) == (
        "Python 3.11.7 -> 3.11.2",
        "machine x86_64 -> aarch64",
        "1 wheel of the same version with another content: numpy",
    )


def debian(name: str, version: str) -> SystemPackage:
    return SystemPackage(
        name=name, version=version, architecture="amd64", filename=f"{name}.deb", sha256=Digest.of(b""), size=0
    )


def test_packages_of_the_system_count_too():
    one, other = (replace(GPU, packages=packages) for packages in (
        (debian("libgomp1", "12"), debian("zlib1g", "1")), (debian("libssl3", "3"), debian("zlib1g", "2")),
    ))  # fmt: skip
    assert pin_changes(one, other) == (
        "Debian's zlib1g 1 -> 2",
        "Debian's libgomp1 12 dropped",
        "Debian's libssl3 3 added",
    )
