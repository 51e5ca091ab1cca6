"""GPUs, TPU, or none."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

from envbuild.capture.asking import answer
from envbuild.capture.frameworks import NUMBERS
from envbuild.capture.reading import Facts, decoded, output_of, read_text
from envbuild.capture.tpu import tpu_facts


def accelerator_facts(root: str = "/") -> Facts:
    """Ask NVIDIA's driver in the three ways there are, then look for a TPU; /proc, /sys and /dev lie in `root`."""
    return _nvml() or _nvidia_smi() or kernel_driver(root) or tpu_facts(root) or {"kind": "none"}


def _nvidia_facts(source: str, driver: str | None, cuda_maximum: str | None, gpus: list[Facts]) -> Facts:
    return {"kind": "nvidia", "source": source, "driver": driver, "cuda_maximum": cuda_maximum, "gpus": gpus}


def _nvml() -> Facts | None:
    """Ask the driver through nvidia-ml-py, where it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml as nv
        # Counted: whoever else in this process uses NVML keeps it.
        nv.nvmlInit()
        try:
            return _nvml_facts(nv)
        finally:
            nv.nvmlShutdown()
    except Exception:
        # Absent, without a driver, or another module of that name.
        return None


def _nvml_facts(nv: Any) -> Facts:
    handles = [answer(nv, "nvmlDeviceGetHandleByIndex()", at) for at in range(nv.nvmlDeviceGetCount())]
    gpus = [_nvml_gpu(nv, handle) for handle in handles if handle is not None]
    cuda = answer(nv, "nvmlSystemGetCudaDriverVersion()")
    maximum = "%d.%d" % (cuda // 1000, cuda % 1000 // 10) if cuda else None
    driver = decoded(nv.nvmlSystemGetDriverVersion())
    return _nvidia_facts("nvml", driver, maximum, [gpu for gpu in gpus if gpu["name"]])


def _nvml_gpu(nv: Any, handle: Any) -> Facts:
    """Describe one GPU by the answers that it gives: not every user, driver and model allows all questions."""
    capability = answer(nv, "nvmlDeviceGetCudaComputeCapability()", handle)
    return {
        "name": _nvml_name(nv, handle),
        "memory": answer(nv, "nvmlDeviceGetMemoryInfo().total", handle),
        "compute_capability": "%d.%d" % tuple(capability) if capability else None,
        "mig": _nvml_mig(nv, handle),
    }


def _nvml_name(nv: Any, handle: Any) -> str | None:
    name = answer(nv, "nvmlDeviceGetName()", handle)
    return decoded(name) if name else None


def _nvml_mig(nv: Any, handle: Any) -> Facts | None:
    mode = answer(nv, "nvmlDeviceGetMigMode()", handle)
    if not mode:
        return None
    slots = answer(nv, "nvmlDeviceGetMaxMigDeviceCount()", handle) if mode[0] else 0
    # An empty slot is an error.
    parts = [answer(nv, "nvmlDeviceGetMigDeviceHandleByIndex()", handle, at) for at in range(slots or 0)]
    names = [_nvml_name(nv, part) for part in parts if part is not None]
    # NVIDIA A100-SXM4-40GB MIG 1g.5gb
    return {"enabled": bool(mode[0]), "instances": [name.rpartition(" MIG ")[2] for name in names if name]}


def _nvidia_smi() -> Facts | None:
    """Ask the program that comes with the driver; it answers in full or is asked no more."""
    head = output_of("nvidia-smi")
    if head is None:
        return None
    ask, form = "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader,nounits"
    # Drivers before 510 refuse the whole query because of compute_cap.
    table = output_of("nvidia-smi", ask + ",compute_cap,mig.mode.current", form) or output_of("nvidia-smi", ask, form)
    rows = [[*re.split(r"\s*,\s*", line), "", ""] for line in (table or "").splitlines() if line.count(",") > 1]
    if not rows:
        return None
    maximum = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", head)
    divided = _smi_instances() if any(row[4] == "Enabled" for row in rows) else {}
    gpus = [_smi_gpu(row, divided.get(at, [])) for at, row in enumerate(rows)]
    return _nvidia_facts("nvidia-smi", rows[0][0], maximum.group(1) if maximum else None, gpus)


def _smi_gpu(row: list[str], instances: list[str]) -> Facts:
    """Describe one GPU; what it does not have is `[N/A]`, what may not be asked `[Insufficient Permissions]`."""
    enabled = {"Enabled": True, "Disabled": False}.get(row[4])
    return {
        "name": row[1],
        "memory": int(row[2]) * 2**20 if row[2].isdigit() else None,
        "compute_capability": row[3] if NUMBERS.fullmatch(row[3]) else None,
        "mig": None if enabled is None else {"enabled": enabled, "instances": instances},
    }


def _smi_instances() -> dict[int, list[str]]:
    """Map each GPU's place in the list to the profiles of its parts."""
    found: dict[int, list[str]] = {}
    gpu = -1
    for line in (output_of("nvidia-smi", "-L") or "").splitlines():
        if line.startswith("GPU "):
            gpu += 1
        found.setdefault(gpu, []).extend(re.findall(r"^\s+MIG (\S+)", line))
    return found


def kernel_driver(root: str = "/") -> Facts | None:
    """Read which driver the kernel has loaded and which of its GPUs this container was given."""
    text = read_text(os.path.join(root, "proc/driver/nvidia/version")) or ""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    gpus = []
    for path in sorted(Path(root, "proc/driver/nvidia/gpus").glob("*/information")):
        values = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", read_text(path) or "", re.MULTILINE))
        if values.get("Model") and os.path.exists(os.path.join(root, "dev/nvidia" + values.get("Device Minor", "?"))):
            gpus.append({"name": values["Model"]})
    return _nvidia_facts("/proc/driver/nvidia/version", match.group(1), None, gpus) if match else None
