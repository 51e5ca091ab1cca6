"""What the run computed on: accelerators, CPU, the shared libraries it had loaded, and the machine around it."""

from dataclasses import dataclass
from typing import Literal

from envbuild.manifest.fields import Address, Count, Line, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """How a GPU is divided (NVIDIA Multi-Instance GPU)."""

    enabled: bool
    """Whether it is in MIG mode."""
    instances: tuple[Line, ...] = ()
    """The profiles that the run could see: `1g.10gb`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU that the run could see."""

    name: Line
    """`NVIDIA A100-SXM4-40GB`."""
    memory: Count | None = None
    """Bytes."""
    compute_capability: Numbers | None = None
    """`9.0`."""
    mig: Mig | None = None
    """Absent where the GPU has no such mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpu:
    """The TPU of the run."""

    type: Line | None = None
    """`v5litepod-8`."""
    chips: Count | None = None
    """How many chips this machine has."""
    libtpu: Line | None = None
    """Version of the distribution libtpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """GPUs, TPU, or none."""

    kind: Literal["nvidia", "tpu", "none"] = "nvidia"
    """What there was; `none` was looked for and not found."""
    source: Line | None = None
    """What said so: `nvidia-smi`, `/proc/driver/nvidia/version`; of a TPU `/sys/bus/pci/devices` or a variable."""
    driver: Line | None = None
    """NVIDIA's driver: `535.129.03`."""
    cuda_maximum: Numbers | None = None
    """The newest CUDA that the driver serves: `12.2`."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs."""
    tpu: Tpu | None = None
    """The TPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The CPU of the run."""

    model: Line | None = None
    """As /proc/cpuinfo names it; of ARM its numbers there: `CPU implementer 0x41 part 0xd40`."""
    count: Count | None = None
    """Logical CPUs of the machine."""
    usable: Count | None = None
    """Logical CPUs that the process may run on."""
    flags: tuple[Line, ...] = ()
    """Instruction sets, as /proc/cpuinfo names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a shared library belongs to."""

    kind: Literal["wheel", "debian", "rpm", "apk", "conda", "none"]
    """The sort of package; `none` is a file that no package lists."""
    name: Line | None = None
    """The package: `nvidia-cudnn-cu12`, `libc6`."""
    version: Line | None = None
    """Its version: `9.3.0.75`, `2.36-9+deb12u7`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library that the process had loaded."""

    name: Line
    """Its file's name: `libcudnn.so.9`."""
    path: Line
    """Where it lies; ` (deleted)` follows where another file, or none, lies by now."""
    owner: Owner
    """What brought it."""

    @property
    def place(self) -> str:
        """Its path below site-packages or dist-packages; the whole path of what lies elsewhere."""
        return self.path.removesuffix(" (deleted)").rpartition("-packages/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of CUDA and where its version is known from."""

    name: Line
    """`cuda`, `cudnn`, `nccl`, `cublas`, `tensorrt`."""
    version: Numbers
    """`12.5.82`."""
    source: Line
    """What says so: a function, the `file name`, a package (`Debian package libcudnn8`), or a version.json."""
    loaded: bool
    """Whether the process had it loaded, or it was only installed."""
    path: Line | None = None
    """The library, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPool:
    """A library that computes in threads of its own."""

    kind: Line
    """`openblas`, `mkl`, `openmp`."""
    library: Line
    """Its file's name."""
    version: Line | None = None
    """As it says itself."""
    threads: Count | None = None
    """How many threads it uses at most."""
    architecture: Line | None = None
    """The kernels it chose for this CPU: `SkylakeX`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """The shared libraries of a process."""

    process: Literal["run", "fresh"]
    """`run`: the training process itself; `fresh`: an interpreter started to capture, which has loaded little."""
    libraries: tuple[Library, ...] = ()
    """As /proc/self/maps has them, sorted by path."""
    components: tuple[Component, ...] = ()
    """Parts of CUDA."""
    thread_pools: tuple[ThreadPool, ...] = ()
    """BLAS and OpenMP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A job of Vertex AI (Agent Platform)."""

    job: Line | None = None
    """Its identifier."""
    project: Line | None = None
    """Its project."""
    region: Line | None = None
    """`europe-west4`."""
    trial: Line | None = None
    """The trial of a tuning job."""
    worker_pool: Line | None = None
    """The worker pool of this process: `workerpool0`."""
    replica: Count | None = None
    """Its index in the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """A pod of Kubernetes."""

    namespace: Line | None = None
    """Its namespace."""
    pod: Line | None = None
    """Its name."""
    completion_index: Count | None = None
    """Its index in an indexed job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container that it ran in."""

    runtime: Line | None = None
    """`docker`, `podman`, `containerd`."""
    image: Address | None = None
    """Its image, by digest where that is known."""
    source: Line | None = None
    """What said so: `ENVBUILD_IMAGE`, `CLUSTER_SPEC`, `docker inspect`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where it ran."""

    machine_type: Line | None = None
    """`a2-highgpu-1g`."""
    zone: Line | None = None
    """`europe-west4-a`."""
    project: Line | None = None
    """The Google Cloud project."""
    image: Line | None = None
    """The image that the machine was booted from."""
    vertex: Vertex | None = None
    """The job of Vertex AI."""
    kubernetes: Kubernetes | None = None
    """The pod."""
    container: Container | None = None
    """The container."""
