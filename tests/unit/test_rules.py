"""The rules of `verify`: each with a mismatch that it has to find, and one that is near and must not be found."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import pytest

from envbuild.manifest.hardware import Accelerator, Cpu, Gpu, Mig
from envbuild.manifest.model import (
    Contract,
    Data,
    Framework,
    Model,
    ModelFile,
    Numerics,
    RequiredVariable,
    Tree,
    Writer,
)
from envbuild.verify.findings import SEVERITIES, Finding, Severity
from envbuild.verify.rules import RULES, apply_rules
from envbuild.verify.rules.catalogue import CATALOGUE, RULE_IDS, rule_of
from envbuild.verify.sources import Package, Side

GIB = 1 << 30
FLAGS = ("avx", "avx2", "avx512f", "fma", "fpu", "sse2", "sse4_1", "sse4_2", "vmx")


def gpu(name: str = "Tesla T4", capability: str = "7.5", memory: int = 15 * GIB, mig: Mig | None = None) -> Gpu:
    return Gpu(name=name, compute_capability=capability, memory=memory, mig=mig)


def nvidia(*gpus: Gpu, driver: str = "535.129.03", maximum: str = "12.2") -> Accelerator:
    return Accelerator(kind="nvidia", driver=driver, cuda_maximum=maximum, gpus=gpus)


NONE = Accelerator(kind="none")


def tensorflow(version: str = "2.8.0", distribution: str = "tensorflow", **facts: Any) -> Framework:
    known = {"cuda": "11.2", "cudnn": "8", "compute_capabilities": ("sm_70", "sm_75", "compute_80")}
    return Framework(name="tensorflow", distribution=distribution, version=version, **(known | facts))


def packages(**versions: Any) -> dict[str, Package]:
    """Packages by name, `_` for `-`; a version, or all of a package."""
    found = {}
    for key, value in versions.items():
        name = key.replace("_", "-")
        found[name] = value if isinstance(value, Package) else Package(name=name, version=value)
    return found


def package(name: str, version: str | None, **facts: Any) -> Package:
    return Package(name=name, version=version, **facts)


PACKAGES = packages(tensorflow="2.8.0", keras="2.8.0", numpy="1.23.5", requests="2.28.1", pip="23.0")
NVIDIA = packages(nvidia_cublas_cu11="11.11.3.6", nvidia_cudnn_cu11="8.6.0.163")
JAX = Framework(name="jax", distribution="jax", version="0.7.0")
PLAIN_JAX = packages(jax="0.7.0", jaxlib="0.7.0")
RUN = Side(
    name="manifest.json",
    kind="manifest",
    python="3.10.12",
    implementation="cpython",
    system="Linux",
    machine="x86_64",
    libc="glibc",
    libc_version="2.31",
    packages=PACKAGES,
    frameworks=(tensorflow(),),
    cuda="11.2.152",
    cudnn="8.1.1",
    accelerator=nvidia(gpu()),
    cpu=Cpu(model="Intel(R) Xeon(R) CPU @ 2.20GHz", flags=FLAGS),
    variables={"OMP_NUM_THREADS": "4", "TF_DETERMINISTIC_OPS": "1"},
    contract=Contract(
        variables=(
            RequiredVariable(name="TRAINING_DATA_PATH", present=True),
            RequiredVariable(name="DEBUG", present=False),
        ),
        data=(
            Data(uri="gs://acme/train.csv", variable="TRAINING_DATA_PATH", generation=17, checksum="crc32c:AAAAAA=="),
        ),
        preprocessing=(Tree(path="src/features", git_tree="a" * 40),),
    ),
    model=Model(
        uri="gs://acme/churn",
        format="saved_model",
        written_by=(Writer(name="tensorflow", version="2.8.0"),),
    ),
)
"""A run with a GPU."""
SET = frozenset({"TRAINING_DATA_PATH", "OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS", "HOME"})
HOST = replace(
    RUN, name="host", kind="host", names=SET, absent_data=frozenset(), trees={"src/features": "a" * 40}, model=None
)
"""A machine that has all that the run had."""
IMAGE = replace(
    RUN,
    name="churn:7",
    kind="image",
    variant="gpu",
    accelerator=None,
    cpu=None,
    variables={"OMP_NUM_THREADS": "4", "TF_DETERMINISTIC_OPS": "1"},
    names=frozenset({"TRAINING_DATA_PATH", "OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS"}),
    contract=Contract(),
    model=None,
)
LOCK = replace(IMAGE, name="pylock.toml", kind="lock", variables=None, names=None, cuda=None, cudnn=None)


def having(side: Side, **more: Any) -> Side:
    """The side with other packages, too."""
    return replace(side, packages={**(side.packages or {}), **packages(**more)})


def without(side: Side, *names: str) -> Side:
    return replace(side, packages={name: it for name, it in (side.packages or {}).items() if name not in names})


def written(side: Side, name: str, version: str, format_: str = "saved_model") -> Side:
    return replace(side, model=Model(uri="m", format=format_, written_by=(Writer(name=name, version=version),)))


def pickled(side: Side, module: str) -> Side:
    return replace(side, model=Model(uri="m", format="pickle", details=(("modules", module), ("protocol", "4"))))


def serving(version: str, **more: Any) -> Side:
    """An image with another TensorFlow."""
    return replace(having(IMAGE, tensorflow=version, **more), frameworks=(tensorflow(version),))


def needing(*variables: str) -> Side:
    needed = tuple(RequiredVariable(name=it, present=True) for it in variables)
    return replace(RUN, contract=Contract(variables=needed))


def told(side: Side, **facts: Any) -> Side:
    """The side with a TensorFlow that was told something."""
    return replace(side, numerics=(Numerics(framework="tensorflow", **facts),))


def saved(side: Side, *, uri: str = "gs://acme/churn", count: int | None = None, **digests: str) -> Side:
    """The side with a model of these files; `_` stands for the dot of a name."""
    files = tuple(ModelFile(path=name.replace("_", "."), size=7, sha256=it) for name, it in sorted(digests.items()))
    found = Model(uri=uri, format="saved_model", files=files, file_count=len(files) if count is None else count)
    return replace(side, model=found)


def reading(uri: str, **facts: Any) -> Contract:
    return Contract(data=(Data(uri=uri, **facts),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A mismatch, and what has to be said of it."""

    rule: str
    about: str
    wanted: Side = RUN
    found: Side
    severity: Severity
    says: tuple[str, ...] = ()
    """Texts that the finding holds somewhere."""
    near: tuple[Side, ...] = ()
    """What is near, and in order."""
    near_pairs: tuple[tuple[Side, Side], ...] = field(default=())


CPU_BUILD = replace(
    having(without(IMAGE, "tensorflow"), tensorflow_cpu="2.8.0"),
    name="churn:7-cpu",
    variant="cpu",
    frameworks=(tensorflow(distribution="tensorflow-cpu", cuda=None, cudnn=None, compute_capabilities=()),),
    cuda=None,
    cudnn=None,
)
"""What `--variant cpu` makes of the run."""
WITH_CUDA = having(RUN, **{name.replace("-", "_"): it for name, it in NVIDIA.items()})
SAME_HASH, OTHER_HASH = "c0ffee" + "0" * 58, "decade" + "0" * 58


def of_files(name: str, version: str, side: Side = RUN, **facts: Any) -> Side:
    return replace(side, packages={name: package(name, version, **facts)}, frameworks=())


PLANTED = (
    Planted(
        rule="python",
        about="python",
        found=replace(IMAGE, python="3.11.7"),
        severity="error",
        says=("3.10.12", "3.11.7", "from-manifest"),
        near=(replace(IMAGE, python="3.10"), replace(IMAGE, python="3.10.12+"), replace(IMAGE, python=None)),
    ),
    Planted(
        rule="python",
        about="python",
        found=replace(IMAGE, python="3.10.13"),
        severity="warning",
        says=("3.10.12", "3.10.13", "patch", "--base", "python:3.10.12-slim-bookworm"),
    ),
    Planted(
        rule="python",
        about="python",
        found=replace(HOST, python="3.10.13"),
        severity="warning",
        says=("use Python 3.10.12",),
    ),
    Planted(
        rule="python",
        about="python",
        found=Side(name="nginx", kind="image", pythonless=True),
        severity="error",
        says=("wanted 3.10.12, found no Python", "the right image"),
        near=(Side(name="empty", kind="image"),),
        near_pairs=((Side(name="nginx", kind="image", pythonless=True), HOST),),
    ),
    Planted(
        rule="python",
        about="python",
        wanted=Side(name="nginx", kind="image", pythonless=True),
        found=RUN,
        severity="error",
        says=("wanted no Python, found 3.10.12",),
    ),
    Planted(
        rule="python-implementation",
        about="implementation",
        found=replace(HOST, implementation="pypy"),
        severity="error",
        says=("cpython", "pypy"),
        near=(replace(HOST, implementation="CPython"), replace(HOST, implementation=None)),
    ),
    Planted(
        rule="system",
        about="system",
        found=replace(HOST, system="Darwin"),
        severity="error",
        says=("Linux", "Darwin"),
        near=(replace(HOST, system="linux"),),
    ),
    Planted(rule="system", about="system", found=replace(IMAGE, system="Windows"), severity="error"),
    Planted(rule="system", about="system", wanted=replace(RUN, system="Darwin"), found=IMAGE, severity="warning"),
    Planted(
        rule="machine",
        about="machine",
        found=replace(HOST, machine="aarch64"),
        severity="error",
        says=("x86_64", "aarch64", "--platform"),
        near=(replace(HOST, machine="AMD64"),),
        near_pairs=((replace(IMAGE, machine="arm64"), replace(HOST, machine="aarch64")),),
    ),
    Planted(rule="machine", about="machine", wanted=IMAGE, found=replace(HOST, machine="arm64"), severity="error"),
    Planted(
        rule="glibc",
        about="glibc",
        found=replace(IMAGE, libc_version="2.28"),
        severity="warning",
        says=("2.31", "2.28", "--base"),
        near=(replace(IMAGE, libc_version="2.36"), replace(IMAGE, libc_version="2.31.9000")),
        near_pairs=((IMAGE, replace(HOST, libc_version="2.17")),),
    ),
    Planted(
        rule="glibc",
        about="glibc",
        wanted=LOCK,
        found=replace(IMAGE, libc_version="2.28"),
        severity="error",
        says=("chosen",),
    ),
    Planted(rule="glibc", about="libc", found=replace(IMAGE, libc="musl", libc_version="1.2"), severity="error"),
    Planted(
        rule="framework",
        about="tensorflow",
        found=serving("2.10.0"),
        severity="error",
        says=("2.8.0", "2.10.0", "kernels", "from-manifest"),
        near=(serving("2.8"), CPU_BUILD, replace(serving("2.10.0"), packages=None, frameworks=())),
        near_pairs=((IMAGE, replace(HOST, frameworks=(tensorflow("2.10.0"),))),),
    ),
    Planted(
        rule="framework",
        about="tensorflow",
        found=replace(having(without(HOST, "tensorflow"), torch="2.1.0"), frameworks=()),
        severity="error",
        says=("torch 2.1.0", "tensorflow==2.8.0"),
        near=(replace(without(HOST, "tensorflow"), frameworks=(), complete=False),),
    ),
    Planted(
        rule="framework-build",
        about="tensorflow",
        found=CPU_BUILD,
        severity="note",
        says=("GPU", "CPU", "--variant gpu"),
        near=(having(without(IMAGE, "tensorflow"), tensorflow_gpu="2.8.0"),),
    ),
    Planted(
        rule="framework-build",
        about="tensorflow",
        found=replace(CPU_BUILD, name="host", kind="host", variant=None),
        severity="warning",
    ),
    Planted(rule="framework-build", about="tensorflow", wanted=CPU_BUILD, found=IMAGE, severity="note"),
    Planted(
        rule="framework-build",
        about="tensorflow",
        found=replace(IMAGE, frameworks=(tensorflow(cuda="11.8"),)),
        severity="warning",
        says=("CUDA 11.2", "CUDA 11.8"),
        near=(replace(IMAGE, frameworks=(tensorflow(cuda="11.2.1"),)),),
        near_pairs=((replace(RUN, accelerator=NONE), CPU_BUILD),),
    ),
    Planted(
        rule="framework-build",
        about="torch",
        wanted=of_files("torch", "2.1.0+cu118"),
        found=of_files("torch", "2.1.0+cu121", IMAGE),
        severity="warning",
        says=("+cu118", "+cu121"),
        near_pairs=((of_files("torch", "2.1.0+cu118"), of_files("torch", "2.1+cu118", IMAGE)),),
    ),
    Planted(
        rule="framework-build",
        about="torch",
        wanted=of_files("torch", "2.1.0"),
        found=of_files("torch", "2.1.0+cu121", IMAGE),
        severity="note",
        says=("no local label",),
    ),
    Planted(
        rule="framework-build",
        about="tensorflow",
        wanted=replace(RUN, frameworks=(tensorflow(git_version="v2.8.0-rc1-32-g3f878cff5b6"),)),
        found=replace(IMAGE, frameworks=(tensorflow(git_version="v2.8.0-0-gabcdef01234"),)),
        severity="warning",
        says=("g3f878cff5b6", "gabcdef01234"),
    ),
    Planted(
        rule="package",
        about="numpy",
        found=having(IMAGE, numpy="1.22.0"),
        severity="error",
        says=("1.23.5", "1.22.0"),
        near=(having(IMAGE, numpy="1.23.5.0"), having(IMAGE, numpy=package("numpy", None))),
    ),
    Planted(
        rule="package",
        about="requests",
        found=having(HOST, requests="2.31.0"),
        severity="error",
        says=("2.28.1", "2.31.0", "requests==2.28.1"),
        near_pairs=((IMAGE, having(HOST, requests="2.31.0")),),
    ),
    Planted(rule="package", about="pip", found=having(IMAGE, pip="24.0"), severity="note"),
    Planted(
        rule="package",
        about="acme",
        wanted=having(RUN, acme=package("acme", None, build="1" * 40)),
        found=having(IMAGE, acme=package("acme", None, build="2" * 40)),
        severity="error",
        says=("111111111111", "222222222222"),
        near_pairs=(
            (having(RUN, acme=package("acme", None, build="1" * 40)), having(IMAGE, acme=package("acme", None))),
        ),
    ),
    Planted(
        rule="package-missing",
        about="requests",
        found=without(IMAGE, "requests"),
        severity="error",
        says=("2.28.1", "not there"),
        near=(replace(without(IMAGE, "requests"), complete=False), replace(IMAGE, packages=None)),
        near_pairs=(
            (WITH_CUDA, CPU_BUILD),
            (having(RUN, tensorflow_intel="2.8.0"), IMAGE),
            (having(RUN, pkg_resources="0.0.0"), IMAGE),
        ),
    ),
    Planted(rule="package-missing", about="pip", found=without(IMAGE, "pip"), severity="note"),
    Planted(
        rule="package-missing",
        about="dropped",
        found=replace(without(IMAGE, "requests"), dropped=frozenset({"requests"})),
        severity="note",
        says=("1 package left out by --drop", "requests 2.28.1"),
    ),
    Planted(
        rule="package-missing",
        about="NVIDIA's wheels",
        wanted=WITH_CUDA,
        found=replace(IMAGE, cuda=None),
        severity="error",
        says=("nvidia-cublas-cu11 11.11.3.6",),
    ),
    Planted(
        rule="package-missing",
        about="NVIDIA's wheels",
        wanted=WITH_CUDA,
        found=replace(IMAGE, cuda="11.8.0"),
        severity="note",
        says=("11.8.0 comes from elsewhere",),
    ),
    Planted(
        rule="package-missing",
        about="NVIDIA's wheels",
        wanted=WITH_CUDA,
        found=replace(HOST, cuda=None),
        severity="warning",
    ),
    Planted(
        rule="package-missing",
        about="nvidia-cublas-cu11",
        wanted=WITH_CUDA,
        found=having(IMAGE, nvidia_cudnn_cu11="8.6.0.163"),
        severity="error",
    ),
    Planted(
        rule="package-extra",
        about="packages",
        found=having(IMAGE, gunicorn="21.2.0", flask="3.0.0"),
        severity="note",
        says=("2 packages more", "flask 3.0.0, gunicorn 21.2.0"),
        near=(CPU_BUILD,),
        near_pairs=((replace(RUN, complete=False), having(IMAGE, gunicorn="21.2.0")),),
    ),
    Planted(
        rule="package-build",
        about="numpy",
        wanted=of_files("numpy", "1.23.5", content=SAME_HASH),
        found=of_files("numpy", "1.23.5", IMAGE, content=OTHER_HASH),
        severity="error",
        says=("c0ffee000000", "decade000000"),
        near_pairs=(
            (
                of_files("numpy", "1.23.5", content=SAME_HASH, wheels=frozenset({SAME_HASH})),
                of_files("numpy", "1.23.5", IMAGE, content=SAME_HASH, wheels=frozenset({SAME_HASH})),
            ),
            (of_files("numpy", "1.23.5", content=SAME_HASH), of_files("numpy", "1.23.5", IMAGE)),
            (
                of_files("numpy", "1.23.5", content=SAME_HASH),
                of_files("numpy", "1.23.5", replace(IMAGE, machine="aarch64"), content=OTHER_HASH),
            ),
        ),
    ),
    Planted(
        rule="package-build",
        about="six",
        wanted=of_files("six", "1.16.0", wheels=frozenset({SAME_HASH, "f" * 64})),
        found=of_files("six", "1.16.0", LOCK, wheels=frozenset({OTHER_HASH})),
        severity="warning",
        says=("sha256:c0ffee000000 or 1 more", "sha256:decade000000"),
        near_pairs=(
            (
                of_files("six", "1.16.0", wheels=frozenset({SAME_HASH, OTHER_HASH})),
                of_files("six", "1.16.0", LOCK, wheels=frozenset({OTHER_HASH})),
            ),
        ),
    ),
    Planted(
        rule="package-build",
        about="tensorflow",
        wanted=of_files("tensorflow", "2.8.0", content=SAME_HASH),
        found=of_files("tensorflow", "2.8.0", IMAGE, content=OTHER_HASH),
        severity="error",
        near_pairs=(
            (
                of_files("torch", "2.1.0+cu118", content=SAME_HASH),
                of_files("torch", "2.1.0+cu121", IMAGE, content=OTHER_HASH),
            ),
        ),
    ),
    Planted(
        rule="package-build",
        about="scipy",
        wanted=of_files("scipy", "1.11.0", build="py310h_mkl_0"),
        found=of_files("scipy", "1.11.0", HOST, build="py310h_openblas_0"),
        severity="error",
        says=("build py310h_mkl_0", "build py310h_openblas_0"),
    ),
    Planted(
        rule="package-build",
        about="torchvision",
        wanted=of_files("torchvision", "0.16.0+cu118"),
        found=of_files("torchvision", "0.16.0+cpu", CPU_BUILD),
        severity="note",
    ),
    Planted(
        rule="cuda",
        about="CUDA",
        found=replace(IMAGE, cuda="12.2.0"),
        severity="error",
        says=("11.2.152", "12.2.0"),
        near=(replace(IMAGE, cuda="11.2"), replace(IMAGE, cuda=None)),
        near_pairs=((IMAGE, replace(HOST, cuda="12.2.0")),),
    ),
    Planted(
        rule="cuda", about="CUDA", found=replace(IMAGE, cuda="11.8"), severity="warning", says=("11.8", "last digits")
    ),
    Planted(
        rule="cudnn",
        about="cuDNN",
        found=replace(IMAGE, cudnn="9.0.0"),
        severity="error",
        says=("8.1.1", "9.0.0"),
        near=(replace(IMAGE, cudnn="8.1.0"), replace(IMAGE, cudnn="8")),
    ),
    Planted(rule="cudnn", about="cuDNN", found=replace(IMAGE, cudnn="8.6.0.163"), severity="warning"),
    Planted(rule="cudnn", about="cuDNN", found=replace(IMAGE, cudnn="8.0.5"), severity="error", says=("refuses",)),
    Planted(
        rule="cudnn",
        about="cuDNN",
        found=replace(serving("9.9.9"), cudnn="8.0.5"),
        severity="warning",
        says=("last digits",),
    ),
    Planted(
        rule="driver",
        about="driver",
        wanted=IMAGE,
        found=replace(HOST, accelerator=nvidia(gpu(), driver="418.87.01", maximum="10.1")),
        severity="error",
        says=("450.80.02", "418.87.01", "update the driver"),
        near=(
            replace(HOST, accelerator=nvidia(gpu(), driver="450.80.02", maximum="11.4")),
            replace(HOST, accelerator=nvidia(gpu(), driver="580.65.06", maximum="13.0")),
            replace(HOST, accelerator=None),
        ),
        near_pairs=((CPU_BUILD, replace(HOST, accelerator=nvidia(gpu(), driver="418.87.01", maximum="10.1"))),),
    ),
    Planted(
        rule="driver",
        about="driver",
        wanted=replace(IMAGE, cuda="12.5.82"),
        found=replace(HOST, accelerator=Accelerator(kind="nvidia", cuda_maximum="11.4", gpus=(gpu(),))),
        severity="error",
        says=("525.60.13", "serves CUDA 11.4"),
    ),
    Planted(
        rule="driver",
        about="driver",
        wanted=replace(IMAGE, cuda="12.5.82"),
        found=HOST,
        severity="note",
        says=("12.5.82", "12.2", "minor version"),
    ),
    Planted(
        rule="driver",
        about="driver",
        wanted=replace(IMAGE, cuda="12.5.82"),
        found=replace(HOST, accelerator=nvidia(gpu(), driver="garbage", maximum="12.5")),
        severity="warning",
        says=("525.60.13", "not known whether driver garbage"),
    ),
    Planted(
        rule="driver",
        about="driver",
        wanted=replace(RUN, accelerator=NONE),
        found=replace(HOST, accelerator=nvidia(driver="418.87.01", maximum="10.1")),
        severity="warning",
    ),
    Planted(
        rule="gpu-absent",
        about="GPU",
        found=replace(HOST, accelerator=NONE),
        severity="error",
        says=("Tesla T4", "no GPU", "--variant cpu", "--gpus all"),
        near=(
            replace(HOST, accelerator=None),
            replace(HOST, accelerator=Accelerator(kind="nvidia")),
            replace(RUN, accelerator=NONE),
        ),
        near_pairs=(
            (CPU_BUILD, replace(HOST, accelerator=NONE)),
            (replace(RUN, accelerator=NONE), replace(HOST, accelerator=NONE)),
            (replace(RUN, accelerator=None), replace(HOST, accelerator=NONE)),
            (replace(RUN, frameworks=(), packages=packages(scikit_learn="1.3.0")), replace(HOST, accelerator=NONE)),
            (replace(RUN, frameworks=(JAX,), packages=PLAIN_JAX), replace(HOST, accelerator=NONE)),
        ),
    ),
    Planted(
        rule="gpu-absent",
        about="GPU",
        wanted=replace(RUN, frameworks=(JAX,), packages=PLAIN_JAX | packages(jax_cuda12_plugin="0.7.0")),
        found=replace(HOST, accelerator=NONE),
        severity="error",
    ),
    Planted(
        rule="gpu-absent",
        about="GPU",
        wanted=replace(RUN, frameworks=(JAX,), packages=PLAIN_JAX | packages(jaxlib="0.4.7+cuda11.cudnn86")),
        found=replace(HOST, accelerator=NONE),
        severity="error",
    ),
    Planted(rule="gpu-absent", about="GPU", wanted=IMAGE, found=replace(HOST, accelerator=NONE), severity="error"),
    Planted(
        rule="gpu-absent",
        about="GPU",
        found=replace(HOST, accelerator=Accelerator(kind="tpu")),
        severity="error",
        says=("a TPU",),
    ),
    Planted(
        rule="compute-capability",
        about="Tesla P100-PCIE-16GB",
        wanted=IMAGE,
        found=replace(HOST, accelerator=nvidia(gpu("Tesla P100-PCIE-16GB", "6.0"))),
        severity="error",
        says=("sm_70, sm_75, compute_80", "6.0"),
        near=(
            replace(HOST, accelerator=nvidia(gpu("Tesla V100", "7.0"))),
            replace(HOST, accelerator=nvidia(gpu("Jetson Xavier", "7.2"))),
            replace(HOST, accelerator=nvidia(Gpu(name="Unheard Of"))),
        ),
        near_pairs=((CPU_BUILD, replace(HOST, accelerator=nvidia(gpu("Tesla P100-PCIE-16GB", "6.0")))),),
    ),
    Planted(
        rule="compute-capability",
        about="NVIDIA H100",
        wanted=IMAGE,
        found=replace(HOST, accelerator=nvidia(Gpu(name="NVIDIA H100", memory=80 * GIB))),
        severity="warning",
        says=("only PTX", "9.0"),
    ),
    Planted(
        rule="compute-capability",
        about="Tesla T4",
        found=replace(IMAGE, frameworks=(tensorflow(compute_capabilities=("8.0", "8.6")),)),
        severity="error",
        near=(replace(IMAGE, frameworks=(tensorflow(compute_capabilities=("7.0",)),)),),
    ),
    Planted(
        rule="compute-capability",
        about="Tesla V100",
        wanted=replace(IMAGE, frameworks=(tensorflow(compute_capabilities=("sm_75", "compute_80")),)),
        found=replace(HOST, accelerator=nvidia(gpu("Tesla V100", "7.0"))),
        severity="error",
        says=("sm_75, compute_80", "7.0"),
    ),
    Planted(
        rule="gpu-memory",
        about="GPU memory",
        wanted=replace(RUN, accelerator=nvidia(gpu("NVIDIA A100-SXM4-40GB", "8.0", 40 * GIB))),
        found=HOST,
        severity="warning",
        says=("40.0 GiB", "15.0 GiB"),
        near=(
            replace(HOST, accelerator=nvidia(gpu("NVIDIA A100-SXM4-40GB", "8.0", 39 * GIB))),
            replace(HOST, accelerator=nvidia(Gpu(name="Tesla T4"))),
        ),
    ),
    Planted(
        rule="gpu-memory",
        about="GPU memory",
        found=replace(
            HOST,
            accelerator=nvidia(gpu("NVIDIA A100", "8.0", 80 * GIB, Mig(enabled=True, instances=("1g.10gb",)))),
        ),
        severity="warning",
        says=("10.0 GiB", "MIG"),
        near=(
            replace(HOST, accelerator=nvidia(gpu("NVIDIA A100", "8.0", 80 * GIB, Mig(enabled=True)))),
            replace(
                HOST, accelerator=nvidia(gpu("NVIDIA A100", "8.0", 80 * GIB, Mig(enabled=True, instances=("2g.20gb",))))
            ),
        ),
    ),
    Planted(
        rule="cpu-flags",
        about="CPU",
        found=replace(HOST, cpu=Cpu(flags=("sse2", "sse4_1", "sse4_2"))),
        severity="error",
        says=("avx, avx2, avx512f, fma", "illegal instruction"),
        near=(
            replace(HOST, cpu=Cpu(flags=tuple(it for it in FLAGS if it != "vmx"))),
            replace(HOST, cpu=Cpu(flags=(*FLAGS, "amx_tile"))),
            replace(HOST, cpu=Cpu()),
            replace(HOST, machine="aarch64", cpu=Cpu(flags=("fp", "asimd"))),
        ),
    ),
    Planted(
        rule="cpu-flags",
        about="CPU",
        found=replace(HOST, cpu=Cpu(model="AMD EPYC 7B12", flags=tuple(it for it in FLAGS if it != "avx512f"))),
        severity="warning",
        says=("avx512f", "AMD EPYC 7B12"),
    ),
    Planted(
        rule="cpu-flags",
        about="CPU",
        wanted=replace(RUN, cpu=Cpu(flags=("fp", "asimd", "sve"))),
        found=replace(HOST, cpu=Cpu(flags=("fp", "asimd"))),
        severity="warning",
        says=("sve",),
    ),
    Planted(
        rule="variable-missing",
        about="TRAINING_DATA_PATH",
        found=replace(HOST, names=SET - {"TRAINING_DATA_PATH"}),
        severity="error",
        says=("not set", "-e TRAINING_DATA_PATH=..."),
        near=(HOST, replace(HOST, names=None)),
    ),
    Planted(
        rule="variable-missing",
        about="TRAINING_DATA_PATH",
        found=replace(IMAGE, names=frozenset({"OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS"})),
        severity="note",
        says=("start it with `-e TRAINING_DATA_PATH=...`",),
    ),
    Planted(
        rule="variable-missing", about="AIP_MODEL_DIR", wanted=needing("AIP_MODEL_DIR"), found=HOST, severity="note"
    ),
    Planted(
        rule="variable-value",
        about="OMP_NUM_THREADS",
        found=replace(HOST, variables={"OMP_NUM_THREADS": "8", "TF_DETERMINISTIC_OPS": "1"}),
        severity="warning",
        says=("wanted 4, found 8", "-e OMP_NUM_THREADS=4"),
        near=(
            replace(HOST, variables={}),
            replace(HOST, variables=None, names=None),
            replace(HOST, variables={**(RUN.variables or {}), "LD_LIBRARY_PATH": "/a", "AIP_MODEL_DIR": "gs://b"}),
            replace(HOST, variables={**(RUN.variables or {}), "TF2_BEHAVIOR": "1"}, names=SET | {"TF2_BEHAVIOR"}),
        ),
    ),
    Planted(
        rule="variable-value",
        about="TF_DETERMINISTIC_OPS",
        found=replace(HOST, names=SET - {"TF_DETERMINISTIC_OPS"}, variables={"OMP_NUM_THREADS": "4"}),
        severity="warning",
        says=("wanted 1, found not set",),
    ),
    Planted(
        rule="variable-value",
        about="TF_DETERMINISTIC_OPS",
        found=replace(IMAGE, names=frozenset({"TRAINING_DATA_PATH"}), variables={}),
        severity="note",
    ),
    Planted(
        rule="variable-value",
        about="NVIDIA_TF32_OVERRIDE",
        wanted=replace(RUN, names=SET),
        found=replace(HOST, variables={**(RUN.variables or {}), "NVIDIA_TF32_OVERRIDE": "0"}),
        severity="warning",
        says=("wanted not set, found 0", "leave it unset"),
    ),
    Planted(
        rule="variable-value",
        about="XLA_FLAGS",
        wanted=replace(RUN, variables={"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}),
        found=replace(HOST, variables={"XLA_FLAGS": "--xla_gpu_cuda_data_dir=/opt/env/nvcc"}),
        severity="warning",
        near_pairs=(
            (
                replace(RUN, variables={"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}),
                replace(
                    HOST, variables={"XLA_FLAGS": "--xla_gpu_cuda_data_dir=/opt/x --xla_gpu_deterministic_ops=true"}
                ),
            ),
        ),
    ),
    Planted(
        rule="variable-value",
        about="TF_XLA_FLAGS",
        wanted=replace(RUN, variables={"TF_XLA_FLAGS": "--a --b"}),
        found=replace(HOST, variables={"TF_XLA_FLAGS": ""}),
        severity="warning",
        says=("found nothing", "-e 'TF_XLA_FLAGS=--a --b'"),
    ),
    Planted(
        rule="variable-value",
        about="TF_XLA_FLAGS",
        wanted=replace(RUN, variables={"TF_XLA_FLAGS": ""}),
        found=replace(HOST, variables={"TF_XLA_FLAGS": "a\nb"}),
        severity="warning",
        says=(r"found 'a\nb'", "-e TF_XLA_FLAGS=`"),
    ),
    Planted(
        rule="variable-value",
        about="TF_CUDNN_DETERMINISTIC",
        wanted=replace(RUN, variables={"TF_CUDNN_DETERMINISTIC": "1"}),
        found=replace(RUN, variables={}, unset=frozenset({"TF_CUDNN_DETERMINISTIC"})),
        severity="warning",
        says=("wanted 1, found not set",),
        near_pairs=((replace(RUN, variables={"TF_CUDNN_DETERMINISTIC": "1"}), replace(RUN, variables={})),),
    ),
    Planted(
        rule="numerics",
        about="tensorflow setting tensor_float_32",
        wanted=told(RUN, settings=(("jit", "false"), ("tensor_float_32", "true"))),
        found=told(replace(RUN, name="later.json"), settings=(("tensor_float_32", "false"),)),
        severity="warning",
        says=("wanted true, found false",),
        near_pairs=(
            (told(RUN, settings=(("jit", "false"),)), told(RUN, settings=(("onednn", "true"),))),
            (told(RUN, seed=7, precision="float32", deterministic=True), told(RUN)),
            (told(RUN, seed=7), replace(RUN, numerics=(Numerics(framework="torch", seed=8),))),
            (told(RUN, devices=("CPU:0",)), told(RUN, devices=("GPU:0",))),
        ),
    ),
    Planted(
        rule="numerics",
        about="tensorflow precision",
        wanted=told(RUN, precision="mixed_float16"),
        found=told(RUN, precision="float32"),
        severity="error",
        says=("wanted mixed_float16, found float32",),
    ),
    Planted(
        rule="numerics",
        about="tensorflow determinism",
        wanted=told(RUN, deterministic=True),
        found=told(RUN, deterministic=False),
        severity="warning",
        says=("wanted on, found off",),
    ),
    Planted(
        rule="numerics",
        about="tensorflow seed",
        wanted=told(RUN, seed=0),
        found=told(RUN, seed=1),
        severity="note",
        says=("wanted 0, found 1",),
    ),
    Planted(
        rule="data-absent",
        about="gs://acme/train.csv",
        found=replace(HOST, absent_data=frozenset({"gs://acme/train.csv"})),
        severity="error",
        says=("roles/storage.objectViewer", "-e TRAINING_DATA_PATH=..."),
        near=(replace(HOST, absent_data=frozenset({"gs://other/train.csv"})), replace(HOST, absent_data=None)),
    ),
    Planted(
        rule="data-absent",
        about="/data/train.csv",
        wanted=replace(RUN, contract=Contract(data=(Data(uri="/data/train.csv"),))),
        found=replace(HOST, absent_data=frozenset({"/data/train.csv"})),
        severity="error",
        says=("-v /data/train.csv:/data/train.csv:ro",),
    ),
    Planted(
        rule="data-changed",
        about="gs://acme/train.csv",
        found=replace(
            RUN,
            name="later.json",
            contract=Contract(data=(Data(uri="gs://acme/train.csv", checksum="crc32c:BBBBBB=="),)),
        ),
        severity="warning",
        says=("crc32c:AAAAAA==", "crc32c:BBBBBB=="),
        near=(
            replace(
                RUN,
                contract=Contract(data=(Data(uri="gs://acme/train.csv", generation=18, checksum="crc32c:AAAAAA=="),)),
            ),
            replace(RUN, contract=Contract(data=(Data(uri="gs://acme/train.csv", checksum="sha256:aa"),))),
            replace(RUN, contract=Contract(data=(Data(uri="gs://acme/test.csv", generation=1),))),
        ),
    ),
    Planted(
        rule="data-changed",
        about="gs://acme/train.csv",
        found=replace(RUN, contract=Contract(data=(Data(uri="gs://acme/train.csv", generation=18),))),
        severity="warning",
        says=("generation 17", "generation 18"),
    ),
    Planted(
        rule="data-changed",
        about="/data/a",
        wanted=replace(RUN, contract=reading("/data/a", checksum="sha256:aa", size=7)),
        found=replace(HOST, contract=Contract(), data={"/data/a": Data(uri="/data/a", size=8)}),
        severity="warning",
        says=("wanted 7 bytes, found 8 bytes", "put the data back"),
        near_pairs=(
            (
                replace(RUN, contract=reading("/data/a", checksum="sha256:aa", size=7)),
                replace(HOST, contract=Contract(), data={"/data/a": Data(uri="/data/a", size=7)}),
            ),
        ),
    ),
    Planted(
        rule="data-changed",
        about="/data/a",
        wanted=replace(RUN, contract=reading("/data/a", checksum="sha256:aa", size=7)),
        found=replace(HOST, contract=Contract(), data={"/data/a": Data(uri="/data/a", size=7, checksum="sha256:bb")}),
        severity="warning",
        says=("sha256:aa", "sha256:bb"),
    ),
    Planted(
        rule="preprocessing",
        about="src/features",
        found=replace(HOST, trees={"src/features": "b" * 40}),
        severity="error",
        says=("aaaaaaaaaaaa", "bbbbbbbbbbbb"),
        near=(HOST, replace(HOST, trees=None)),
    ),
    Planted(rule="preprocessing", about="src/features", found=replace(HOST, trees={}), severity="warning"),
    Planted(
        rule="preprocessing",
        about="src/features",
        found=replace(HOST, trees={"app/features.py": "b" * 40}),
        severity="error",
        says=("app/features.py is imported in its place", "aaaaaaaaaaaa", "bbbbbbbbbbbb"),
        near=(replace(HOST, trees={"app/features.py": "a" * 40}),),
    ),
    Planted(
        rule="artifact-framework",
        about="model of tensorflow",
        wanted=written(RUN, "tensorflow", "2.10.0"),
        found=IMAGE,
        severity="error",
        says=("2.10.0 wrote the model, and 2.8.0 is to load it",),
        near_pairs=(
            (written(RUN, "tensorflow", "2.8.4"), IMAGE),
            (written(RUN, "sklearn", "9.0"), IMAGE),
            (RUN, replace(IMAGE, frameworks=(), packages=None)),
        ),
    ),
    Planted(
        rule="artifact-framework",
        about="model of tensorflow",
        wanted=RUN,
        found=serving("2.10.0"),
        severity="note",
        says=("promises",),
    ),
    Planted(
        rule="artifact-framework",
        about="model of torch",
        wanted=replace(written(RUN, "pytorch", "1.13.1", "onnx"), frameworks=()),
        found=having(IMAGE, torch="2.1.0"),
        severity="warning",
    ),
    Planted(
        rule="artifact-framework",
        about="model of tensorflow",
        wanted=IMAGE,
        found=replace(written(RUN, "tensorflow", "2.11.0"), kind="model"),
        severity="error",
    ),
    Planted(
        rule="artifact-tf1",
        about="model of TensorFlow 1",
        wanted=written(RUN, "tensorflow", "1.15.0"),
        found=IMAGE,
        severity="warning",
        says=("1.15.0", "2.8.0", "tf.compat.v1.saved_model.load"),
        near_pairs=((written(RUN, "tensorflow", "1.15.0"), serving("1.15.5")),),
    ),
    Planted(
        rule="artifact-tf1",
        about="model of TensorFlow 1",
        wanted=written(RUN, "tensorflow", "1.15.0", "tf_checkpoint"),
        found=IMAGE,
        severity="error",
    ),
    Planted(
        rule="artifact-keras",
        about="model of Keras",
        wanted=written(RUN, "keras", "2.8.0", "hdf5"),
        found=serving("2.16.1", keras="3.3.3"),
        severity="warning",
        says=("Keras 2.8.0", "Keras 3.3.3", "golden sample", "tf-keras~=2.16.0", "TF_USE_LEGACY_KERAS=1"),
        near_pairs=((written(RUN, "keras", "2.8.0", "hdf5"), IMAGE),),
    ),
    Planted(
        rule="artifact-keras",
        about="model of Keras",
        wanted=written(RUN, "keras", "2.15.0", "keras"),
        found=serving("2.16.1", keras="3.3.3"),
        severity="error",
        says=("functional", "tf-keras~=2.16.0"),
    ),
    Planted(
        rule="artifact-keras",
        about="model of Keras",
        wanted=written(RUN, "keras", "2.8.0", "hdf5"),
        found=serving("2.16.1", keras="3.3.3", tf_keras="2.16.0"),
        severity="warning",
        says=("set TF_USE_LEGACY_KERAS=1",),
        near=(
            replace(serving("2.16.1", keras="3.3.3", tf_keras="2.16.0"), variables={"TF_USE_LEGACY_KERAS": "1"}),
            replace(serving("2.16.1", keras="3.3.3", tf_keras="2.16.0"), variables=None),
        ),
    ),
    Planted(
        rule="artifact-keras",
        about="model of Keras",
        wanted=written(RUN, "keras", "2.8.0"),
        found=serving("2.16.1", keras="3.3.3"),
        severity="warning",
    ),
    Planted(
        rule="artifact-keras",
        about="model of Keras",
        wanted=written(RUN, "keras", "3.3.3", "keras"),
        found=IMAGE,
        severity="error",
        says=("serve it with Keras 3.3 or later",),
    ),
    Planted(
        rule="artifact-library",
        about="model of XGBoost",
        wanted=written(RUN, "xgboost", "2.1.0", "xgboost"),
        found=having(IMAGE, xgboost="2.0.3"),
        severity="error",
        says=("2.1.0 wrote it, and 2.0.3 is to load it", "serve it with XGBoost 2.1 or later"),
        near=(having(IMAGE, xgboost="2.1.4"), having(IMAGE, xgboost="3.0.0")),
    ),
    Planted(
        rule="artifact-pickle",
        about="pickle of the model",
        wanted=pickled(RUN, "lightgbm"),
        found=IMAGE,
        severity="error",
        says=("the module lightgbm", "install lightgbm there"),
        near=(having(IMAGE, lightgbm="4.6.0"), replace(IMAGE, complete=False)),
    ),
    Planted(
        rule="artifact-format",
        about="model format",
        found=replace(written(RUN, "keras", "2.8.0", "hdf5"), name="gs://acme/churn", kind="model"),
        severity="error",
        says=("wanted saved_model, found hdf5",),
        near=(replace(RUN, kind="model"), IMAGE),
    ),
    Planted(
        rule="model-files",
        about="model files",
        wanted=saved(RUN, saved_model_pb="a" * 64, weights="c" * 64),
        found=replace(saved(RUN, saved_model_pb="a" * 64, weights="b" * 64), name="gs://acme/churn", kind="model"),
        severity="error",
        says=("weights is not the same", "weights 7 bytes sha256 cccccccccccc", "weights 7 bytes sha256 bbbbbbbbbbbb"),
        near_pairs=(
            (saved(RUN, a="a" * 64), saved(RUN, a="a" * 64, uri="gs://acme/copy")),
            (saved(RUN, uri="out/a.keras", a_keras="a" * 64), saved(RUN, uri="b/b.keras", b_keras="a" * 64)),
            (saved(RUN, a="a" * 64), RUN),
            (saved(RUN, a="a" * 64, b="b" * 64), saved(RUN, a="a" * 64, count=2)),
            (saved(RUN, a="a" * 64), written(saved(RUN, a="b" * 64), "keras", "2.8.0", "hdf5")),
        ),
    ),
    Planted(
        rule="model-files",
        about="model files",
        wanted=saved(RUN, a="a" * 64, b="b" * 64),
        found=saved(RUN, a="a" * 64),
        severity="error",
        says=("b is not there", "no b"),
    ),
    Planted(
        rule="model-files",
        about="model files",
        wanted=saved(RUN, a="a" * 64),
        found=saved(RUN, a="a" * 64, b="b" * 64, c="c" * 64),
        severity="note",
        says=("b, c are there besides",),
    ),
    Planted(
        rule="model-files",
        about="model files",
        wanted=saved(RUN, a="a" * 64),
        found=saved(RUN, a="b" * 64, uri="gs://acme/second"),
        severity="warning",
        says=("two trainings",),
    ),
)
"""At least one mismatch for each rule; the first of a rule is the one that docs/rules.md shows."""


def of_rule(rule: str, wanted: Side, found: Side) -> list[Finding]:
    return [it for it in apply_rules(wanted, found) if it.rule == rule and not it.agrees]


def planted_names() -> Iterator[str]:
    for at, it in enumerate(PLANTED):
        yield f"{at}-{it.rule}-{it.severity}"


@pytest.mark.parametrize("case", PLANTED, ids=list(planted_names()))
def test_planted_mismatch_is_found(case: Planted) -> None:
    found = [it for it in of_rule(case.rule, case.wanted, case.found) if it.about == case.about]
    assert len(found) == 1, apply_rules(case.wanted, case.found)
    finding = found[0]
    assert finding.severity == case.severity
    text = f"{finding.says} {finding.wanted} {finding.found} {finding.why} {finding.todo}"
    for part in case.says:
        assert part in text
    assert finding.why
    assert finding.todo
    assert finding.between == (case.wanted.name, case.found.name)


NEAR = [
    (it.rule, wanted, found)
    for it in PLANTED
    for wanted, found in chain([(it.wanted, at) for at in it.near], it.near_pairs)
]


@pytest.mark.parametrize(("rule", "wanted", "found"), NEAR, ids=[f"{at}-{it[0]}" for at, it in enumerate(NEAR)])
def test_what_is_near_is_not_found(rule: str, wanted: Side, found: Side) -> None:
    assert of_rule(rule, wanted, found) == []


def test_every_rule_is_planted_and_every_severity_is_said_in_the_catalogue() -> None:
    assert set(RULE_IDS) == {it.rule for it in PLANTED}
    assert len(RULE_IDS) == len(set(RULE_IDS)) == len(RULES)
    for rule in CATALOGUE:
        severities = {it.severity for it in PLANTED if it.rule == rule.id}
        assert rule.severity in severities, rule.id
        assert rule_of(rule.id) is rule


@pytest.mark.parametrize(("check", "rule"), list(zip(RULES, RULE_IDS, strict=True)), ids=RULE_IDS)
def test_the_checks_stand_in_the_order_of_the_catalogue(check, rule: str) -> None:
    pairs = [(it.wanted, it.found) for it in PLANTED]
    assert {finding.rule for pair in pairs for finding in check(*pair)} == {rule}


def test_what_keeps_the_model_from_being_loaded_stands_before_everything_else() -> None:
    found = apply_rules(written(RUN, "keras", "2.15.0", "keras"), serving("2.16.1", keras="3.3.3"))
    errors = [it.rule for it in found if not it.agrees and it.severity == "error"]
    assert errors[0] == "artifact-keras"
    assert {"framework", "package"} & set(errors)


def test_what_serves_a_run_gives_no_finding_and_says_what_was_compared() -> None:
    for found in (HOST, IMAGE, LOCK):
        findings = apply_rules(RUN, found)
        assert [it for it in findings if not it.agrees] == []
        assert len({(it.rule, it.about) for it in findings}) == len(findings)
    lines = [str(it) for it in apply_rules(RUN, HOST)]
    assert "ok       packages: 5 packages are the same" in lines
    assert "ok       tensorflow: 2.8.0" in lines
    assert "ok       variables: set as the program needs them: TRAINING_DATA_PATH" in lines
    assert "ok       values of variables: the same of OMP_NUM_THREADS, TF_DETERMINISTIC_OPS" in lines
    assert "ok       GPU: Tesla T4" in lines


def test_same_packages_are_counted_with_their_files() -> None:
    same = {name: replace(it, content=SAME_HASH) for name, it in PACKAGES.items() if name != "requests"}
    pair = [replace(it, packages={**PACKAGES, **same}) for it in (RUN, IMAGE)]
    lines = [str(it) for it in apply_rules(pair[0], pair[1])]
    assert "ok       packages: 5 packages are the same, 4 of them the same files" in lines
    assert "ok       files of packages: 4 packages from the same files" in lines


def test_the_gravest_come_first_within_a_rule() -> None:
    found = having(IMAGE, numpy="1.22.0", pip="24.0", requests="2.31.0")
    told = [it for it in apply_rules(RUN, found) if it.rule == "package"]
    assert [it.about for it in told] == ["numpy", "requests", "pip", "packages"]
    order = [SEVERITIES.index(it.severity) if not it.agrees else 3 for it in told]
    assert order == sorted(order)


def test_a_side_that_says_nothing_agrees_and_disagrees_with_nobody() -> None:
    for side in (RUN, HOST, IMAGE, LOCK):
        empty = Side(name="empty", kind=side.kind)
        for pair in ((side, empty), (empty, side), (empty, empty)):
            assert [it for it in apply_rules(*pair) if not it.agrees] == []


def test_a_secret_in_a_value_is_never_shown() -> None:
    token = "ghp_" + "a1B2" * 9
    for name in ("XLA_FLAGS", "TF_XLA_FLAGS", "OMP_NUM_THREADS"):
        pair = [replace(side, variables={name: value}) for side, value in ((RUN, token), (HOST, "1"))]
        for wanted, found in (pair, reversed(pair)):
            told = apply_rules(wanted, found)
            assert token not in repr(told)
            assert not [it for it in told if it.rule == "variable-value" and not it.agrees]


def test_frameworks_are_also_told_by_packages() -> None:
    found = replace(serving("2.10.0"), frameworks=())
    assert [it.found for it in of_rule("framework", replace(RUN, frameworks=()), found)] == ["2.10.0"]


def test_legacy_keras_listed_as_keras_is_a_package() -> None:
    listed = Framework(name="keras", distribution="tf_keras", version="2.16.0")
    wanted = replace(having(RUN, tf_keras="2.16.0"), frameworks=(tensorflow(), listed))
    found = having(IMAGE, tf_keras="2.17.0")
    assert [(it.rule, it.about) for it in apply_rules(wanted, found) if not it.agrees] == [("package", "tf-keras")]


def test_names_of_many_packages_are_cut() -> None:
    more = {f"extra{at}": "1.0" for at in range(12)}
    (finding,) = of_rule("package-extra", RUN, having(IMAGE, **more))
    assert finding.says.endswith("and 4 more")
    assert len(finding.packages) == 12


def test_the_table_of_packages_may_be_a_view() -> None:
    view = replace(RUN, packages=MappingProxyType(PACKAGES))
    assert apply_rules(view, IMAGE) == apply_rules(RUN, IMAGE)


def test_what_was_compared_of_a_model_is_said_with_its_doubts() -> None:
    by_size = replace(saved(RUN, a="a" * 64).model or Model(uri="m"), files=(ModelFile(path="a", size=7),))
    for found, said in (
        (saved(RUN, a="a" * 64), ""),
        (replace(RUN, model=by_size), "; of 1 only the size could be compared"),
    ):
        lines = [str(it) for it in apply_rules(saved(RUN, a="a" * 64), found)]
        assert f"ok       model files: 1 file with the same content{said}" in lines


def test_data_of_which_only_the_size_was_compared_is_counted() -> None:
    wanted = replace(RUN, contract=reading("/data/a", checksum="sha256:aa", size=7))
    found = replace(HOST, contract=Contract(), data={"/data/a": Data(uri="/data/a", size=7)})
    said = "ok       data: 1 place with the same content; of 1 only the size was compared"
    assert said in [str(it) for it in apply_rules(wanted, found)]


def test_keras_was_built_for_no_device() -> None:
    for side in (IMAGE, replace(LOCK, frameworks=()), CPU_BUILD):
        found = [it.about for it in apply_rules(side, side) if it.rule == "framework-build"]
        assert found == ["tensorflow"]


def test_one_of_a_kind_is_singular() -> None:
    one = replace(RUN, cpu=Cpu(flags=("sse2", "avx")))
    lines = [str(it) for it in apply_rules(one, one)]
    assert "ok       CPU: the one instruction set that changes numbers" in lines
    assert not [it for it in lines if " 1 " in it and it.endswith("s")]
