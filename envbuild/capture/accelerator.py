"""GPUs, TPU, or none."""

from __future__ import annotations

import re
import warnings
from typing import Any

from envbuild.capture.frameworks import NUMBERS
from envbuild.capture.reading import Facts, decoded, output_of, read_text


def _nvml() -> Facts | None:
    """Ask the driver through nvidia-ml-py, where it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml as nv
        nv.nvmlInit()
        try:
            cuda, driver = nv.nvmlSystemGetCudaDriverVersion(), decoded(nv.nvmlSystemGetDriverVersion())
            gpus = [_nvml_gpu(nv, nv.nvmlDeviceGetHandleByIndex(index)) for index in range(nv.nvmlDeviceGetCount())]
            return {"driver": driver, "cuda_maximum": "%d.%d" % (cuda // 1000, cuda % 1000 // 10), "gpus": gpus}
        finally:
            nv.nvmlShutdown()
    except Exception:
        # Absent, without a driver, too old for a question, or for a device that does not answer one.
        return None


def _nvml_gpu(nv: Any, handle: Any) -> Facts:
    capability = "%d.%d" % tuple(nv.nvmlDeviceGetCudaComputeCapability(handle))
    memory = int(nv.nvmlDeviceGetMemoryInfo(handle).total)
    return {"name": decoded(nv.nvmlDeviceGetName(handle)), "memory": memory, "compute_capability": capability}


def _nvidia_smi() -> Facts | None:
    ask, form = "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader,nounits"
    # Drivers before 510 refuse the whole query because of compute_cap.
    answer = output_of("nvidia-smi", ask + ",compute_cap", form) or output_of("nvidia-smi", ask, form) or ""
    rows = [[*re.split(r"\s*,\s*", line), ""] for line in answer.splitlines() if line.count(",") > 1]
    if not rows:
        return None
    maximum = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", output_of("nvidia-smi") or "")
    gpus: list[Facts] = [{"name": row[1]} for row in rows]
    for gpu, row in zip(gpus, rows):  # noqa: B905 - strict is of 3.10
        gpu["memory"] = int(row[2]) * 2**20 if row[2].isdigit() else None
        gpu["compute_capability"] = row[3] if NUMBERS.fullmatch(row[3]) else None
    return {"driver": rows[0][0], "cuda_maximum": maximum.group(1) if maximum else None, "gpus": gpus}


def kernel_driver(path: str = "/proc/driver/nvidia/version") -> Facts | None:
    """Read the version of the driver that the kernel has loaded."""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", read_text(path) or "")
    return {"driver": match.group(1), "gpus": []} if match else None


def accelerator_facts() -> Facts:
    """Ask the driver in the three ways there are."""
    return _nvml() or _nvidia_smi() or kernel_driver() or {"kind": "none"}
