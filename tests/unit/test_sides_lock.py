"""A lock as a side: its target, its files, and what names and versions tell of framework, variant and CUDA."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.oci.digest import Digest
from envbuild.verify.sources import side_of_lock

TARGET = Target(python="3.11.7", machine="x86_64", glibc="2.36")


def told(*arguments) -> Any:
    """The side, whose fields need not be checked for being there before they are looked at."""
    return side_of_lock(*arguments)


def a_lock(**versions: str) -> Lock:
    return lock_of({name.replace("_", "-"): version for name, version in versions.items()})


def lock_of(versions: dict[str, str]) -> Lock:
    return Lock(target=TARGET, wheels=tuple(a_wheel(*it) for it in sorted(versions.items())))


def a_wheel(name: str, version: str) -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    digest = Digest(hashlib.sha256(filename.encode()).hexdigest())
    url = f"https://index.invalid/{filename}"
    return LockedWheel(name=name, version=version, filename=filename, sha256=digest, size=1, url=url)


def test_a_lock_says_its_target_and_its_files():
    side = told(a_lock(numpy="1.26.4"), "pylock.toml")
    assert (side.name, side.kind, side.python, side.implementation) == ("pylock.toml", "lock", "3.11.7", "cpython")
    assert (side.system, side.machine, side.libc, side.libc_version) == ("Linux", "x86_64", "glibc", "2.36")
    found = side.packages["numpy"]
    assert (found.version, found.content, found.build) == ("1.26.4", None, "")
    assert found.wheels == {a_wheel("numpy", "1.26.4").sha256.hex}
    assert side.complete
    assert told(replace(a_lock(numpy="1.26.4"), dropped=("mkl-service",)), "pylock.toml").dropped == {"mkl-service"}


def test_a_lock_alone_says_nothing_of_hardware_names_and_data():
    side = told(a_lock(numpy="1.26.4"), "l")
    unknown = (side.accelerator, side.cpu, side.variables, side.names, side.model, side.absent_data, side.trees)
    assert set(unknown) == {None}


def test_variables_are_those_that_its_image_sets():
    side = told(a_lock(), "l", {"XLA_FLAGS": "--x", "A": ""})
    assert side.variables == {"XLA_FLAGS": "--x", "A": ""}
    assert told(a_lock(), "l", {}).variables == {}
    assert side.names is None


@pytest.mark.parametrize(
    ("versions", "framework", "variant", "cuda", "cudnn"),
    [
        ({"tensorflow": "2.15.1"}, ("tensorflow", "tensorflow", None), None, None, None),
        ({"tensorflow-cpu": "2.15.1"}, ("tensorflow", "tensorflow-cpu", None), "cpu", None, None),
        ({"tensorflow-gpu": "2.8.0"}, ("tensorflow", "tensorflow-gpu", None), "gpu", None, None),
        (
            {"tensorflow": "2.17.0", "nvidia-cuda-runtime-cu12": "12.3.101", "nvidia-cudnn-cu12": "8.9.7.29"},
            ("tensorflow", "tensorflow", None), "gpu", "12.3.101", "8.9.7",
        ),
        ({"torch": "2.3.1"}, ("torch", "torch", None), None, None, None),
        ({"torch": "2.3.1+cpu"}, ("torch", "torch", None), "cpu", None, None),
        ({"torch": "1.12.1+cu113"}, ("torch", "torch", "11.3"), "gpu", "11.3", None),
        (
            {"torch": "2.3.1+cu121", "nvidia-cuda-runtime-cu12": "12.1.105", "nvidia-cudnn-cu12": "8.9.2.26"},
            ("torch", "torch", "12.1"), "gpu", "12.1.105", "8.9.2",
        ),
        ({"jax": "0.4.30", "jaxlib": "0.4.30"}, ("jax", "jax", None), "cpu", None, None),
        ({"jax": "0.4.30", "jaxlib": "0.4.30", "jax-cuda12-plugin": "0.4.30"}, ("jax", "jax", "12"), "gpu", None, None),
        ({"jax": "0.4.7", "jaxlib": "0.4.7+cuda11.cudnn86"}, ("jax", "jax", "11"), "gpu", None, None),
        ({"keras": "3.3.0", "tensorflow-cpu": "2.16.1"}, ("tensorflow", "tensorflow-cpu", None), "cpu", None, None),
        ({"keras": "3.3.0"}, ("keras", "keras", None), None, None, None),
        ({"numpy": "1.26.4", "nvidia-nccl-cu12": "2.20.5"}, None, None, None, None),
    ],
)  # fmt: skip
def test_names_and_labels_tell_framework_variant_and_cuda(versions, framework, variant, cuda, cudnn):
    side = told(lock_of(versions), "l")
    own = side.framework
    assert (own and (own.name, own.distribution, own.cuda)) == framework
    assert (side.variant, side.cuda, side.cudnn) == (variant, cuda, cudnn)


@given(
    st.dictionaries(
        st.sampled_from(
            ["tensorflow", "torch", "jax", "jaxlib", "keras", "numpy", "nvidia-cudnn-cu12", "six", "xgboost"]
        ),
        st.from_regex(r"[0-9]\.[0-9]{1,2}\.[0-9](\+(cpu|cu121))?", fullmatch=True),
    )
)
def test_whatever_is_locked_is_there_and_what_is_told_rests_on_it(versions):
    side = told(lock_of(versions), "l")
    assert {name: it.version for name, it in side.packages.items()} == versions
    assert all(versions[it.distribution] == it.version for it in side.frameworks)
    assert side.cuda is None or any("+cu" in version for version in versions.values())
    assert side.variant != "gpu" or any("+cu" in it or "nvidia" in it for it in (*versions, *versions.values()))
