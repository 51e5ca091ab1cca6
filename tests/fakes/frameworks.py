"""Small wheels of TensorFlow, PyTorch and JAX: only the files that tell what a build is, in the forms of all times."""

import struct
from collections.abc import Iterable, Mapping

from tests.fakes.wheels import FakeWheel, make_wheel

X86 = "manylinux_2_17_x86_64"
ARM = "manylinux_2_17_aarch64"
GPU = {
    "is_cuda_build": True,
    "cuda_version": "12.2",
    "cudnn_version": "8",
    "cuda_compute_capabilities": ["sm_50", "compute_80"],
}
CPU = {"is_cuda_build": False}
CONFIG_12 = {
    "CUDA": "12.2", "CUDART": "12", "CUPTI": "12", "CUBLAS": "12", "CUSOLVER": "11", "CURAND": "10", "CUFFT": "11",
    "CUSPARSE": "12", "CUDNN": "8",
}  # fmt: skip
TF_REQUIRES = (
    "numpy<2",
    "keras<2.16,>=2.15.0",
    'nvidia-cudnn-cu12==8.9.4.25; extra == "and-cuda"',
    "nvidia-cublas-cu12 (==12.2.5.6) ; extra == 'and-cuda'",
    'tensorflow-intel==2.15.1; platform_system == "Windows"',
)


def cuda_config(versions: dict[str, str], *, capabilities: Iterable[str] = ()) -> str:
    """`cuda_config.h`; up to 2.2 it has the compute capabilities too."""
    lines = [f'#define TF_{name}_VERSION "{version}"' for name, version in versions.items()]
    old = ", ".join(f'CudaVersion("{it}")' for it in capabilities)
    lines += [f"#define TF_CUDA_CAPABILITIES {old}"] if old else []
    return "\n".join(["#ifndef CUDA_CUDA_CONFIG_H_", *lines, '#define TF_CUDA_TOOLKIT_PATH ""', "#endif", ""])


def cudnn_header(major: int, minor: int, patch: int) -> str:
    """`cudnn_version.h`, as in TensorFlow 2.16 and later."""
    head = f"#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n#define CUDNN_PATCHLEVEL {patch}\n"
    return head + "#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)\n"


def build_info(build: object) -> str:
    """`build_info.py` in the form of 2.4 and later."""
    return f"import collections\n\nbuild_info = collections.OrderedDict({build!r})\n"


def tensorflow(
    version: str,
    *,
    name: str = "tensorflow",
    python: str = "cp311",
    abi: str | None = None,
    platform: str = X86,
    build: object = GPU,
    config: str | None = None,
    files: Mapping[str, str | bytes] | None = None,
    requires: Iterable[str] = TF_REQUIRES,
    package: str = "tensorflow",
) -> FakeWheel:
    """A wheel of a TensorFlow distribution; `build` is a text or what build_info is set to."""
    told: dict[str, str | bytes] = {
        f"{package}/python/platform/build_info.py": build if isinstance(build, str) else build_info(build)
    }
    if config is not None or build == GPU:
        folder = f"{package}/include/external/local_config_cuda/cuda/cuda"
        told[f"{folder}/cuda_config.h"] = cuda_config(CONFIG_12) if config is None else config
    tags = (f"{python}-{abi or python}-{platform}",)
    return make_wheel(name, version, told | dict(files or {}), tags=tags, requires=requires)


def stub(version: str) -> FakeWheel:
    """TensorFlow for aarch64 up to 2.15: no code, and one requirement."""
    needs = f'tensorflow-cpu-aws=={version}; platform_system == "Linux" and platform_machine == "aarch64"'
    return make_wheel("tensorflow", version, {}, tags=(f"cp311-cp311-{ARM}",), requires=(needs, *TF_REQUIRES[2:]))


def torch(
    version: str,
    says: str = "cuda = '12.4'",
    *,
    python: str = "cp311",
    abi: str | None = None,
    platform: str = X86,
    requires: Iterable[str] = (),
    library: bytes | None = None,
) -> FakeWheel:
    """A wheel of PyTorch whose version.py says this; `library` is its libtorch_python.so."""
    files: dict[str, str | bytes] = {
        "torch/version.py": f"from typing import Optional\n__version__ = '{version}'\n{says}\nhip = None\n"
    }
    files |= {"torch/lib/libtorch_python.so": library} if library else {}
    return make_wheel("torch", version, files, tags=(f"{python}-{abi or python}-{platform}",), requires=requires)


def jax(version: str, requires: Iterable[str], *, requires_python: str = ">=3.10") -> FakeWheel:
    """A wheel of JAX itself; its extras are those that the requirements name."""
    requires = tuple(requires)
    extras = dict.fromkeys(it.partition('extra == "')[2].rstrip('"') for it in requires if "extra ==" in it)
    head = f"Metadata-Version: 2.1\nName: jax\nVersion: {version}\nRequires-Python: {requires_python}\n"
    metadata = head + "".join(f"Provides-Extra: {it}\n" for it in ("cpu", *extras))
    metadata += "".join(f"Requires-Dist: {it}\n" for it in requires)
    return make_wheel("jax", version, dist_info={"METADATA": metadata})


def jaxlib(version: str, *, python: str = "cp311", platform: str = X86) -> FakeWheel:
    """A wheel of jaxlib."""
    return make_wheel("jaxlib", version, tags=(f"{python}-{python}-{platform}",), requires=("numpy>=1.22",))


def fat_binary(*codes: tuple[int, int]) -> bytes:
    """Code for GPUs by kind (1 is PTX, 2 machine code) and architecture, as `nvcc` puts it into a library."""
    parts = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0, 64, 8, number) + b"\x50\xed\x55\xba" * 2 for kind, number in codes
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(parts)) + parts


def jax_plugin(
    version: str, number: int, *, python: str = "cp311", platform: str = X86, kernels: bytes | None = None
) -> FakeWheel:
    """A wheel of jax-cuda12-plugin or the like; `kernels` is a library with code for GPUs."""
    suffix = "-cu12" if number == 12 else ""
    requires = (
        f"jax-cuda{number}-pjrt =={version}",
        f"nvidia-cublas{suffix}>={number}.1; sys_platform == \"linux\" and extra == 'with_cuda'",
        f"nvidia-cudnn-cu{number}<10.0,>=9.8; extra == 'with_cuda'",
        f"nvidia-nccl-cu{number}>=2.18.1; extra == 'with_cuda'",
    )
    files = {f"jax_cuda{number}_plugin/_prng.so": kernels} if kernels else None
    tags = (f"{python}-{python}-{platform}",)
    return make_wheel(f"jax-cuda{number}-plugin", version, files, tags=tags, requires=requires)


PLUGIN_CODE = """
def _load_nvidia_libraries():
  def _load(lib, names):
    pass
  _load("cuda_runtime", ["libcudart.so.12"])
  _load("cu13", ["libcudart.so.13"])
  _load("cusparse", ["libcusparse.so.12"])
  _load("cu13", ["libcusparse.so.12"])
  _load("cublas", ["libcublas.so.12", "libcublasLt.so.12"])
  _load("cu13", ["libcublas.so.13", "libcublasLt.so.13"])
  _load("nccl", ["libnccl.so.2"])
  _load(lib, names)
"""


def jax_pjrt(version: str, number: int, *, platform: str = X86, code: str = PLUGIN_CODE) -> FakeWheel:
    """A wheel of jax-cuda12-pjrt or the like, which is for every Python."""
    files = {f"jax_plugins/xla_cuda{number}/__init__.py": code}
    return make_wheel(f"jax-cuda{number}-pjrt", version, files, tags=(f"py3-none-{platform}",))
