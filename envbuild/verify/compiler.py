"""XLA's own compiler: it starts ptxas and reads libdevice, both of which it looks for in a few folders."""

import re
from collections.abc import Iterator

from envbuild.match.facts import within
from envbuild.oci.rootfs import resolve
from envbuild.verify.image import Case
from envbuild.verify.proof import LoaderFinding

_PARTS = {
    "ptxas": ("bin/ptxas", "kernels are compiled by the driver, or not at all"),
    "libdevice.10.bc": ("nvvm/libdevice/libdevice.10.bc", "what XLA compiles (jit_compile) fails"),
}
_FLAG = re.compile(r"--xla_gpu_cuda_data_dir=(\S+)")


def compiler_findings(case: Case) -> Iterator[LoaderFinding]:
    """Note what XLA does not find; PyTorch compiles with what Triton brings."""
    if case.framework not in ("tensorflow", "jax"):
        return
    folders = tuple(_folders(case))
    for name, (place, without) in _PARTS.items():
        if not any(resolve(case.tree, f"{folder}/{place}") for folder in folders):
            says = f"it is in none of the folders where XLA looks for it ({', '.join(folders)}); {without}"
            yield LoaderFinding(kind="note", library=name, says=says)


def _folders(case: Case) -> Iterator[str]:
    if flag := _FLAG.search(case.variables.get("XLA_FLAGS", "")):
        yield flag[1]
    if case.framework == "jax":
        yield from (f"{case.site}/nvidia/{folder}" for folder in ("cuda_nvcc", "cu13"))
    elif not any(within(it, case.framework, case.wheel.version) for it in case.profiles.compilers):
        yield f"{case.site}/nvidia/cuda_nvcc"  # by itself, but for the releases that these rows name
    yield "/usr/local/cuda"
